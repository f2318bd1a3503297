"""Answers on a line through the rows near a query: checks of the arguments, aggregates and effective weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from qkv.core.formatting import number
from qkv.core.ordering import row_groups
from qkv.core.typing import Bool, Float, Int, Num, Shaped
from qkv.database.execute.aggregates import Aggregate, LineFit, ValueSums, average_aggregate
from qkv.database.execute.entries import largest_weights
from qkv.database.execute.uncertainty import Precision
from qkv.database.keys.comparisons import Comparison, Coordinates, DistanceComparison, MixedComparison, find_coordinates
from qkv.encoders.columns import Column
from qkv.errors import OptionError
from qkv.estimators.regression.local_linear import LocalFits, LocalMoments, compare_fits, solve
from qkv.normalizers.base import Normalizer
from qkv.scores.forms import SquaredDistance


def check_line(comparison: Comparison, normalizer: Normalizer, value: Column) -> None:
    """Raise an `OptionError` if no line can be fitted to the values along the keys."""
    if find_coordinates(comparison) is None:
        names = ", ".join(column.name for column in comparison.key_columns) or "the key"
        raise OptionError(
            f"aggregate must be 'mean' for {names}, which is not compared as numbers or dates, got 'local-linear'. "
            "Omit aggregate, or choose a key of numbers and a score such as gaussian."
        )
    if not value.traits.on_line:
        raise OptionError(
            f"aggregate must be 'mean' for the value {value.name}, which holds cells of kind {value.kind}, "
            "got 'local-linear'. Omit aggregate."
        )
    if normalizer.stochastic or not normalizer.sums_to_one:
        raise OptionError(
            f"normalizer must give weights that sum to 1 and do not depend on chance for aggregate 'local-linear', "
            f"got {normalizer}. Omit normalizer, or omit aggregate."
        )


def line_aggregates(fits: LocalFits, coordinates: Coordinates, column: Column) -> list[Aggregate]:
    """Return the value and the gradient of each line at its query, as aggregates.

    Args:
        fits: the lines.
        coordinates: the coordinates, which give the unit of the gradient.
        column: the value column.
    """
    unit = 1.0 / column.unit
    aggregates, names = [], [key.name for key in coordinates.columns]
    for index, note in enumerate(fits.notes):
        spread = float(fits.spread[index])
        mean = average_aggregate(column, fits.value[index : index + 1], None if math.isnan(spread) else spread)
        precision = Precision.known(float(fits.noise[index]), float(fits.rows[index]), float(fits.degrees[index]))
        gradient, error = (
            dict(zip(names, (None if math.isnan(one) else one for one in slopes[index].tolist()), strict=True))
            for slopes in (fits.gradient * unit / coordinates.scale, fits.gradient_error * unit / coordinates.scale)
        )
        fit = LineFit(precision, gradient, error, note)
        aggregates.append(Aggregate(mean.value, mean.spread, {}, mean.center, mean.deviation, fit))
    return aggregates


@dataclass(eq=False)
class LineSums(ValueSums):
    """The moments of the coordinates and the values of rows relative to each query, to which a line is fitted.

    Attributes:
        comparison: the comparison.
        coordinates: the place of the numbers among the keys.
        columns: some rows of the key columns.
        at: `(q, width)`, the coordinates of the queries.
        moments: the moments.
        fits: the lines, which `aggregates` computes.
    """

    comparison: Comparison
    coordinates: Coordinates
    columns: Sequence[Column]
    at: Float[np.ndarray, "q width"]
    moments: LocalMoments
    fits: LocalFits = field(init=False)

    @classmethod
    def of_queries(
        cls,
        comparison: Comparison,
        coordinates: Coordinates,
        columns: Sequence[Column],
        query: Shaped[np.ndarray, "q ..."],
    ) -> LineSums:
        """Return empty sums for the query array of the engine."""
        at = coordinates.of(query)
        none = LocalMoments.of(np.zeros((len(at), 0)), np.zeros((0, at.shape[1] + 1)), at)
        return cls(comparison, coordinates, columns, at, none)

    def read(
        self, table: pa.Table, like: Column, folded: bool, complete: bool
    ) -> tuple[Num[np.ndarray, "rows n"], Bool[np.ndarray, " rows"] | None]:
        """Return the coordinates and the values of a tile as a matrix, and which values are missing, or None."""
        keys = [Column.from_table(table, column.name, folded, column) for column in self.columns]
        cells, missing = super().read(table, like, folded, complete)
        coordinates = self.coordinates.of(self.comparison.query_array(keys))
        return np.concatenate([coordinates, cells[:, None]], axis=1), missing

    def rescale(self, factor: Float[np.ndarray, " q"]) -> LineSums:
        return replace(self, moments=self.moments.rescale(factor))

    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows n"], first: int) -> LineSums:
        """Return the sums with the rows of a tile, whose matrix is that of `read`."""
        return replace(self, moments=self.moments.merge(LocalMoments.of(weights, values, self.at)))

    def merge(self, other: LineSums) -> LineSums:
        return replace(self, moments=self.moments.merge(other.moments))

    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        """Return the aggregate of each query, and store the lines in `fits`."""
        self.fits = solve(self.moments, like.limits)
        return line_aggregates(self.fits, self.coordinates, like)


def effective_evidence(
    fits: LocalFits,
    weights: Float[np.ndarray, "q rows"],
    key: Float[np.ndarray, "rows width"],
    query: Float[np.ndarray, "q width"],
) -> Float[np.ndarray, "q rows"]:
    """Return the effective weights of all rows, which can be negative."""
    effective = np.zeros_like(weights, dtype=np.float64)
    for index, row in enumerate(weights):
        rows = np.flatnonzero(row)
        effective[index, rows] = fits.weights(index, row[rows], key[rows] - query[index])
    return effective


def largest_effective(
    weights: Float[np.ndarray, "q rows"], top: int
) -> tuple[Int[np.ndarray, "q n"], Float[np.ndarray, "q n"]]:
    """Return the columns of the rows of largest effective weight, −1 for a weight of 0, and their weights."""
    rows, heavy = largest_weights(np.abs(weights), top)
    if not weights.shape[1]:
        return rows, heavy
    return rows, np.take_along_axis(weights, np.maximum(rows, 0), axis=1) * (rows >= 0)


def comparison_note(
    comparison: Comparison, value: Column, sample: Callable[[Comparison], tuple[Comparison, Column]]
) -> tuple[str, ...]:
    """Return a sentence if local linear regression predicts rows that are left out clearly better than the mean.

    Args:
        comparison: comparison of the keys.
        value: the values, of all rows or of a few of them.
        sample: function that returns the comparison and the values of a sample of the rows.
    """
    coordinates = find_coordinates(comparison)
    if coordinates is None or not value.traits.on_line:
        return ()
    comparison, value = sample(comparison)
    groups = None
    if isinstance(comparison, MixedComparison):
        if any(column.kind == "vector" for _, part in comparison.parts for column in part.key_columns):
            return ()  # equal vectors are no groups
        groups = row_groups(*(comparison.key[name] for name, _ in comparison.parts if name != coordinates.field))
    elif not isinstance(comparison, DistanceComparison) or not (
        isinstance(form := comparison.score.form, SquaredDistance) and form.factor is not None
    ):
        return ()
    found = compare_fits(coordinates.of(comparison.key), value.cells / value.unit, groups)
    if found is None or not found.clear:
        return ()
    days = " days" * (value.kind == "timestamp")
    return (
        f"local linear regression (aggregate local-linear) is clearly better: leave-one-out error "
        f"{number(found.linear)} against {number(found.mean)}{days} (root mean square over {found.rows:,} rows)",
    )
