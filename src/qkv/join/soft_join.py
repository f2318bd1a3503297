"""Link the rows of two tables that describe the same entity, by a soft join."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa

from qkv.core.checks import check_integers
from qkv.core.progress import Progress
from qkv.core.typing import Float
from qkv.database.io.sources import describe, read, require_columns
from qkv.encoders.columns import split_names
from qkv.errors import DataError, OptionError
from qkv.join.active_learner import ActiveLearner
from qkv.join.attention_weights import collect_matches
from qkv.join.blocking import CandidatePairs
from qkv.join.compared_columns import PairIntegers, PairNumbers, read_columns
from qkv.join.comparison_vectors import ComparisonVectors, PairList, append_log_odds, level_log_odds
from qkv.join.expectation_maximization import estimate_log_odds, estimation_sample
from qkv.join.labels import Labels, read_labels, row_numbers
from qkv.join.model import JoinModel
from qkv.join.result import JoinResult, Match, check_selection, matched
from qkv.join.supervised import LabelledSample, fit_labelled
from qkv.join.unsupervised import estimate_without_labels

_ColumnPairs: TypeAlias = tuple[tuple[str, str], ...]
_RowsById: TypeAlias = tuple[dict[str, int] | None, dict[str, int] | None]
_COMPETITORS = 20


class SoftJoin:
    """Soft join of two tables, with left rows as queries, right rows as keys and "no match" as an additional key.

        weight(r, k) = softmax_k(score(r, k))        score = a · measures(r, k) + b,    score("no match") = 0

    The measures compare rows column by column (`qkv.join.comparison_vectors`). Their weights a are learned from
    labelled pairs (`qkv.join.supervised`), or estimated without labels (`qkv.join.expectation_maximization`).

    Args:
        on: columns to compare; `"city=town"` or `("city", "town")` if a column has another name in the right table.
            None for all common columns except `id`.
        id: column that identifies rows in labelled pairs; None if labelled pairs hold row numbers from 0.

    Raises:
        OptionError: `on` is empty or names a column twice.

    Example:
        >>> here = {"name": ["Café Miró", "Blue Door", "Old Mill"], "city": ["Oslo", "Oslo", "Rome"]}
        >>> there = {"name": ["The Blue Door", "Cafe Miro", "Zum Löwen"], "city": ["Oslo", "Oslo", "Bern"]}
        >>> [(pair.left, pair.right) for pair in SoftJoin(on=("name", "city")).join(here, there)]
        [(0, 1), (1, 0)]
    """

    def __init__(self, on: Sequence[str | tuple[str, str]] | str | None = None, *, id: str | None = None) -> None:
        self.on = None if on is None else _names(on)
        self.id = id
        self.model: JoinModel | None = None
        self._learner: ActiveLearner | None = None
        self._sizes: tuple[int, int] = (0, 0)
        self._ids: _RowsById = (None, None)

    def fit(
        self,
        left: object,
        right: object = None,
        pairs: object = None,
        *,
        valid: object = None,
        labels: object = None,
        candidates: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn the weights of the similarities from labelled pairs, or estimate log odds without labels.

        `pairs` are a representative sample of labelled pairs. `labels` are few pairs, such as the answers to
        `informative_pairs`; they correct the log odds that are estimated without labels (`qkv.join.active_learner`).

        Args:
            left: left table: a path, frame, pyarrow table or dict of columns.
            right: right table; None for `left` itself.
            pairs: labelled pairs (see `qkv.join.labels`); None for unsupervised estimation.
            valid: labelled validation pairs, also used to choose regularization and threshold.
            labels: few labelled pairs, in the same format as `pairs`; may be empty, or of one kind only.
            candidates: number of right rows compared with each left row; None for the default of
                `qkv.join.blocking`.
            progress: called with the step, the count done and the total.

        Raises:
            DataError: a table, column or label cannot be used.
            OptionError: both `pairs` and `labels` are given, or `valid` without `pairs`.
        """
        if labels is not None and (pairs is not None or valid is not None):
            raise OptionError("labels must be None if pairs or valid are given, got both. Pass all of them as pairs.")
        tables, on, ids = self._read(left, right)
        candidate_pairs = _candidate_pairs(tables, on, None, candidates)
        self._learner = None
        if pairs is None:
            if valid is not None:
                raise OptionError(
                    "valid must be None if pairs is None, got validation pairs. Pass the training pairs as pairs."
                )
            estimate = estimate_without_labels(candidate_pairs, on, progress)
            self._sizes, self._ids = (tables[0].num_rows, tables[1].num_rows), ids
            self._learner = ActiveLearner(estimate, candidate_pairs.measures, candidate_pairs.self_join)
            self.model = estimate.model
            return self if labels is None else self.refit(labels)
        sizes = tables[0].num_rows, tables[1].num_rows
        train = read_labels(pairs, sizes, ids)
        known = [train] if valid is None else [train, read_labels(valid, sizes, ids)]
        log_odds, _ = estimate_log_odds(
            candidate_pairs.measures, estimation_sample(candidate_pairs, progress), progress
        )
        samples = _labelled_samples(candidate_pairs, known, log_odds, progress)
        for labelled, name in zip(samples, ("training", "validation"), strict=False):
            if len(np.unique(labelled.labels)) < 2:
                raise DataError(
                    f"the {name} pairs must include matches and non-matches, got {int(labelled.labels.sum())} matches "
                    f"among {len(labelled.labels)} pairs. Add pairs of the missing label."
                )
        found = fit_labelled(samples[0], samples[1] if len(samples) > 1 else None, progress)
        counted = " and ".join(f"{len(labelled.labels):,}" for labelled in samples)
        counts = f"{len(samples[0].labels):,} labelled pairs, {int(samples[0].labels.sum())} of them matches"
        notes = (
            f"learned from {counts}",
            f"prior of strength {found.strength:g} and threshold {found.threshold:.2f} chosen on pairs that "
            f"were not fitted ({counted}): cross-entropy {found.loss:.3f}, F1 {found.f1:.3f}",
        )
        self.model = JoinModel(
            on, candidate_pairs.measures.kinds, log_odds, found.weights, found.bias, found.threshold, notes
        )
        return self

    def refit(self, labels: object) -> Self:
        """Learn from all labels so far, as `fit` with the same tables and `labels` does, without comparing them again.

        Args:
            labels: all labelled pairs, in the format of `fit`; earlier labels do not count.

        Raises:
            OptionError: the join was not fitted with tables alone or with `labels`.
            DataError: a label is invalid, or refers to a row that is not in its table.

        Example:
            >>> here, there = {"name": ["Ann Ray", "Bo Li", "Al Fox"]}, {"name": ["Anne Ray", "Alan Fox", "Eve Day"]}
            >>> join = SoftJoin("name").fit(here, there)
            >>> len(join.informative_pairs(2))
            2
            >>> join = join.refit([{"left": 0, "right": 0, "match": 1}, {"left": 1, "right": 2, "match": 0}])
            >>> join.model.notes[1]
            'scores corrected by 2 labels, 1 of them match'
        """
        learner = self._active_learner()
        learner.fit(read_labels(labels, self._sizes, self._ids, matches_only=False))
        self.model = learner.model
        return self

    def informative_pairs(self, count: int, *, skip: Iterable[tuple[int, int]] = ()) -> list[Match]:
        """Return the pairs whose labels would teach the join most, the most informative first.

        Pairs that `fit` or `refit` got a label for are left out; no two pairs have the same left row.

        Args:
            count: number of pairs; fewer are returned if there are fewer candidates.
            skip: pairs `(left row, right row)` to leave out.

        Raises:
            OptionError: `count` is less than 1, or the join was not fitted with tables alone or with `labels`.
        """
        check_integers(count=count)
        learner = self._active_learner()
        pairs = learner.informative(count, set(skip))
        return [Match(row, key, *learner.scores(row, key)) for row, key in pairs]

    def join(
        self,
        left: object,
        right: object = None,
        *,
        threshold: float | None = None,
        one_to_one: bool = False,
        many: bool = False,
        candidates: int | None = None,
        progress: Progress | None = None,
    ) -> JoinResult:
        """Return the matching pairs of two tables, or the duplicates within one table.

        If `fit` was not called, the scores are estimated from these tables, for this call only.

        Args:
            left: left table.
            right: right table; None for `left` itself.
            threshold: smallest weight of a match; None for that of the model, which is 0.4 to 0.5 without labels.
            one_to_one: whether each row has at most one match: the assignment with the largest sum of log odds
                above the threshold; within one table, the strongest pairs first.
            many: whether a left row may have any number of matches: the probability of each pair alone is
                compared with the threshold, not its attention weight.
            candidates: as in `fit`.
            progress: called with the step, the count done and the total.

        Raises:
            DataError: a table cannot be read, or a column is missing or of a kind that cannot be compared.
            OptionError: the threshold is outside (0, 1], or both `one_to_one` and `many` are true.
        """
        check_selection(0.5 if threshold is None else threshold, one_to_one, many)
        tables, on, ids = self._read(left, right)
        candidate_pairs = _candidate_pairs(tables, on, self.model, candidates)
        model = self.model or estimate_without_labels(candidate_pairs, on, progress).model
        threshold = model.threshold if threshold is None else threshold

        def scored() -> Iterator[tuple[PairIntegers, PairIntegers, PairNumbers]]:
            for rows, keys, found in candidate_pairs.batches(progress):
                yield rows, keys, model.logits(candidate_pairs.measures, found)

        by_weight = not (one_to_one or many or candidate_pairs.self_join)
        edges = collect_matches(scored(), candidate_pairs.rows, threshold, by_weight)
        pairs = matched(edges, threshold, one_to_one, many, candidate_pairs.self_join)
        readings = (field.reading for field in candidate_pairs.measures.fields if field.reading)
        notes = (*model.notes, candidate_pairs.note, *readings)
        return JoinResult(*tables, *pairs, edges.no_match, threshold, notes, on, ids)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model as JSON, without the tables.

        Raises:
            OptionError: the join is not fitted.
            DataError: the file cannot be written.
        """
        if self.model is None:
            raise OptionError("the join must be fitted before it is saved, got an unfitted join. Call fit first.")
        self.model.save(Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, id: str | None = None) -> Self:
        """Load a fitted join from a file that `save` wrote.

        Raises:
            DataError: the file does not exist, or contains no join model.
        """
        model = JoinModel.load(Path(path))
        join = cls(model.on, id=id)
        join.model = model
        return join

    # -- implementation -----------------------------------------------------------------------------------------

    def _active_learner(self) -> ActiveLearner:
        if self._learner is None:
            raise OptionError(
                "the join must be fitted to two tables without `pairs`, got one that was not, or that was loaded. "
                "Call fit(left, right) or fit(left, right, labels=…) first."
            )
        return self._learner

    def _read(self, left: object, right: object) -> tuple[tuple[pa.Table, pa.Table], _ColumnPairs, _RowsById]:
        """Return both tables, the names of the compared columns, and the row numbers by id."""
        first = read(left)
        second = first if right is None else read(right).slice(0)  # never the same object as `first`
        places = describe(left), describe(left if right is None else right)
        for table, place in zip((first, second), places, strict=True):
            if not table.num_rows:
                raise DataError(
                    f"{place} must have at least one row for a join, got an empty table. "
                    "Add rows, or name another table."
                )
        on = self.on
        if on is None:
            common = [name for name in first.column_names if name in second.column_names]
            on = tuple((name, name) for name in common if name.lower() != "id" and name != self.id)
            if not on:
                raise DataError(
                    f"{places[0]} and {places[1]} must have a common column name other than that of the ids, got the "
                    f"columns {', '.join(first.column_names)} and {', '.join(second.column_names)}. Name the pairs of "
                    "columns: on='city=town' in Python, --on city=town on the command line."
                )
        identified = [] if self.id is None else [self.id]
        require_columns(first, [name for name, _ in on] + identified, places[0])
        require_columns(second, [name for _, name in on] + identified, places[1])
        ids = row_numbers(first, self.id, places[0]), row_numbers(second, self.id, places[1])
        return (first, second), on, ids


def _candidate_pairs(
    tables: tuple[pa.Table, pa.Table], on: _ColumnPairs, model: JoinModel | None, candidates: int | None
) -> CandidatePairs:
    check_integers(candidates=candidates)
    left, right = tables
    names = tuple(name for name, _ in on)
    # The right columns get the names of the left ones.
    renamed = right.select([name for _, name in on]).rename_columns(list(names))
    columns = read_columns(left, renamed, names, None if model is None else model.kinds)
    return CandidatePairs(ComparisonVectors(columns), left is right, candidates)


def _names(on: Sequence[str | tuple[str, str]] | str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for name in split_names(on):
        left, _, right = name.partition("=") if isinstance(name, str) else (name[0], "", name[1])
        pairs.append((left.strip(), right.strip() or left.strip()))
    lefts = [left for left, _ in pairs]
    if not pairs or not all(lefts) or len(set(lefts)) < len(lefts):
        raise OptionError(
            f"on must name at least one column, and each left column at most once, got {on!r}. Write it like "
            "'name,city=town'."
        )
    return tuple(pairs)


def _labelled_samples(
    candidate_pairs: CandidatePairs,
    known: list[Labels],
    log_odds: Float[np.ndarray, "columns levels"],
    progress: Progress | None,
) -> list[LabelledSample]:
    """Return a `LabelledSample` for each element of `known`, with unlabelled pairs of the same left rows added.

    If the labels are a complete list of matches, the added pairs are labelled as non-matches.
    """
    every = np.concatenate([labels.rows for labels in known])
    rows, keys, found = candidate_pairs.top_candidates(_COMPETITORS, np.unique(every), progress)
    listed = {pair for labels in known for pair in zip(labels.rows.tolist(), labels.keys.tolist(), strict=True)}
    fresh = np.array([pair not in listed for pair in zip(rows.tolist(), keys.tolist(), strict=True)], bool)

    def whole(found: Float[np.ndarray, "pairs similarities"]) -> Float[np.ndarray, "pairs measures"]:
        return append_log_odds(found, level_log_odds(candidate_pairs.measures, found, log_odds))

    rows, found = rows[fresh], whole(found[fresh])
    samples = []
    for labels in known:
        measured = whole(candidate_pairs.measures.compute(PairList(labels.rows, labels.keys)))
        own = np.isin(rows, labels.rows)
        others, other_found = rows[own], found[own]
        if labels.complete:  # all matches are listed, so the competitors are non-matches
            pair_rows, measured = np.append(labels.rows, others), np.concatenate([measured, other_found])
            match = np.append(labels.match, np.zeros(len(others), int))
            samples.append(LabelledSample(pair_rows, measured, match, others[:0], other_found[:0]))
        else:
            samples.append(LabelledSample(labels.rows, measured, labels.match, others, other_found))
    return samples
