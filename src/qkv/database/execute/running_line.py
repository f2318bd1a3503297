"""Sums over a store from which the line through the rows near each query follows, tile by tile.

For each query, the mean and the co-moments of offsets and values are merged as in `running_aggregates`, and

    Σ w²        Σ w² d        Σ w² d dᵀ

of the offsets d = key − query are added, so that no digits are lost where keys are far from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Float, Num, Shaped
from qkv.database.execute.aggregates import Aggregate
from qkv.database.execute.line_fit import line_aggregates
from qkv.database.execute.running_aggregates import StreamedAggregator
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.coordinates import Coordinates
from qkv.database.keys.local_linear import LocalFits, LocalMoments, solve

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RunningLine"]


class RunningLine(StreamedAggregator):
    """Aggregator that fits a line to the numbers or timestamps of a store for each query.

    Args:
        like: some rows of the value column.
        folded: whether texts are folded.
        comparison: the comparison.
        coordinates: the place of the numbers among the keys.
        columns: some rows of the key columns.
        query: the query array of the engine.

    Attributes:
        fits: the lines, which `aggregates` computes.
    """

    fits: LocalFits

    def __init__(
        self,
        like: Column,
        folded: bool,
        comparison: Comparison,
        coordinates: Coordinates,
        columns: Sequence[Column],
        query: Shaped[np.ndarray, "q ..."],
    ) -> None:
        super().__init__(like, folded)
        self.comparison, self.coordinates, self.columns = comparison, coordinates, columns
        self.at = coordinates.of(query)
        queries, self.width = self.at.shape
        both = self.width + 1
        self.sums = np.zeros((queries, 1))
        self.means = np.zeros((queries, both))
        self.products = np.zeros((queries, both, both))
        self.squares = np.zeros((queries, 1))
        self.first = np.zeros((queries, self.width))
        self.second = np.zeros((queries, self.width, self.width))

    def read(
        self, table: pa.Table, complete: bool
    ) -> tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]:
        """Return the coordinates and the values of a tile as a matrix, and which values are missing, or None."""
        keys = [Column.from_table(table, column.name, self.folded, column) for column in self.columns]
        value = Column.from_table(table, self.like.name, self.folded, self.like)
        coordinates = self.coordinates.of(self.comparison.query_array(keys))
        missing = value.missing if value.missing.any() else None
        return np.concatenate([coordinates, value.cells[:, None]], axis=1), missing

    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return column.cells

    def rescale(self, factor: Float[np.ndarray, "q 1"]) -> None:
        """Multiply the weights of all rows by a factor."""
        super().rescale(factor)
        self.products *= factor[:, :, None]
        square = np.square(factor)
        self.squares *= square
        self.first *= square
        self.second *= square[:, :, None]

    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        """Add the weights of the rows of a tile, whose matrix is that of `read`."""
        for query, row in enumerate(weights):
            rows = np.flatnonzero(row)
            if not len(rows):
                continue
            w, both = row[rows].astype(np.float64), values[rows].astype(np.float64)
            both[:, :-1] -= self.at[query]
            added, before = float(w.sum()), float(self.sums[query, 0])
            mean = w @ both / added
            offset = both - mean
            delta = mean - self.means[query]
            with np.errstate(over="ignore", invalid="ignore"):  # squares of values of 1e200
                self.products[query] += (w[:, None] * offset).T @ offset
                self.products[query] += np.outer(delta, delta) * (before / (before + added) * added)
            self.means[query] += delta * (added / (before + added))
            self.sums[query, 0] = before + added
            square, d = w * w, both[:, :-1]
            self.squares[query, 0] += square.sum()
            self.first[query] += square @ d
            self.second[query] += (square[:, None] * d).T @ d

    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        """Return the aggregate of each query, and store the lines in `fits`."""
        mass = np.where(self.sums > 0, self.sums, 1.0)
        products, square = self.products / mass[:, :, None], np.square(mass)
        self.fits = solve(
            LocalMoments(
                mean=self.means[:, :-1],
                covariance=products[:, :-1, :-1],
                center=self.means[:, -1],
                variance=products[:, -1, -1],
                cross=products[:, :-1, -1],
                squares=(self.squares / square)[:, 0],
                first=self.first / square,
                second=self.second / square[:, :, None],
            )
        )
        return line_aggregates(self.fits, self.coordinates, self.like)

    def effective(
        self, weights: Float[np.ndarray, "q rows"], coordinates: Float[np.ndarray, "rows width"]
    ) -> Float[np.ndarray, "q rows"]:
        """Return the effective weights of some rows from their weights and coordinates."""
        offsets = [coordinates - at for at in self.at]
        rows = [self.fits.weights(i, row, each) for i, (row, each) in enumerate(zip(weights, offsets, strict=True))]
        return np.stack(rows) if rows else np.zeros(weights.shape)
