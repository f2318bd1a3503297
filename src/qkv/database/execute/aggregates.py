"""Aggregation of the values of rows: weighted averages of numbers, timestamps and vectors, and votes of other values.

For weights w with total W:

    numbers    value = Σ w v                         spread = sqrt(Σ w (v − mean)² / W),  mean = Σ w v / W
    vectors    the same, with the length of v − mean
    cyclic     value = the direction of the mean of the points on the circle, spread = their circular deviation
    votes      value = the v of largest weight       spread = sqrt(1 − Σ p²),  p = its share of the weight

The spread of a vote is that of the one-hot vectors: 0 where all agree, 0.71 where two are even, at most 1. Ties
go to the label of the first row with non-zero weight. Deviations are measured from the mean of each query over the
rows with weight, so that rows without weight do not affect the spread, whatever their scale.

`ValueSums` are the sums of these equations over some rows, to which rows are added, and which merge.

Texts, categories and booleans vote, and so do numbers that are read as identifiers (see
`qkv.database.io.identifiers`) unless `aggregate` is "mean". Other numbers and timestamps are averaged unless
`aggregate` is "vote", and vectors are always averaged.
"""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from qkv.core.partial import merge_means, rescale
from qkv.core.typing import Bool, Float, Int, Num
from qkv.database.execute.uncertainty import Precision
from qkv.database.io.identifiers import identifier_reason
from qkv.encoders import arrow_columns
from qkv.encoders.columns import Column
from qkv.errors import OptionError
from qkv.normalizers.base import Normalizer

# Leave-one-out errors of more classes or wider vectors add little and cost in proportion.
_MOST_TARGETS = 16
# Below this part of the mean, float64 cannot distinguish a spread from 0; the same for 1 − Σ p² of a vote.
_ROUNDING = 1e-15
_VOTE_ROUNDING = 1e-13
# Sums of squares beyond these sizes lose digits or overflow.
_LARGEST_SQUARE = 1e300
_SMALLEST_VALUE = 1e-140
# Rows that are summed in float32; longer sums lose digits.
_FLOAT32_ROWS = 2**16
# Sums of squares below it are not computed in float32, which has no numbers below 1e-45.
_SMALLEST_SQUARE = 1e-30
NO_ROW = np.iinfo(np.int64).max
"""The first row of a label without a row of non-zero weight."""

_Cells = tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]


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
        deviation: the spread in the unit of the column, by which the standard error is computed; for votes, that of the
            indicator of the winning label.
        fit: what a line through the rows adds; None for the weighted mean.
    """

    value: object
    spread: float | dt.timedelta | None
    probabilities: dict[object, float] = field(default_factory=dict)
    center: float | None = None
    deviation: float | None = None
    fit: LineFit | None = None


@dataclass(frozen=True, eq=False)
class Values:
    """The values of some rows, which are averaged or vote.

    Attributes:
        column: the values.
        votes: whether each row votes for its value with its weight, as texts and booleans always do.
        labels: the number of each label of a vote, which `cells` fills.
    """

    column: Column
    votes: bool
    labels: dict[object, int] = field(default_factory=dict)

    @classmethod
    def of(cls, column: Column, votes: bool = False) -> Values:
        """Return the values of a column, which vote if `votes` is True or if they cannot be averaged."""
        return cls(column, votes or votes_by_kind(column))

    @cached_property
    def cells(self) -> Num[np.ndarray, "rows ..."]:
        """The cells as `ValueSums` adds them: numbers, or the numbers of labels. Missing cells are 0."""
        return label_codes(self.column, self.labels) if self.votes else self.column.cells

    def targets(self, rows: Int[np.ndarray, " selected"]) -> Float[np.ndarray, "selected n"] | str:
        """Return the targets of the bandwidth search for some rows, or a text that says why there are none.

        They are the cells, in days for timestamps, as a matrix of at most 16 columns of the largest variances; for
        votes, one-hot columns of the 15 most common values.
        """
        cells = self.cells[rows]
        if self.votes:
            codes, counts = np.unique(cells, return_counts=True)
            if len(codes) > 0.5 * len(rows):
                return "the values are nearly all different"
            common = codes[np.argsort(-counts, kind="stable")[: _MOST_TARGETS - 1]]
            return np.asarray(cells[:, None] == common[None, :], dtype=np.float64)
        matrix = (cells[:, None] if cells.ndim == 1 else cells) / self.column.unit
        if matrix.shape[1] <= _MOST_TARGETS or not len(rows):
            return np.asarray(matrix[:, :_MOST_TARGETS])
        widest = np.argsort(-matrix.var(axis=0), kind="stable")[:_MOST_TARGETS]
        return np.asarray(matrix[:, np.sort(widest)])

    def aggregate(self, weights: Float[np.ndarray, "q rows"]) -> list[Aggregate]:
        """Return the aggregate of each query under the weights of the rows."""
        cells, total = self.cells, weights.sum(axis=1, keepdims=True)
        sums = value_sums(self.column, len(weights), self.votes, self.labels).add(weights, cells, 0)
        return sums.aggregates(self.column, np.ones_like(total), total)


class ValueSums(ABC):
    """Base class of the weighted sums of the values of some rows for each query."""

    def read(self, table: pa.Table, like: Column, folded: bool, complete: bool) -> _Cells:
        """Return the values of a tile, and a boolean array that marks missing values (None if there are none).

        Args:
            table: the rows of the tile.
            like: some rows of the value column, which give its kind, origin and width.
            folded: whether texts are folded.
            complete: whether it is known that no cell is missing.
        """
        column = Column.from_table(table, like.name, folded, like)
        return self._cells(column), column.missing if column.missing.any() else None

    def _cells(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return column.cells

    @abstractmethod
    def rescale(self, factor: Float[np.ndarray, " q"]) -> Self:
        """Return the sums with all weights multiplied by a factor for each query."""

    @abstractmethod
    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], first: int) -> Self:
        """Return the sums with the rows of a tile, which may be this object; `first` is the index of its first row."""

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return the sums over the rows of both, which must be disjoint."""

    @abstractmethod
    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        """Return the aggregate of each query. `scale` multiplies its sums, and `total` is its total weight."""


@dataclass(frozen=True, eq=False)
class AverageSums(ValueSums):
    """Weighted sums of numbers, timestamps or vectors.

    Attributes:
        weighted: `(q, width)`, Σ e v; of width 0 without rows, whose vectors have an unknown width.
        mean: `(q, width)`, the weighted mean.
        squares: `(q,)`, Σ e |v − mean|².
        mass: `(q,)`, Σ e.
        negative: `(q,)`, whether a weight is negative; `mean` and `squares` are undefined then.
    """

    weighted: Float[np.ndarray, "q width"]
    mean: Float[np.ndarray, "q width"]
    squares: Float[np.ndarray, " q"]
    mass: Float[np.ndarray, " q"]
    negative: Bool[np.ndarray, " q"]

    @property
    def fits_float32(self) -> bool:
        """Whether sums that were computed in float32 neither overflow nor vanish."""
        known = np.isfinite(self.weighted[:, 0]) & (self.squares > _SMALLEST_SQUARE) & (self.squares < np.inf)
        return bool((known | (self.mass == 0)).all())

    def read(self, table: pa.Table, like: Column, folded: bool, complete: bool) -> _Cells:
        """Return the values of a tile, and which are missing; a complete column of floats in its stored dtype."""
        column = table.column(like.name)
        if complete and like.kind == "number" and column.num_chunks == 1:
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.stored_numbers(chunk)
            if not chunk.null_count and cells.dtype.kind == "f":
                return cells, None
        return super().read(table, like, folded, complete)

    def rescale(self, factor: Float[np.ndarray, " q"]) -> AverageSums:
        weighted = np.asarray(rescale(self.weighted, factor[:, None]))
        return replace(self, weighted=weighted, squares=self.squares * factor, mass=self.mass * factor)

    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], first: int) -> AverageSums:
        # One query over plain numbers is accumulated in their own dtype, everything else in float64.
        dtype = np.result_type(weights, values) if len(weights) == 1 and values.ndim == 1 else np.dtype(np.float64)
        values = values.astype(dtype, copy=False)
        negative = self.negative | (weights.min(axis=1, initial=0.0) < 0)
        step = max(1, len(values)) if values.ndim == 2 else _FLOAT32_ROWS
        sums = self
        with np.errstate(over="ignore", invalid="ignore"):  # squares of values of 1e200
            for start in range(0, len(values), step):
                some = weights[:, start : start + step], values[start : start + step]
                part = _average(*some, negative)
                if dtype == np.float32 and not part.fits_float32:
                    part = _average(some[0], some[1].astype(np.float64), negative)
                sums = sums.merge(part)
        return sums

    def merge(self, other: AverageSums) -> AverageSums:
        if not (self.weighted.shape[1] and other.weighted.shape[1]):
            return self if self.weighted.shape[1] else other
        with np.errstate(over="ignore", invalid="ignore"):
            means = self.mass[:, None], self.mean, other.mass[:, None], other.mean
            mean, difference, weight = (np.asarray(each) for each in merge_means(*means))
            squares = self.squares + other.squares + np.square(difference).sum(axis=1) * weight[:, 0]
            negative, mass = self.negative | other.negative, self.mass + other.mass
            return AverageSums(self.weighted + other.weighted, mean, squares, mass, negative)

    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        aggregates = []
        for query, mass in enumerate(self.mass.tolist()):
            if self.negative[query] or not mass > 0:
                aggregates.append(average_aggregate(like, self.weighted[query] * scale[query], None))
                continue
            mean = self.mean[query]
            deviation = rounded_deviation(float(self.squares[query] / mass), mean)
            # The total weight after normalization is 1 up to rounding, unless the weights do not sum to 1.
            sum_of_weights = float(total[query, 0])
            value = mean if abs(sum_of_weights - 1.0) < 1e-9 else mean * sum_of_weights
            aggregates.append(average_aggregate(like, value, deviation))
        return aggregates


def _average(
    weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], negative: Bool[np.ndarray, " q"]
) -> AverageSums:
    """Return the sums of a few rows, computed in the dtype of the values."""
    width = 1 if values.ndim == 1 else values.shape[1]
    weighted, mean = np.zeros((len(weights), width)), np.zeros((len(weights), width))
    squares, mass = np.zeros(len(weights)), np.zeros(len(weights))
    workspace = np.empty(len(values), values.dtype) if values.ndim == 1 else None
    for query, own_weights in enumerate(weights):
        row = own_weights.astype(values.dtype, copy=False)  # of one query, which stays in the processor cache
        if workspace is None:
            rows = np.flatnonzero(row)
            row, cells = row[rows], values[rows]
        else:
            cells = values
        total, own = row.sum(), np.dot(row, cells)
        weighted[query], mass[query] = own, total
        if negative[query] or not total > 0:
            continue
        # Near the largest number the sum overflows, but not the mean.
        average = own / total if np.isfinite(own).all() else np.dot(row / total, cells)
        if workspace is None:
            mean[query] = average
            squares[query] = row @ np.square(cells - average).sum(axis=1)
            continue
        center = values.dtype.type(average)
        deviation = np.subtract(cells, center, out=workspace)
        # Rounding moves the center away from the mean; the first moment corrects for it.
        moment = float(np.dot(row, deviation)) / float(total)
        if not math.isfinite(moment):
            mean[query], squares[query] = center, math.inf
            continue
        np.multiply(deviation, deviation, out=deviation)
        square = float(np.dot(row, deviation))
        if math.isnan(square):  # of a row without weight whose square is infinite
            square = float(np.dot(row[row != 0], deviation[row != 0]))
        squares[query] = max(square - float(total) * moment * moment, 0.0)
        mean[query] = float(center) + moment
    return AverageSums(weighted, mean, squares, mass, negative)


@dataclass(eq=False)
class VoteSums(ValueSums):
    """The sums of the weights of each label, to which tiles are added in place.

    Attributes:
        labels: the number of each label.
        votes: `(q, n)`, the sum of e over the rows of each label; n is at least the number of labels.
        first: `(q, n)`, the first row of each label with non-zero weight, or `NO_ROW`.
        negative: `(q,)`, whether a weight is negative.
    """

    labels: dict[object, int]
    votes: Float[np.ndarray, "q n"]
    first: Int[np.ndarray, "q n"]
    negative: Bool[np.ndarray, " q"]

    def _cells(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return label_codes(column, self.labels)

    def rescale(self, factor: Float[np.ndarray, " q"]) -> VoteSums:
        votes = self.votes * factor[:, None]
        # Rows whose weight vanishes decide no tie, as in memory.
        return replace(self, votes=votes, first=np.where((votes == 0) & (self.votes != 0), NO_ROW, self.first))

    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], first: int) -> VoteSums:
        """Return these sums with the rows of a tile, whose values are numbers of labels."""
        queries, more = len(weights), len(self.labels) - self.votes.shape[1]
        if more > 0:
            # Grow to twice the size, so that many new labels do not copy the sums at every tile.
            more = max(more, self.votes.shape[1])
            self.votes = np.concatenate([self.votes, np.zeros((queries, more))], axis=1)
            self.first = np.concatenate([self.first, np.full((queries, more), NO_ROW)], axis=1)
        labels = self.votes.shape[1]
        for query in range(queries):
            self.votes[query] += np.bincount(values, weights=weights[query], minlength=labels)
            rows = first_rows(weights[query], values, labels)
            rows[rows < NO_ROW] += first
            np.minimum(self.first[query], rows, out=self.first[query])
        self.negative |= (weights < 0).any(axis=1)
        return self

    def merge(self, other: VoteSums) -> VoteSums:
        """Return the sums over the rows of both, of the labels with a row of non-zero weight."""
        labels: dict[object, int] = {}
        places = []
        for part in (self, other):
            known = np.flatnonzero((part.first[:, : len(part.labels)] < NO_ROW).any(axis=0))
            names = list(part.labels)
            numbers = [labels.setdefault(names[index], len(labels)) for index in known.tolist()]
            places.append((part, known, np.array(numbers, np.int64)))
        votes = np.zeros((len(self.votes), len(labels)))
        first = np.full(votes.shape, NO_ROW)
        for part, known, own in places:
            votes[:, own] += part.votes[:, known]
            first[:, own] = np.minimum(first[:, own], part.first[:, known])
        return VoteSums(labels, votes, first, self.negative | other.negative)

    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        labels = list(self.labels)
        votes, first = self.votes[:, : len(labels)] * scale, self.first[:, : len(labels)]
        each = zip(votes, first, total[:, 0].tolist(), self.negative.tolist(), strict=True)
        return [vote_aggregate(labels, *one) for one in each]


def value_sums(like: Column, queries: int, votes: bool = False, labels: dict[object, int] | None = None) -> ValueSums:
    """Return empty sums: averages of numbers, timestamps and vectors, votes of other cells.

    `labels` are the numbers of labels that are known.
    """
    zeros, none = np.zeros(queries), np.zeros(queries, bool)
    if votes or votes_by_kind(like):
        known = {} if labels is None else labels
        return VoteSums(known, np.zeros((queries, 0)), np.zeros((queries, 0), np.int64), none)
    return AverageSums(np.zeros((queries, like.width)), np.zeros((queries, like.width)), zeros, zeros, none)


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
        spread, across = (None, None) if deviation is None else _circular_deviations(value, column.period)
        return Aggregate(float(column.numbers(value)), spread, deviation=across)
    center = float(value[0])
    if column.kind == "number":
        return Aggregate(center, deviation, center=center, deviation=deviation)
    duration = None if deviation is None else column.duration(deviation)
    return Aggregate(column.timestamp(center), duration, center=center, deviation=deviation)


def _circular_deviations(mean: Float[np.ndarray, " 2"], period: float) -> tuple[float, float]:
    """Return the circular standard deviation of points on a circle with some mean, and that of the mean's direction.

    With the radius r and R = |mean| / r, they are r √(−2 log R) and r √((1 − R⁴) / 2) / R. The second one over √n is
    the standard error of the direction of n points of a wrapped normal distribution. Both are equal for small ones.

    Source: Mardia, Jupp (2000), Directional statistics, sections 2.3 and 4.8.
    """
    radius = period / (2 * np.pi)
    length = min(float(np.linalg.norm(mean)) / radius, 1.0)
    length = 1.0 if length > 1.0 - _ROUNDING * 10 else max(length, _ROUNDING)
    return float(radius * np.sqrt(-2.0 * np.log(length))), float(radius * np.sqrt((1.0 - length**4) / 2.0) / length)


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
    largest = votes.max(initial=0.0)
    # Sums of equal weights in another order differ by rounding.
    order = np.lexsort((first, -np.where(votes > largest * (1 - _VOTE_ROUNDING), largest, votes)))
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
        codes[place] = labels.setdefault(arrow_columns.to_python(column.source.slice(row, 1))[0], len(labels))
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
