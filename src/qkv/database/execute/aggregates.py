"""Aggregation of the values of rows: weighted averages of numbers, timestamps and vectors, and votes of other values.

For weights w with total W:

    numbers    value = Σ w v                         spread = sqrt(Σ w (v − mean)² / W),  mean = Σ w v / W
    vectors    the same, with the length of v − mean
    cyclic     value = the direction of the mean of the points on the circle, spread = their circular deviation
    votes      value = the v of largest weight       spread = sqrt(1 − Σ p²),  p = its share of the weight

The spread of a vote is that of the one-hot vectors: 0 where all agree, 0.71 where two are even, at most 1. Ties
go to the label of the first row with non-zero weight. Deviations are measured from the mean of each query over the
rows with weight, so that rows without weight do not affect the spread, whatever their scale.

`partial_sums` computes the same over a store, tile by tile.

Texts, categories and booleans vote, and so do numbers that are read as identifiers (see
`qkv.database.keys.identifiers`) unless `aggregate` is "mean". Other numbers and timestamps are averaged unless
`aggregate` is "vote", and vectors are always averaged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float, Int
from qkv.database.execute.uncertainty import Precision
from qkv.database.keys.identifiers import identifier_reason
from qkv.encoders.arrow_columns import to_python
from qkv.encoders.columns import Column
from qkv.errors import OptionError

if TYPE_CHECKING:
    import datetime as dt

    from qkv.normalizers.base import Normalizer

__all__ = [
    "NO_ROW",
    "Aggregate",
    "Aggregator",
    "LineFit",
    "aggregator_for",
    "average_aggregate",
    "check_average",
    "first_rows",
    "identifier_note",
    "is_vote",
    "label_codes",
    "rounded_deviation",
    "value_reason",
    "vote_aggregate",
    "votes_by_kind",
]

# Leave-one-out errors of more classes or wider vectors add little and cost in proportion.
_MOST_TARGETS = 16
# Below this part of the mean, float64 cannot distinguish a spread from 0; the same for 1 − Σ p² of a vote.
_ROUNDING = 1e-15
_VOTE_ROUNDING = 1e-13
# Sums of squares beyond these sizes lose digits or overflow.
_LARGEST_SQUARE = 1e300
_SMALLEST_VALUE = 1e-140
NO_ROW = np.iinfo(np.int64).max
"""The first row of a label without a row of non-zero weight."""


@dataclass(frozen=True)
class LineFit:
    """The precision and the gradient of an answer on a line through the rows near the query.

    Attributes:
        precision: the precision of the answer; None if it is not known.
        gradient, gradient_error: the slope along each key column of numbers and its standard error, in the unit of
            the value column (days for timestamps) per unit of the key; None where it is not known.
        note: why the answer is the weighted mean, or which slopes are not known; empty otherwise.
    """

    precision: Precision | None
    gradient: dict[str, float | None]
    gradient_error: dict[str, float | None]
    note: str


@dataclass(frozen=True)
class Aggregate:
    """The weighted average or the vote over the values of a table for one query, with its spread.

    Attributes:
        value: the average, or the label with the largest total weight.
        spread: the spread of the values; None where weights have both signs.
        probabilities: the shares of a vote, the largest first; empty for averages.
        center: the average in the unit of the column; None for vectors and votes.
        deviation: the spread in the unit of the column; for votes, that of the indicator of the winning label.
        fit: what a line through the rows adds; None for the weighted mean.
    """

    value: object
    spread: float | dt.timedelta | None
    probabilities: dict[object, float] = field(default_factory=dict)
    center: float | None = None
    deviation: float | None = None
    fit: LineFit | None = None


class Aggregator(ABC):
    """Base class of aggregators, which compute the weighted average or the vote of a value column for each query."""

    votes = False

    def __init__(self, column: Column) -> None:
        self.column = column

    @abstractmethod
    def matrix(self) -> Float[np.ndarray, "rows n"]:
        """Return the values as a matrix `(rows, n)`, whose rows the engine sums with the weights of each query.

        Its last column is 1, so that the last column of the output is the total weight.
        """

    @abstractmethod
    def targets(self, rows: Int[np.ndarray, " selected"]) -> Float[np.ndarray, "selected n"] | str:
        """Return the targets of the bandwidth search for some rows, or a text that says why there are none."""

    @abstractmethod
    def aggregate(self, output: Float[np.ndarray, "q n"], weights: Float[np.ndarray, "q rows"]) -> list[Aggregate]:
        """Return the aggregate of each query, from the weighted sums of `matrix` and the weights."""


def aggregator_for(column: Column, votes: bool = False) -> Aggregator:
    """Return an aggregator for a column: votes if `votes` is True and of texts and booleans, otherwise averages."""
    return _Votes(column) if votes or votes_by_kind(column) else _Averages(column)


class _Averages(Aggregator):
    """Aggregator that averages numbers, timestamps or vectors."""

    def matrix(self) -> Float[np.ndarray, "rows n"]:
        """Return a matrix with the cells and a column of ones. Missing cells are 0."""
        return np.concatenate([_as_matrix(self.column.cells), np.ones((len(self.column.cells), 1))], axis=1)

    def targets(self, rows: Int[np.ndarray, " selected"]) -> Float[np.ndarray, "selected n"] | str:
        """Return the cells of some rows as a matrix of at most 16 columns, which have the largest variances."""
        cells = _as_matrix(self.column.cells[rows])
        if cells.shape[1] <= _MOST_TARGETS or not len(rows):
            return cells[:, :_MOST_TARGETS]
        widest = np.argsort(-cells.var(axis=0), kind="stable")[:_MOST_TARGETS]
        return np.asarray(cells[:, np.sort(widest)])

    def aggregate(self, output: Float[np.ndarray, "q n"], weights: Float[np.ndarray, "q rows"]) -> list[Aggregate]:
        cells = _as_matrix(self.column.cells)
        return [
            average_aggregate(self.column, sums[:-1], _deviation(row, cells))
            for sums, row in zip(output, weights, strict=True)
        ]


class _Votes(Aggregator):
    """Aggregator of texts, booleans and identifiers, in which each row votes for its value with its weight."""

    votes = True

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.labels: dict[object, int] = {}
        self.codes = label_codes(column, self.labels)

    def matrix(self) -> Float[np.ndarray, "rows n"]:
        """Return a column of ones, so that the weighted sum of each query is its total weight."""
        return np.ones((len(self.codes), 1))

    def targets(self, rows: Int[np.ndarray, " selected"]) -> Float[np.ndarray, "selected n"] | str:
        """Return one-hot columns of the 15 most common values, or the reason for none if most values are distinct."""
        codes, counts = np.unique(self.codes[rows], return_counts=True)
        if len(codes) > 0.5 * len(rows):
            return "the values are nearly all different"
        common = codes[np.argsort(-counts, kind="stable")[: _MOST_TARGETS - 1]]
        return np.asarray(self.codes[rows][:, None] == common[None, :], dtype=np.float64)

    def aggregate(self, output: Float[np.ndarray, "q n"], weights: Float[np.ndarray, "q rows"]) -> list[Aggregate]:
        labels, aggregates = list(self.labels), []
        for row, total in zip(weights, output[:, -1], strict=True):
            votes = np.bincount(self.codes, weights=row, minlength=len(labels))
            first = first_rows(row, self.codes, len(labels))
            aggregates.append(vote_aggregate(labels, votes, first, float(total), bool((row < 0).any())))
        return aggregates


def average_aggregate(column: Column, value: Float[np.ndarray, " width"], deviation: float | None) -> Aggregate:
    """Return the aggregate of a query over a column of numbers, timestamps or vectors, in the type of its cells.

    Args:
        column: the column, which gives the kind and origin of its cells.
        value: the weighted average, in the unit of the column.
        deviation: the spread, in the unit of the column; None if there is none.
    """
    if column.kind == "vector":
        return Aggregate(value, deviation, deviation=deviation)
    if column.kind == "cyclic":
        spread = None if deviation is None else _circular_deviation(value, column.period)
        return Aggregate(float(column.numbers(value)), spread, deviation=spread)
    center = float(value[0])
    if column.kind == "number":
        return Aggregate(center, deviation, center=center, deviation=deviation)
    duration = None if deviation is None else column.duration(deviation)
    return Aggregate(column.timestamp(center), duration, center=center, deviation=deviation)


def _circular_deviation(mean: Float[np.ndarray, " 2"], period: float) -> float:
    """Return the circular standard deviation of points on a circle with some mean, r √(−2 log(|mean| / r)).

    Source: Mardia, Jupp (2000), Directional statistics, section 2.3.
    """
    radius = period / (2 * np.pi)
    length = min(float(np.linalg.norm(mean)) / radius, 1.0)
    length = 1.0 if length > 1.0 - _ROUNDING * 10 else max(length, _ROUNDING)
    return float(radius * np.sqrt(-2.0 * np.log(length)))


def vote_aggregate(
    labels: list[object],
    votes: Float[np.ndarray, " labels"],
    first: Int[np.ndarray, " labels"],
    total: float,
    any_negative: bool,
) -> Aggregate:
    """Return the aggregate of a query over a column of texts, categories or booleans.

    Args:
        labels: the labels.
        votes: the weight of each label.
        first: the index of the first row with non-zero weight of each label, which decides ties.
        total: the sum of all weights.
        any_negative: whether a weight is negative; there are no probabilities then.
    """
    order = np.lexsort((first, -votes))
    winner = labels[int(order[0])] if len(order) else None
    if not total or any_negative:
        return Aggregate(winner, None)
    shares = np.where(votes > 1e-290 * total, votes / total, 0.0)  # sums over blocks leave less of a weight of 0
    probabilities = {labels[code]: float(shares[code]) for code in order[:_MOST_TARGETS] if shares[code] > 0}
    disagreement = 1.0 - float(np.square(shares).sum())
    spread = np.sqrt(disagreement) if disagreement > _VOTE_ROUNDING else 0.0
    share = min(1.0, float(shares[order[0]]))
    return Aggregate(winner, float(spread), probabilities, deviation=float(np.sqrt(share * (1.0 - share))))


def first_rows(
    weights: Float[np.ndarray, " rows"], codes: Int[np.ndarray, " rows"], labels: int
) -> Int[np.ndarray, " labels"]:
    """Return for each label the index of its first row with non-zero weight, or `NO_ROW`."""
    voting = np.flatnonzero(weights)[::-1]
    first = np.full(labels, NO_ROW)
    # Assigned in reverse order, so that the first row of each label remains.
    first[codes[voting]] = voting
    return first


def label_codes(column: Column, labels: dict[object, int]) -> Int[np.ndarray, " rows"]:
    """Return the integer code of the label in each cell of a column, and add new labels to `labels`."""
    if column.original is None and column.kind != "boolean":
        return _number_codes(column, labels)
    # Original texts, not folded ones: λ and Λ are the same key, but different values.
    cells = column.cells.astype(bool) if column.original is None else column.original
    return np.array([labels.setdefault(cell, len(labels)) for cell in cells.tolist()], dtype=np.intp)


def _number_codes(column: Column, labels: dict[object, int]) -> Int[np.ndarray, " rows"]:
    """Return the code of each number or timestamp, which are told apart with all their digits."""
    integers = column.integers
    assert integers is not None
    assert column.source is not None
    compared = integers[:, 0] if integers.shape[1] == 1 else integers
    present = np.flatnonzero(~column.missing)
    _, first, inverse = np.unique(compared[present], axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    codes = np.empty(len(first), np.intp)
    for place, row in zip(order.tolist(), present[first[order]].tolist(), strict=True):
        codes[place] = labels.setdefault(to_python(column.source.slice(row, 1))[0], len(labels))
    every = np.full(len(compared), labels.setdefault(None, len(labels)) if column.missing.any() else 0)
    every[present] = codes[inverse.reshape(-1)]
    return every


def rounded_deviation(variance: float, mean: Float[np.ndarray, " width"]) -> float | None:
    """Return the square root of a variance, or 0 if it is not larger than the rounding errors of the mean.

    Returns:
        The deviation; None if squares of values of this size exceed the range of float64.
    """
    largest = float(np.abs(mean).max(initial=0.0))
    if not variance < _LARGEST_SQUARE or (0 < largest < _SMALLEST_VALUE and variance < _SMALLEST_VALUE**2):
        return None
    deviation = float(np.sqrt(max(variance, 0.0)))
    return deviation if deviation > _ROUNDING * largest else 0.0


def _deviation(weights: Float[np.ndarray, " rows"], cells: Float[np.ndarray, "rows width"]) -> float | None:
    """Return sqrt(Σ w |v − mean|² / Σ w), or None if the weights are all zero or one of them is negative."""
    rows = np.flatnonzero(weights)
    weights, cells = weights[rows], cells[rows]
    if not len(rows) or not (weights >= 0).all():
        return None
    weights = weights / weights.sum()
    mean = weights @ cells
    with np.errstate(over="ignore", invalid="ignore"):
        offset = cells - mean
        # Rounding moves the mean; the first moment corrects for it.
        variance = weights @ np.square(offset).sum(axis=1) - np.square(weights @ offset).sum()
        return rounded_deviation(float(variance), mean)


def _as_matrix(cells: Float[np.ndarray, "rows ..."]) -> Float[np.ndarray, "rows width"]:
    return cells[:, None] if cells.ndim == 1 else cells


def votes_by_kind(value: Column) -> bool:
    """Return whether the values can only vote: texts, categories and booleans."""
    return not value.traits.averaged


def value_reason(value: Column, largest: float) -> str:
    """Return why a value column, whose largest magnitude is given, is read as identifiers, or "" if it is not."""
    return "" if votes_by_kind(value) else identifier_reason(value, largest, "")


def check_average(value: Column, normalizer: Normalizer) -> None:
    """Raise an `OptionError` if the weights of a normalizer cannot average dates and times, whose origin is arbitrary.

    Σ w t is a time only if Σ w = 1.
    """
    if value.kind == "timestamp" and not normalizer.sums_to_one:
        raise OptionError(
            f"normalizer must give weights that sum to 1 for the value {value.name}, which holds dates or times, got "
            f"{normalizer}. Omit normalizer, or choose one such as softmax or mean."
        )


def is_vote(value: Column, reason: str, aggregate: str | None) -> bool:
    """Return whether answers are votes over a value column.

    Raises:
        OptionError: The values are vectors, which cannot vote.
    """
    if value.kind == "vector" and aggregate == "vote":
        raise OptionError(
            f"aggregate must be 'mean' for the value {value.name}, which holds vectors, got 'vote'. Omit aggregate."
        )
    if votes_by_kind(value):
        return True
    return bool(reason) if aggregate is None else aggregate == "vote"


def identifier_note(value: Column, reason: str) -> str:
    """Return a sentence which says that the values are read as identifiers, and how to average them."""
    return f"{value.name} is read as an identifier, because {reason}: its values vote; aggregate mean averages them"
