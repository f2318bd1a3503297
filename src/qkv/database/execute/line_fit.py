"""Answers on a line through the rows near a query: checks of the arguments, aggregates and effective weights."""

from __future__ import annotations

import math

import numpy as np

from qkv.core.typing import Float, Int
from qkv.database.execute.aggregates import Aggregate, LineFit, average_aggregate
from qkv.database.execute.top_rows import largest_weights
from qkv.database.execute.uncertainty import Precision
from qkv.database.io.formatting import number
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import (
    Comparison,
    DistanceComparison,
    MixedComparison,
)
from qkv.database.keys.coordinates import Coordinates, find_coordinates
from qkv.database.keys.local_linear import LocalFits
from qkv.database.keys.local_linear_search import compare_fits
from qkv.errors import OptionError
from qkv.normalizers.base import Normalizer
from qkv.scores.forms import SquaredDistance

__all__ = ["check_line", "comparison_note", "effective_evidence", "largest_effective", "line_aggregates"]


def check_line(comparison: Comparison, normalizer: Normalizer, value: Column) -> None:
    """Raise an `OptionError` if no line can be fitted to the values along the keys."""
    if find_coordinates(comparison) is None:
        names = ", ".join(column.name for column in comparison.key_columns) or "the key"
        raise OptionError(
            f"fit must be 'mean' for {names}, which is not compared as numbers or dates, got 'local-linear'. "
            "Omit fit, or choose a key of numbers and a score such as gaussian."
        )
    if value.kind not in ("number", "timestamp"):
        raise OptionError(
            f"fit must be 'mean' for the value {value.name}, which holds cells of kind {value.kind}, "
            "got 'local-linear'. Omit fit."
        )
    if normalizer.stochastic or not normalizer.sums_to_one:
        raise OptionError(
            f"normalizer must give weights that sum to 1 and do not depend on chance for fit 'local-linear', "
            f"got {normalizer}. Omit normalizer, or omit fit."
        )


def line_aggregates(fits: LocalFits, coordinates: Coordinates, column: Column) -> list[Aggregate]:
    """Return the aggregate of each query.

    Args:
        fits: the lines.
        coordinates: the coordinates, which give the unit of the gradient.
        column: the value column.
    """
    unit = 1.0 / column.units_per_day if column.kind == "timestamp" else 1.0
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
    """Return for each query the column indices of its weights of largest magnitude, −1 for 0, and these weights."""
    rows, heavy = largest_weights(np.abs(weights), top)
    if not weights.shape[1]:
        return rows, heavy
    return rows, np.take_along_axis(weights, np.maximum(rows, 0), axis=1) * (rows >= 0)


def _group_rows(comparison: MixedComparison, numbers: str) -> Int[np.ndarray, " rows"]:
    """Return the group of each row, in which all keys but the numbers are equal."""
    fields = [comparison.key[name] for name, _ in comparison.parts if name != numbers]
    # The keys of identifiers are rows of integers.
    cells = [map(tuple, field.tolist()) if field.ndim > 1 else field.tolist() for field in fields]
    codes: dict[object, int] = {}
    return np.array([codes.setdefault(row, len(codes)) for row in zip(*cells, strict=True)], np.int64)


def comparison_note(comparison: Comparison, value: Column) -> tuple[str, ...]:
    """Return a sentence if local linear regression predicts rows that are left out clearly better than the mean.

    Args:
        comparison: the comparison over some rows.
        value: the value column of the same rows.
    """
    coordinates = find_coordinates(comparison)
    if coordinates is None or value.kind not in ("number", "timestamp"):
        return ()
    groups = None
    if isinstance(comparison, MixedComparison):
        if any(column.kind == "vector" for _, part in comparison.parts for column in part.key_columns):
            return ()  # equal vectors are no groups
        groups = _group_rows(comparison, coordinates.field)
    elif not isinstance(comparison, DistanceComparison) or not (
        isinstance(form := comparison.score.form, SquaredDistance) and form.factor is not None
    ):
        return ()
    unit = value.units_per_day if value.kind == "timestamp" else 1.0
    found = compare_fits(coordinates.of(comparison.key), value.cells / unit, groups)
    if found is None or not found.clear:
        return ()
    days = " days" * (value.kind == "timestamp")
    return (
        f"local linear regression (fit local-linear) is clearly better: leave-one-out error {number(found.linear)} "
        f"against {number(found.mean)}{days} (root mean square over {found.rows:,} rows)",
    )
