"""Answers to queries with texts beside other key columns: a group of rows is found, then attention is over it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from qkv.database.answer import Call, Entry
from qkv.database.execute.match_reasons import ambiguous_reason
from qkv.database.execute.missing_values import with_missing_values
from qkv.database.keys.comparisons import Comparison, MixedComparison
from qkv.database.keys.find_group import GroupFinder, compare_texts_by_equality, with_texts
from qkv.database.keys.queries import Queries
from qkv.masks import Keys
from qkv.normalizers.base import Normalizer

if TYPE_CHECKING:
    from qkv.database.execute.ask_options import AskOptions
    from qkv.database.execute.base import Executor
    from qkv.database.execute.stream_plan import StreamedPlan
    from qkv.plan.plan import Plan

__all__ = ["finds_groups", "run_by_group"]


def finds_groups(comparison: Comparison, normalizer: Normalizer, options: AskOptions) -> bool:
    """Whether the rows of each query are those with the most similar texts alone."""
    mask = options.mask
    plain = mask is None or (isinstance(mask, Keys) and np.ndim(np.asarray(mask.array)) == 1)
    mixed = isinstance(comparison, MixedComparison) and comparison.one_key
    return mixed and normalizer is comparison.normalizer and plain


def run_by_group(
    executor: Executor, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
) -> tuple[list[Entry], Plan | StreamedPlan]:
    """Return `Executor.run`, over the group of rows that each query asks for if the key has texts beside others.

    With candidates, it is over those rows.
    """
    run = executor.run if options.candidates is None else partial(options.candidates.run, executor)
    groups_of = comparison if options.candidates is None and finds_groups(comparison, normalizer, options) else None
    if not isinstance(groups_of, MixedComparison):
        entries, plan = run(queries, comparison, normalizer, options)
        return with_missing_values(executor, queries, comparison, normalizer, options, entries), plan
    comparison = groups_of
    finder = GroupFinder(comparison, queries)
    for rows, present in executor.group_rows(comparison, options):
        finder.update(rows, present)
    for without_value in executor.rows_without_value(options):
        finder.update(comparison.with_rows(without_value.query_columns), without_value.complete)
    groups = finder.find()
    search = (Call(finder.score, "the largest sum", "all rows"),)
    entries_by_index: dict[int, Entry] = {}
    found: list[int] = []
    others: list[int] = []
    for index, (group, original) in enumerate(zip(groups, queries.originals, strict=True)):
        if group.candidates:
            reason = ambiguous_reason(group.candidates)
            entries_by_index[index] = Entry(original, False, reason=reason, candidates=group.candidates, calls=search)
        elif group.reason:
            entries_by_index[index] = Entry(original, False, reason=group.reason, calls=search)
        else:
            (found if group.texts else others).append(index)
    chosen = with_texts(comparison, queries.take(np.array(found, np.int64)), [groups[index] for index in found])
    plans = []
    for own, indices, equal in ((chosen, found, compare_texts_by_equality(comparison)), (None, others, comparison)):
        if own is None and not indices:
            continue
        some = queries.take(np.array(indices, np.int64)) if own is None else own
        answered, plan = executor.run(some, equal, normalizer, options)
        answered = with_missing_values(executor, some, equal, normalizer, options, answered)
        plans.append(plan)
        for index, entry in zip(indices, answered, strict=True):
            entries_by_index[index] = replace(entry, calls=(*search, *entry.calls))
    return [entries_by_index[index] for index in range(len(queries))], plans[0]
