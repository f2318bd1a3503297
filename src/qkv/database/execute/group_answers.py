"""Answers to queries with texts beside other key columns: a group of rows is found, then attention is over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qkv.core.printable import quoted_key
from qkv.database.answer import Entry
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

__all__ = ["ambiguous_reason", "finds_groups", "run_by_group"]

# Number of candidates in the reason of an ambiguous query.
_SHOWN = 5


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
    if options.candidates is not None:
        return options.candidates.run(executor, queries, comparison, normalizer, options)
    if not (isinstance(comparison, MixedComparison) and finds_groups(comparison, normalizer, options)):
        return executor.run(queries, comparison, normalizer, options)
    finder = GroupFinder(comparison, queries)
    for rows, present in executor.group_rows(comparison, options):
        finder.update(rows, present)
    groups = finder.find()
    entries: dict[int, Entry] = {}
    found: list[int] = []
    others: list[int] = []
    for index, (group, original) in enumerate(zip(groups, queries.originals, strict=True)):
        if group.candidates:
            reason = ambiguous_reason(group.candidates)
            entries[index] = Entry(original, False, reason=reason, candidates=group.candidates)
        elif group.reason:
            entries[index] = Entry(original, False, reason=group.reason)
        else:
            (found if group.texts else others).append(index)
    chosen = with_texts(comparison, queries.take(np.array(found, np.int64)), [groups[index] for index in found])
    answered, plan = executor.run(chosen, compare_texts_by_equality(comparison), normalizer, options)
    entries.update(zip(found, answered, strict=True))
    if others:
        rest, _ = executor.run(queries.take(np.array(others, np.int64)), comparison, normalizer, options)
        entries.update(zip(others, rest, strict=True))
    return [entries[index] for index in range(len(queries))], plan


def ambiguous_reason(candidates: tuple[str, ...], more: bool = False) -> str:
    """Return the reason why a query that several keys, or more than these, match about equally well has no answer."""
    shown = ", ".join(map(quoted_key, candidates[:_SHOWN])) + ", …" * (len(candidates) > _SHOWN)
    return f"{len(candidates)}{' or more' * more} keys match about equally: {shown}; ask for one of them"
