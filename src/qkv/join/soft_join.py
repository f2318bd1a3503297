"""The soft join: every row of a table asks another table which of its rows is the same thing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from qkv.core.progress import Progress
from qkv.database.io.sources import describe, read, require_columns
from qkv.errors import DataError, OptionError
from qkv.join.agreement_levels import with_worth, worth_of
from qkv.join.attention_weights import collect_matches
from qkv.join.blocking import CandidatePairs
from qkv.join.compared_columns import read_columns
from qkv.join.comparison_vectors import ComparisonVectors
from qkv.join.expectation_maximisation import estimate
from qkv.join.labels import Labels, read_labels, row_numbers
from qkv.join.model import JoinModel
from qkv.join.pair_sets import PairList
from qkv.join.result import JoinResult, matched
from qkv.join.supervised import LabelledSample, learn

__all__ = ["SoftJoin"]

_COMPETITORS = 20
_HALF = 0.5


class SoftJoin:
    """Left rows are queries, right rows are keys, and one key more says "no match".

        weight(r, k) = softmax_k(score(r, k))        score = a · measures(r, k) + b,    "no match" has 0

    The measures compare column by column (`qkv.join.comparison_vectors`). What each is worth is learned from labelled
    pairs (`qkv.join.supervised`), or estimated from the tables alone (`qkv.join.expectation_maximisation`).

    Args:
        on: the columns that are compared; `"city=town"`, or `("city", "town")`, where the right table calls
            one differently. None for all columns that both tables have, but `id`.
        id: a column that tells rows, in labelled pairs and nowhere else; None where these count rows from 0.

    Raises:
        OptionError: `on` names nothing, or a column twice.

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

    def fit(
        self,
        left: Any,
        right: Any = None,
        pairs: Any = None,
        *,
        valid: Any = None,
        candidates: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn what each measure is worth.

        Args:
            left, right: tables: paths, frames, pyarrow tables, dicts of columns. Right None for left itself.
            pairs: labelled pairs (see `qkv.join.labels`); None to estimate without labels.
            valid: more of them, by which the strength of the prior and the threshold are chosen too.
            candidates: how many right rows are looked at for each left one; None for all, see
                `qkv.join.blocking`.
            progress: called with what is done, how much and of how much.

        Raises:
            DataError: a table, a column or a label that cannot be used.
        """
        tables, on, ids = self._read(left, right)
        measures = self._measures(tables, on, None)
        around = CandidatePairs(measures, tables[0] is tables[1], candidates)
        kinds = {field.name: field.kind for field in measures.fields}
        if pairs is None:
            if valid is not None:
                raise OptionError("there are validation pairs and no training pairs. Give pairs too.")
            self.model = _unlabelled(around, on, kinds, progress)
            return self
        sizes = tables[0].num_rows, tables[1].num_rows
        train = read_labels(pairs, sizes, ids)
        known = [train] if valid is None else [train, read_labels(valid, sizes, ids)]
        worth, _ = estimate(around, progress)
        samples = _samples(around, known, worth, progress)
        for sample, name in zip(samples, ("training", "validation"), strict=False):
            if len(np.unique(sample.labels)) < 2:
                raise DataError(
                    f"the {name} pairs hold {int(sample.labels.sum())} matches among {len(sample.labels)}. "
                    "Give some that match and some that do not."
                )
        found = learn(samples[0], samples[1] if len(samples) > 1 else None, progress)
        counted = " and ".join(f"{len(sample.labels):,}" for sample in samples)
        pairs_said = f"{len(samples[0].labels):,} labelled pairs, {int(samples[0].labels.sum())} of them matches"
        notes = (
            f"learned from {pairs_said}",
            f"prior of strength {found.strength:g} and threshold {found.threshold:.2f} chosen on pairs that "
            f"were not fitted ({counted}): cross-entropy {found.loss:.3f}, F1 {found.f1:.3f}",
        )
        self.model = JoinModel(on, kinds, worth, found.weights, found.bias, found.threshold, notes)
        return self

    def join(
        self,
        left: Any,
        right: Any = None,
        *,
        threshold: float | None = None,
        one_to_one: bool = False,
        many: bool = False,
        candidates: int | None = None,
        progress: Progress | None = None,
    ) -> JoinResult:
        """Join two tables, or a table with itself to find its duplicates.

        A join that was not fitted estimates its scores from these tables, and keeps nothing.

        Args:
            left, right: tables; right None for left itself.
            threshold: from which weight a pair is a match; None for that chosen in fitting, or a half.
            one_to_one: the pairing in which no row is twice, with the largest sum of log-odds above those of
                the threshold. Within one table the strongest pairs go first.
            many: a left row may match any number of right rows: the probability of a pair by itself is held
                against the threshold, not its share of the weight.
            candidates: as in `fit`.
            progress: called with what is done, how much and of how much.

        Raises:
            DataError: a table or column that cannot be used.
            OptionError: the threshold is outside (0, 1], or options exclude each other.
        """
        tables, on, ids = self._read(left, right)
        itself = tables[0] is tables[1]
        measures = self._measures(tables, on, self.model)
        around = CandidatePairs(measures, itself, candidates)
        kinds = {field.name: field.kind for field in measures.fields}
        model = self.model or _unlabelled(around, on, kinds, progress)
        threshold = model.threshold if threshold is None else threshold

        def scored() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
            for rows, keys, found in around.strips(progress):
                yield rows, keys, model.logits(measures, found)

        edges = collect_matches(scored(), around.rows)
        pairs = matched(edges, threshold, one_to_one, many, itself)
        return JoinResult(*tables, *pairs, edges.no_match, threshold, (*model.notes, around.note), on, ids)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was fitted as JSON; the tables are not in it.

        Raises:
            OptionError: nothing was fitted.
            DataError: it cannot be written.
        """
        if self.model is None:
            raise OptionError("this join was not fitted, so there is nothing to save. Call fit first.")
        self.model.save(Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, id: str | None = None) -> Self:
        """Read what `save` wrote.

        Raises:
            DataError: there is no such file, or it is no model of a join.
        """
        model = JoinModel.load(Path(path))
        join = cls(model.on, id=id)
        join.model = model
        return join

    # -- within -----------------------------------------------------------------------------------------

    def _read(self, left: Any, right: Any) -> tuple[tuple[Any, Any], tuple[tuple[str, str], ...], Any]:
        """Both tables, the names of their columns, and their ids."""
        first = read(left)
        second = first if right is None or right is left else read(right)
        places = describe(left), describe(left if right is None else right)
        for table, place in zip((first, second), places, strict=True):
            if not table.num_rows:
                raise DataError(f"{place} has no rows. A join needs some on both sides.")
        on = self.on
        if on is None:
            common = [name for name in first.column_names if name in second.column_names]
            on = tuple((name, name) for name in common if name.lower() != "id" and name != self.id)
            if not on:
                raise DataError(
                    f"{places[0]} and {places[1]} have no column in common: {', '.join(first.column_names)}; "
                    f"{', '.join(second.column_names)}. Say which belong together, as in --on city=town."
                )
        require_columns(first, [name for name, _ in on], places[0])
        require_columns(second, [name for _, name in on], places[1])
        if self.id is not None:
            require_columns(first, [self.id], places[0])
            require_columns(second, [self.id], places[1])
        ids = row_numbers(first, self.id, places[0]), row_numbers(second, self.id, places[1])
        return (first, second), on, ids

    def _measures(
        self, tables: tuple[Any, Any], on: tuple[tuple[str, str], ...], model: JoinModel | None
    ) -> ComparisonVectors:
        left, right = tables
        kinds = None if model is None else model.kinds
        # The right columns under the names of the left ones.
        renamed = right.select([name for _, name in on]).rename_columns([name for name, _ in on])
        return ComparisonVectors(read_columns(left, renamed, tuple(name for name, _ in on), kinds))


def _names(on: Sequence[str | tuple[str, str]] | str) -> tuple[tuple[str, str], ...]:
    given = on.split(",") if isinstance(on, str) else on
    pairs = []
    for name in given:
        left, _, right = name.partition("=") if isinstance(name, str) else (name[0], "", name[1])
        pairs.append((left.strip(), right.strip() or left.strip()))
    lefts = [left for left, _ in pairs]
    if not pairs or not all(lefts) or len(set(lefts)) < len(lefts):
        raise OptionError(f"the columns are {on!r}, and names are wanted, each once, as in name,city=town.")
    return tuple(pairs)


def _unlabelled(around: CandidatePairs, on: Any, kinds: Any, progress: Progress | None) -> JoinModel:
    worth, prior = estimate(around, progress)
    notes = ("scores estimated from the tables alone, by expectation–maximisation",)
    return JoinModel(on, kinds, worth, None, prior, _HALF, notes)


def _samples(
    around: CandidatePairs, known: list[Labels], worth: np.ndarray, progress: Progress | None
) -> list[LabelledSample]:
    """The labelled pairs with their measures, and with the pairs that compete with them."""
    every = np.concatenate([labels.rows for labels in known])
    rows, keys, found = around.closest(_COMPETITORS, np.unique(every), progress)
    listed = {pair for labels in known for pair in zip(labels.rows.tolist(), labels.keys.tolist(), strict=True)}
    fresh = np.array([pair not in listed for pair in zip(rows.tolist(), keys.tolist(), strict=True)], bool)

    def whole(found: np.ndarray) -> np.ndarray:
        return with_worth(found, worth_of(around.measures, found, worth))

    rows, found = rows[fresh], whole(found[fresh])
    samples = []
    for labels in known:
        measured = whole(around.measures.of(PairList(labels.rows, labels.keys)))
        own = np.isin(rows, labels.rows)
        others, other_found = rows[own], found[own]
        if labels.complete:  # all matches are listed, so what competes with them is none
            measured = np.concatenate([measured, other_found])
            match = np.append(labels.match, np.zeros(len(others), int))
            empty = np.zeros(0, int), np.zeros((0, measured.shape[1]))
            samples.append(LabelledSample(np.append(labels.rows, others), measured, match, *empty))
            continue
        samples.append(LabelledSample(labels.rows, measured, labels.match, others, other_found))
    return samples
