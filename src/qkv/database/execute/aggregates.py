"""Aggregation of the values of rows: weighted averages of numbers, timestamps and vectors, and votes of other values.

For weights w with total W:

    numbers    value = Σ w v                         spread = sqrt(Σ w (v − mean)² / W),  mean = Σ w v / W
    vectors    the same, with the length of v − mean
    votes      value = the v of largest weight       spread = sqrt(1 − Σ p²),  p = its share of the weight

The spread of a vote is that of the one-hot vectors: 0 where all agree, 0.71 where two are even, at most 1. Ties
go to the label of the first row with non-zero weight.

In memory, the engine averages `matrix`, and votes are counted from the weights. Over a store, `add` receives the
rows tile by tile; `_StreamedAverages` and `VoteCounts` hold the unfinished sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Float, Int, Num
from qkv.database.io import arrow_columns
from qkv.database.keys.columns import Column

if TYPE_CHECKING:
    import datetime as dt

    import pyarrow as pa

__all__ = ["Aggregate", "Aggregator", "StreamedAggregator", "aggregator_for", "streamed_aggregator_for"]

# Leave-one-out errors of more classes or wider vectors add little and cost in proportion.
_MOST_TARGETS = 16
# A variance is a difference of two sums: below this part of them float64 cannot distinguish it from 0.
_ROUNDING = 1e-13
# Rows that are summed in float32; longer sums lose digits.
_FLOAT32_ROWS = 2**16
_NO_ROW = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Aggregate:
    """The weighted average or the vote over the values of a table for one query, with its spread.

    Attributes:
        value: the average, or the label with the largest total weight.
        spread: the spread of the values; None where weights have both signs.
        probabilities: the shares of a vote, the largest first; empty for averages.
    """

    value: object
    spread: float | dt.timedelta | None
    probabilities: dict[object, float] = field(default_factory=dict)


class Aggregator(ABC):
    """Base class of aggregators, which compute the weighted average or the vote of a value column for each query."""

    votes = False
    """Whether `aggregate` needs the weights in addition to the averaged matrix."""

    def __init__(self, column: Column) -> None:
        self.column = column

    @abstractmethod
    def matrix(self) -> Float[np.ndarray, "rows n"]:
        """Return the values as a matrix `(rows, n)`, whose rows the engine sums with the weights of each query.

        Its last column is 1, so that the last column of the output is the total weight.
        """

    def restrict(self, selected: Bool[np.ndarray, " rows"]) -> Aggregator:
        """Return an aggregator for calls in which only the selected rows have weight."""
        return self

    @abstractmethod
    def targets(self, rows: Int[np.ndarray, " selected"]) -> Float[np.ndarray, "selected n"] | str:
        """Return the targets of the bandwidth search for some rows, or a text that says why there are none."""

    @abstractmethod
    def aggregate(
        self, output: Float[np.ndarray, "q n"], weights: Float[np.ndarray, "q rows"] | None
    ) -> list[Aggregate]:
        """Return the aggregate of each query, from the weighted sums of `matrix` and, for votes, the weights."""


def aggregator_for(column: Column) -> Aggregator:
    """Return an aggregator for a column: averages of numbers, timestamps and vectors, votes of other cells."""
    return _Averages(column) if column.kind in ("vector", "number", "timestamp") else _Votes(column)


class _Averages(Aggregator):
    """Aggregator that averages numbers, timestamps or vectors, with deviations measured from `center` or the mean."""

    def __init__(self, column: Column, center: float | Float[np.ndarray, " width"] | None = None) -> None:
        super().__init__(column)
        self.center = _mean(column.cells[~column.missing]) if center is None else center

    def restrict(self, selected: Bool[np.ndarray, " rows"]) -> Aggregator:
        """Return an aggregator that measures deviations from the mean of the selected rows."""
        return _Averages(self.column, _mean(self.column.cells[selected & ~self.column.missing]))

    def matrix(self) -> Float[np.ndarray, "rows n"]:
        """Return a matrix with the columns v, v − center, |v − center|² and 1, where v are the cells of each row."""
        return _moments(_filled(self.column, self.center), self.center)

    def targets(self, rows: Int[np.ndarray, " selected"]) -> Float[np.ndarray, "selected n"] | str:
        """Return the cells of some rows as a matrix of at most 16 columns, which have the largest variances."""
        cells = _as_matrix(self.column.cells[rows])
        widest = np.argsort(-cells.var(axis=0) if len(rows) else cells.sum(axis=0), kind="stable")[:_MOST_TARGETS]
        return np.asarray(cells[:, np.sort(widest)])

    def aggregate(
        self, output: Float[np.ndarray, "q n"], weights: Float[np.ndarray, "q rows"] | None
    ) -> list[Aggregate]:
        column, width = self.column, (output.shape[1] - 2) // 2
        aggregates = []
        for row in output:
            spread = _spread(row[width:-2], row[-2], row[-1])
            if column.kind == "vector":
                aggregates.append(Aggregate(row[:width], spread))
            elif column.kind == "number":
                aggregates.append(Aggregate(float(row[0]), spread))
            else:
                duration = None if spread is None else column.duration(spread)
                aggregates.append(Aggregate(column.timestamp(row[0]), duration))
        return aggregates


class _Votes(Aggregator):
    """Aggregator of texts, categories and booleans, in which each row votes for its value with its weight."""

    votes = True

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.labels: dict[object, int] = {}
        self.codes = _label_codes(column, self.labels)

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

    def aggregate(
        self, output: Float[np.ndarray, "q n"], weights: Float[np.ndarray, "q rows"] | None
    ) -> list[Aggregate]:
        assert weights is not None
        counts = VoteCounts(self.column, False, len(weights))
        counts.labels = self.labels
        counts.add(weights, self.codes, output[:, -1:])
        return counts.aggregates(np.ones((len(weights), 1)), output[:, -1:])


def _label_codes(column: Column, labels: dict[object, int]) -> Int[np.ndarray, " rows"]:
    """Return the integer code of the label in each cell of a column, and add new labels to `labels`."""
    # Original texts, not folded ones: λ and Λ are the same key, but different values.
    cells = column.cells.astype(bool) if column.original is None else column.original
    return np.array([labels.setdefault(cell, len(labels)) for cell in cells.tolist()], dtype=np.int64)


def _mean(cells: Float[np.ndarray, "rows ..."]) -> float | Float[np.ndarray, " width"]:
    mean: float | np.ndarray = cells.mean(axis=0) if len(cells) else np.zeros(cells.shape[1:])[()]
    return mean


def _as_matrix(cells: Float[np.ndarray, "rows ..."]) -> Float[np.ndarray, "rows width"]:
    return cells[:, None] if cells.ndim == 1 else cells


def _filled(column: Column, center: float | Float[np.ndarray, " width"]) -> Float[np.ndarray, "rows width"]:
    """Return the cells of a column as a matrix, with `center` in place of missing cells."""
    return np.where(column.missing[:, None], center, _as_matrix(column.cells))


def _moments(
    cells: Float[np.ndarray, "rows width"], center: float | Float[np.ndarray, " width"]
) -> Float[np.ndarray, "rows n"]:
    """Return a matrix with the columns v, v − center, |v − center|² and 1, where v are the cells of each row."""
    # The value itself is a column too: where one row has all the weight, the answer is exactly that cell.
    deviation = cells - center
    square = np.square(deviation)
    if square.shape[1] > 1:
        square = square.sum(axis=1, keepdims=True)
    return np.concatenate([cells, deviation, square, np.ones((len(cells), 1))], axis=1)


def _spread(deviation: Float[np.ndarray, " width"], square: np.floating, total: np.floating) -> float | None:
    """Return the spread for a query, or None if its total weight is not positive or its variance is negative."""
    if not total > 0:
        return None
    mean_square = square / total
    variance = mean_square - np.square(deviation / total).sum()
    # Weights of both signs can give a negative "variance": there is no spread then.
    if variance < -1e-6 * abs(mean_square):
        return None
    return float(np.sqrt(variance)) if variance > _ROUNDING * mean_square else 0.0


# -- over a store -------------------------------------------------------------------------------------------


class StreamedAggregator(ABC):
    """Base class of aggregators over a store, which keep running weighted sums of the values for each query.

    Args:
        like: some rows of the column, which give its kind, origin and width.
        folded: whether texts are folded.

    Attributes:
        sums: `(q, n)` sums, which the accumulator rescales when the running maximum changes.
    """

    sums: Float[np.ndarray, "q n"]

    def __init__(self, like: Column, folded: bool) -> None:
        self.like, self.folded = like, folded

    def read(
        self, table: pa.Table, complete: bool
    ) -> tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]:
        """Return the values of a tile, and a boolean array that marks missing values (None if there are none).

        Args:
            table: the rows of the tile.
            complete: whether it is known that no cell is missing.
        """
        column = Column.from_table(table, self.like.name, self.folded, self.like)
        return self._values(column), column.missing if column.missing.any() else None

    @abstractmethod
    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]: ...

    @abstractmethod
    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        """Add the weighted sums of values to the running sums. `total` is the sum of the weights of each query."""

    @abstractmethod
    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        """Return the aggregate of each query. `scale` multiplies its running sums, and `total` is its total weight."""


def streamed_aggregator_for(like: Column, folded: bool, mean: list[float], queries: int) -> StreamedAggregator:
    """Return an aggregator over a store: averages of numbers, timestamps and vectors, vote counts of other cells.

    Args:
        like: some rows of the column.
        folded: whether texts are folded.
        mean: the mean of all values; empty for votes.
        queries: number of queries.
    """
    if like.kind in ("number", "timestamp", "vector"):
        return _StreamedAverages(like, folded, mean, queries)
    return VoteCounts(like, folded, queries)


class _StreamedAverages(StreamedAggregator):
    """Aggregator that averages the numbers, timestamps or vectors of a store by running weighted sums."""

    def __init__(self, like: Column, folded: bool, mean: list[float], queries: int) -> None:
        super().__init__(like, folded)
        vector = np.array(mean or [0.0])
        # The spread does not depend on the center from which deviations are measured.
        self.center: float | np.ndarray = vector if like.kind == "vector" else float(vector[0])
        self.averages = _Averages(like, self.center)
        self.sums = np.zeros((queries, self.averages.matrix().shape[1]))
        self._workspace = np.empty(0)

    def read(
        self, table: pa.Table, complete: bool
    ) -> tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]:
        """Return the values of a tile, and a boolean array that marks missing values (None if there are none)."""
        column = table.column(self.like.name)
        # A complete column of floats is returned in its stored dtype with 1 axis, other columns as a float64 matrix.
        if complete and self.like.kind == "number" and column.num_chunks == 1:
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.stored_numbers(chunk)
            if not chunk.null_count and cells.dtype.kind == "f":
                return cells, None
        return super().read(table, complete)

    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return _filled(column, self.center)

    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        # One query over plain numbers is accumulated in their own dtype, everything else in float64.
        if values.ndim == 2 or len(weights) > 1:
            moments = _moments(_as_matrix(values).astype(np.float64, copy=False), self.center)
            self.sums += weights.astype(np.float64, copy=False) @ moments
            return
        dtype = np.result_type(weights, values)
        row, cells = weights[0].astype(dtype, copy=False), values.astype(dtype, copy=False)
        self._recenter()
        if len(self._workspace) < len(cells) or self._workspace.dtype != dtype:
            self._workspace = np.empty(len(cells), dtype)
        deviations = np.subtract(cells, dtype.type(self.center), out=self._workspace[: len(cells)])
        for start in range(0, len(cells), _FLOAT32_ROWS):
            some, deviation = row[start : start + _FLOAT32_ROWS], deviations[start : start + _FLOAT32_ROWS]
            self.sums[0, 0] += np.dot(some, cells[start : start + _FLOAT32_ROWS])
            self.sums[0, 1] += np.dot(some, deviation)
            np.multiply(deviation, deviation, out=deviation)
            self.sums[0, 2] += np.dot(some, deviation)
        self.sums[:, 3] += total[:, 0]

    def _recenter(self) -> None:
        """Set `center` to the running mean, so that float32 sums of squares stay accurate for small spreads."""
        first, second, total = self.sums[0, 1:]
        if not total > 0:
            return
        center = float(np.float32(self.center + first / total))
        shift = center - self.center
        self.sums[0, 1:3] = first - shift * total, second - 2 * shift * first + shift * shift * total
        self.center = center

    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        sums = self.sums.copy()
        if self.like.kind == "number" and len(sums) == 1:
            _, first, second, mass = sums[0]
            # Small deviations lose fewer digits, unless all weight is on one value, which is returned exactly.
            if mass > 0 and second * mass - first * first > 1e-9 * second * mass:
                sums[0, 0] = self.center * mass + first
        output = sums * scale
        output[:, -1] = total[:, 0]
        return self.averages.aggregate(output, None)


class VoteCounts(StreamedAggregator):
    """Aggregator that sums the weights of each label in a column of texts, categories or booleans of a store."""

    def __init__(self, like: Column, folded: bool, queries: int) -> None:
        super().__init__(like, folded)
        self.labels: dict[object, int] = {}
        self.sums = np.zeros((queries, 0))
        self.first_row = np.zeros((queries, 0), np.int64)
        self.any_negative = np.zeros(queries, bool)
        self.rows = 0

    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return _label_codes(column, self.labels)

    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        queries, more = len(weights), len(self.labels) - self.sums.shape[1]
        if more > 0:
            # Grow to twice the size, so that many new labels do not copy the sums at every tile.
            more = max(more, self.sums.shape[1])
            self.sums = np.concatenate([self.sums, np.zeros((queries, more))], axis=1)
            self.first_row = np.concatenate([self.first_row, np.full((queries, more), _NO_ROW)], axis=1)
        for query in range(queries):
            self.sums[query] += np.bincount(values, weights=weights[query], minlength=self.sums.shape[1])
            voting = np.flatnonzero(weights[query])[::-1]
            first = np.full(self.sums.shape[1], _NO_ROW)
            # Assigned in reverse order, so that the first row of each label remains.
            first[values[voting]] = voting + self.rows
            np.minimum(self.first_row[query], first, out=self.first_row[query])
        self.any_negative |= (weights < 0).any(axis=1)
        self.rows += len(values)

    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        labels = list(self.labels)
        return [
            self._winner(labels, self.sums[i, : len(labels)] * scale[i], i, float(total[i, 0]))
            for i in range(len(self.sums))
        ]

    def _winner(self, labels: list[object], votes: Float[np.ndarray, " labels"], query: int, total: float) -> Aggregate:
        order = np.lexsort((self.first_row[query, : len(labels)], -votes))
        winner = labels[int(order[0])] if len(order) else None
        if not total or self.any_negative[query]:
            return Aggregate(winner, None)
        shares = np.where(votes > 1e-290 * total, votes / total, 0.0)  # sums over blocks leave less of a weight of 0
        probabilities = {labels[code]: float(shares[code]) for code in order[:_MOST_TARGETS] if shares[code] > 0}
        disagreement = 1.0 - float(np.square(shares).sum())
        spread = np.sqrt(disagreement) if disagreement > _ROUNDING else 0.0
        return Aggregate(winner, float(spread), probabilities)
