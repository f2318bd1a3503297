"""Aggregation of the values of a store tile by tile, by running weighted sums for each query.

For each tile of rows and each query, with total weight W_t,

    mean_t = Σ w v / W_t        squares_t = Σ w |v − mean_t|²

and two parts with weights A and B and means a and b are merged by

    mean = (A a + B b) / (A + B)        squares = squares_a + squares_b + |a − b|² A B / (A + B)

so the spread loses no digits where the values of a query are small relative to those of other rows.

Source: Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Float, Num
from qkv.database.execute.aggregates import (
    Aggregate,
    average_aggregate,
    first_rows,
    label_codes,
    rounded_deviation,
    vote_aggregate,
)
from qkv.database.execute.partial_sums import NO_ROW, AverageSums, ValueSums, VoteSums
from qkv.encoders import arrow_columns
from qkv.encoders.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamedAggregator", "VoteCounts", "streamed_aggregator_for"]

# Rows that are summed in float32; longer sums lose digits.
_FLOAT32_ROWS = 2**16


class StreamedAggregator(ABC):
    """Base class of aggregators over a store, which keep running weighted sums of the values for each query.

    Args:
        like: some rows of the column, which give its kind, origin and width.
        folded: whether texts are folded.

    Attributes:
        sums: `(q, n)` sums, which `rescale` multiplies when the running maximum changes.
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

    def rescale(self, factor: Float[np.ndarray, "q 1"]) -> None:
        """Multiply the weights of all rows by a factor, when the running maximum changes."""
        self.sums *= factor

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

    def value_sums(self) -> ValueSums:
        """Return a copy of the running sums, which can be merged with those over other rows.

        Raises:
            TypeError: the class does not define `value_sums`.
        """
        raise TypeError(f"{type(self).__name__} must define value_sums to merge its sums. Override it in the class.")

    def restore(self, sums: ValueSums) -> None:
        """Replace the running sums by others.

        Raises:
            TypeError: the class does not define `restore`.
        """
        raise TypeError(f"{type(self).__name__} must define restore to merge its sums. Override it in the class.")


def streamed_aggregator_for(like: Column, folded: bool, queries: int, votes: bool = False) -> StreamedAggregator:
    """Return an aggregator over a store: averages of numbers, timestamps and vectors, vote counts of other cells.

    Args:
        like: some rows of the column.
        folded: whether texts are folded.
        queries: number of queries.
        votes: whether numbers and timestamps vote.
    """
    kind = _StreamedAverages if like.traits.averaged and not votes else VoteCounts
    return kind(like, folded, queries)


class _StreamedAverages(StreamedAggregator):
    """Aggregator that averages the numbers, timestamps or vectors of a store.

    The columns of `sums` are Σ w v, the squares of the module's equation, and the total weight.
    """

    def __init__(self, like: Column, folded: bool, queries: int) -> None:
        super().__init__(like, folded)
        self.width = like.width
        self.sums = np.zeros((queries, self.width + 2))
        self.means = np.zeros((queries, self.width))
        self.any_negative = np.zeros(queries, bool)
        self._workspace = np.empty(0)

    def read(
        self, table: pa.Table, complete: bool
    ) -> tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]:
        """Return the values of a tile, and a boolean array that marks missing values (None if there are none)."""
        column = table.column(self.like.name)
        # A complete column of floats is returned in its stored dtype, other columns as float64.
        if complete and self.like.kind == "number" and column.num_chunks == 1:
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.stored_numbers(chunk)
            if not chunk.null_count and cells.dtype.kind == "f":
                return cells, None
        return super().read(table, complete)

    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return column.cells

    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        # One query over plain numbers is accumulated in their own dtype, everything else in float64.
        if len(weights) > 1 or values.ndim == 2:
            weights, values = weights.astype(np.float64, copy=False), values.astype(np.float64, copy=False)
        least = weights.min(axis=1, initial=0.0)
        self.any_negative |= least < 0
        with np.errstate(over="ignore", invalid="ignore"):  # squares of values of 1e200
            for query, row in enumerate(weights):
                (self._add_vectors if values.ndim == 2 else self._add_numbers)(query, row, values)

    def _add_numbers(self, query: int, weights: Float[np.ndarray, " rows"], values: Num[np.ndarray, " rows"]) -> None:
        dtype = np.result_type(weights, values)
        weights, values = weights.astype(dtype, copy=False), values.astype(dtype, copy=False)
        size = min(len(values), _FLOAT32_ROWS)
        if len(self._workspace) < size or self._workspace.dtype != dtype:
            self._workspace = np.empty(size, dtype)
        for start in range(0, len(values), _FLOAT32_ROWS):
            row, cells = weights[start : start + _FLOAT32_ROWS], values[start : start + _FLOAT32_ROWS]
            total, weighted = float(row.sum()), float(np.dot(row, cells))
            if self.any_negative[query] or not total > 0:
                self.sums[query] += (weighted, 0.0, total)
                continue
            center = dtype.type(weighted / total)
            deviation = np.subtract(cells, center, out=self._workspace[: len(cells)])
            # Rounding moves the center away from the mean; the first moment corrects for it.
            first = float(np.dot(row, deviation)) / total
            np.multiply(deviation, deviation, out=deviation)
            squares = float(np.dot(row, deviation)) - total * first * first
            self._merge(query, np.array([float(center) + first]), max(squares, 0.0), total, np.array([weighted]))

    def _add_vectors(
        self, query: int, weights: Float[np.ndarray, " rows"], values: Float[np.ndarray, "rows width"]
    ) -> None:
        rows = np.flatnonzero(weights)
        weights, values = weights[rows], values[rows]
        total, weighted = float(weights.sum()), weights @ values
        if self.any_negative[query] or not total > 0:
            self.sums[query] += np.concatenate([weighted, [0.0, total]])
            return
        mean = weighted / total
        squares = float(weights @ np.square(values - mean).sum(axis=1))
        self._merge(query, mean, squares, total, weighted)

    def _merge(
        self,
        query: int,
        mean: Float[np.ndarray, " width"],
        squares: float,
        total: float,
        weighted: Float[np.ndarray, " width"],
    ) -> None:
        """Merge the mean and the squares of some rows of positive total weight with those of the earlier rows."""
        sums, before = self.sums[query], self.sums[query, -1]
        after = before + total
        delta = mean - self.means[query]
        # Relative to the heavier part, so that a row with all the weight gives its value to the last bit.
        heavier = mean - delta * (before / after) if total >= before else self.means[query] + delta * (total / after)
        self.means[query] = heavier
        sums[:-2] += weighted
        sums[-2] += squares + float(np.square(delta).sum()) * before / after * total
        sums[-1] = after

    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        aggregates = []
        for query, sums in enumerate(self.sums):
            if self.any_negative[query] or not sums[-1] > 0:
                aggregates.append(average_aggregate(self.like, sums[:-2] * scale[query], None))
                continue
            mean = self.means[query]
            deviation = rounded_deviation(float(sums[-2] / sums[-1]), mean)
            # The total weight after normalization is 1 up to rounding, unless the weights do not sum to 1.
            mass = float(total[query, 0])
            value = mean if abs(mass - 1.0) < 1e-9 else mean * mass
            aggregates.append(average_aggregate(self.like, value, deviation))
        return aggregates

    def value_sums(self) -> AverageSums:
        """Return a copy of the running sums."""
        sums = self.sums.copy()
        return AverageSums(sums[:, :-2], self.means.copy(), sums[:, -2], sums[:, -1], self.any_negative.copy())

    def restore(self, sums: ValueSums) -> None:
        """Replace the running sums by others."""
        assert isinstance(sums, AverageSums)
        if not sums.weighted.shape[1]:
            return  # those of no row
        self.width = sums.weighted.shape[1]
        self.sums = np.concatenate([sums.weighted, sums.squares[:, None], sums.mass[:, None]], axis=1)
        self.means, self.any_negative = sums.mean, sums.negative


class VoteCounts(StreamedAggregator):
    """Aggregator that sums the weights of each label in a column of texts, booleans or identifiers of a store."""

    def __init__(self, like: Column, folded: bool, queries: int) -> None:
        super().__init__(like, folded)
        self.labels: dict[object, int] = {}
        self.sums = np.zeros((queries, 0))
        self.first_row = np.zeros((queries, 0), np.int64)
        self.any_negative = np.zeros(queries, bool)
        self.rows = 0

    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return label_codes(column, self.labels)

    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        """Add the weights of the rows to those of their labels."""
        queries, more = len(weights), len(self.labels) - self.sums.shape[1]
        if more > 0:
            # Grow to twice the size, so that many new labels do not copy the sums at every tile.
            more = max(more, self.sums.shape[1])
            self.sums = np.concatenate([self.sums, np.zeros((queries, more))], axis=1)
            self.first_row = np.concatenate([self.first_row, np.full((queries, more), NO_ROW)], axis=1)
        labels = self.sums.shape[1]
        for query in range(queries):
            self.sums[query] += np.bincount(values, weights=weights[query], minlength=labels)
            first = first_rows(weights[query], values, labels)
            first[first < NO_ROW] += self.rows
            np.minimum(self.first_row[query], first, out=self.first_row[query])
        self.any_negative |= (weights < 0).any(axis=1)
        self.rows += len(values)

    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        """Return the vote of each query."""
        labels = list(self.labels)
        return [
            vote_aggregate(
                labels,
                self.sums[query, : len(labels)] * scale[query],
                self.first_row[query, : len(labels)],
                float(total[query, 0]),
                bool(self.any_negative[query]),
            )
            for query in range(len(self.sums))
        ]

    def value_sums(self) -> VoteSums:
        """Return a copy of the running sums of the labels with a row of non-zero weight."""
        count = min(len(self.labels), self.sums.shape[1])
        seen = np.flatnonzero((self.first_row[:, :count] < NO_ROW).any(axis=0))
        labels = list(self.labels)
        own = tuple(labels[index] for index in seen.tolist())
        return VoteSums(own, self.sums[:, seen], self.first_row[:, seen], self.any_negative.copy())

    def restore(self, sums: ValueSums) -> None:
        """Replace the running sums by others."""
        assert isinstance(sums, VoteSums)
        self.labels = {label: index for index, label in enumerate(sums.labels)}
        self.sums, self.first_row, self.any_negative = sums.votes, sums.first, sums.negative
