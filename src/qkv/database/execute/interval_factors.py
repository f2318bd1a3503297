"""Calibration of prediction intervals by leave-one-out over the rows of a table.

For some rows i, the answer to the key of row i is computed without row i. With its mean and its standard deviation σ of
a new value (see `uncertainty`),

    z_i = (v_i − mean_i) z / (σ_i t(n_i − 1))

and the factors of intervals are g(x) times the conformal 5 % and 95 % quantiles of z_i / g(x_i), where g is the local
scale of z (see `local_scale`). Intervals are therefore as asymmetric as the values, and contain 90 % of new values on
average over the keys of the table, also where weights smooth over a slope of the values, which widens the spread, or
over values that scatter more at some keys than at others.

Source: Vovk, Gammerman, Shafer (2005), Algorithmic learning in a random world, section 2.3 (studentized residuals).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qkv.core.conformal import conformal_quantile
from qkv.core.ordering import row_groups
from qkv.core.tile import Tile
from qkv.core.typing import Float, Int
from qkv.database.execute.aggregates import AverageSums, rounded_deviation, value_sums
from qkv.database.execute.scan import exact_logits
from qkv.database.execute.uncertainty import Calibration, effective_rows, prediction_scale
from qkv.database.keys.comparisons import (
    Comparison,
    Coordinates,
    DistanceComparison,
    EqualityComparison,
    MixedComparison,
    SimilarityComparison,
    find_coordinates,
)
from qkv.encoders.columns import Column
from qkv.estimators.regression.local_linear import fit_rows
from qkv.estimators.regression.local_scale import LocalScale, fit_scale
from qkv.estimators.regression.neighbor_blocks import draw_rows, split_into_blocks
from qkv.normalizers.base import Normalizer
from qkv.scores import Exact

# With 2,000 rows, the standard error of the coverage is 0.7 %.
_MOST_ROWS = 2000
_MOST_PAIRS = 4 * 10**7
_WEIGHTS_AT_ONCE = 2 * 2**20
_NEIGHBORS_AT_ONCE = 64
_FEWEST_ROWS = 40
# Squares of deviations below this part of those with one more row are rounding errors of the difference.
_ROUNDING = 1e-9
# The mean of equal values differs from them by less than this part.
_MEAN_ROUNDING = 1e-14


def calibrate(comparison: Comparison, value: Column, normalizer: Normalizer, linear: bool = False) -> Calibration:
    """Return the factors of prediction intervals, or those of normal values if they cannot be estimated.

    They cannot be estimated from fewer than 40 rows with other rows near them, and are not for vectors, for texts that
    are compared together with other columns, and for normalizers that sample.
    """
    if not value.traits.on_line or len(value.cells) < _FEWEST_ROWS:
        return Calibration()
    if _compares_groups(comparison):
        return _factors(_group_residuals(comparison, value.cells))
    if normalizer.stochastic or not normalizer.sums_to_one or not _is_cheap(comparison):
        return Calibration()
    coordinates = find_coordinates(comparison)
    rows, residuals = _residuals(comparison, normalizer, value, coordinates if linear else None)
    valid = ~np.isnan(residuals)
    rows, residuals = rows[valid], residuals[valid]
    local = None if coordinates is None else fit_scale(coordinates.of(comparison.key[rows]), residuals)
    return _factors(residuals, local)


def _compares_groups(comparison: Comparison) -> bool:
    own_rows = isinstance(comparison, SimilarityComparison) and comparison.own_rows
    return own_rows or isinstance(comparison, EqualityComparison)


def _is_cheap(comparison: Comparison) -> bool:
    if isinstance(comparison, MixedComparison):
        return all(_is_cheap(part) or isinstance(part.score, Exact) for _, part in comparison.parts)
    return isinstance(comparison, DistanceComparison) and comparison.key_columns[0].kind != "vector"


def _group_residuals(comparison: Comparison, cells: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " n"]:
    """Return z of each row in a group of at least three rows with equal keys."""
    codes = row_groups(comparison.key)
    count = np.bincount(codes)[codes].astype(np.float64)
    deviation = cells - (np.bincount(codes, weights=cells) / np.bincount(codes))[codes]
    squares = np.bincount(codes, weights=np.square(deviation))[codes]
    others = np.maximum(count - 1.0, 1.0)
    # Without its row, the mean moves by deviation / others, and the squares by deviation² count / others.
    left = np.maximum(squares - np.square(deviation) * count / others, 0.0)
    spread = np.where(left > _ROUNDING * squares, np.sqrt(left / others), 0.0)
    found = _studentized(deviation * count / others, *_noise(spread, np.where(count >= 3, others, 1.0)), cells)
    return np.asarray(found[~np.isnan(found)])


def _residuals(
    comparison: Comparison, normalizer: Normalizer, value: Column, line: Coordinates | None
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the indices of a sample of the rows, and z of each of them."""
    count = len(value.cells)
    size = min(_MOST_ROWS, max(_FEWEST_ROWS, _MOST_PAIRS // count))
    sample = draw_rows(count, size)
    step = max(1, _WEIGHTS_AT_ONCE // count)
    parts: Sequence[Int[np.ndarray, " q"]] = [sample[i : i + step] for i in range(0, len(sample), step)]
    if isinstance(comparison, DistanceComparison):
        parts = split_into_blocks(comparison.key, min(step, _NEIGHBORS_AT_ONCE), sample).rows
    found = [_residuals_of(part, comparison, normalizer, value, line) for part in parts]
    return np.concatenate(parts), np.concatenate(found)


def _residuals_of(
    rows: Int[np.ndarray, " q"], comparison: Comparison, normalizer: Normalizer, value: Column, line: Coordinates | None
) -> Float[np.ndarray, " q"]:
    query = comparison.key[rows]
    if isinstance(comparison, DistanceComparison):
        near = comparison.rows_in_reach(query, normalizer, np.ones(len(value.cells), bool), 2, rows)
        if near is not None:
            comparison, value = replace(comparison, key=comparison.key[near]), value.take(near, with_source=False)
            rows = np.searchsorted(near, rows)
    logits = exact_logits(comparison, query)
    logits[np.arange(len(rows)), rows] = -np.inf
    weights, cells = np.asarray(normalizer.weights(logits, Tile.whole(*logits.shape))), value.cells[rows]
    if line is not None:
        fits = fit_rows(weights, line.of(comparison.key), line.of(query), value.cells)
        return _studentized(cells - fits.value, fits.noise, fits.rows, fits.degrees, cells)
    sums = value_sums(value, len(rows)).add(weights, value.cells, 0)
    assert isinstance(sums, AverageSums)
    variances = zip((sums.squares / np.where(sums.mass > 0, sums.mass, 1.0)).tolist(), sums.mean, strict=True)
    spread = np.array([rounded_deviation(*each) or 0.0 for each in variances])
    return _studentized(cells - sums.mean[:, 0], *_noise(spread, effective_rows(weights)), cells)


def _noise(
    spread: Float[np.ndarray, " q"], rows: Float[np.ndarray, " q"]
) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """Return σ, n and ν of weighted means from the spread and the effective number of rows."""
    degrees = rows - 1.0
    return np.asarray(spread * np.sqrt(rows / np.maximum(degrees, 1.0))), rows, degrees


def _studentized(
    residual: Float[np.ndarray, " q"],
    noise: Float[np.ndarray, " q"],
    rows: Float[np.ndarray, " q"],
    degrees: Float[np.ndarray, " q"],
    cells: Float[np.ndarray, " q"],
) -> Float[np.ndarray, " q"]:
    """Return the residuals of rows, in units of the scale of their prediction; NaN for rows without an interval.

    Where the spread is 0, the result is 0 for a residual that is a rounding error of the value, and infinite for
    others.
    """
    valid = (degrees >= 1.0) & ~np.isnan(noise)
    residual = np.where(np.abs(residual) > _MEAN_ROUNDING * np.abs(cells), residual, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = prediction_scale(noise, rows, degrees)
        return np.asarray(np.where(valid, np.where(residual == 0, 0.0, residual / scale), np.nan))


def _factors(residuals: Float[np.ndarray, " n"], local: LocalScale | None = None) -> Calibration:
    if local is not None:
        residuals = residuals / local.left_out
    # Where neighbors are often equal, many can be infinite; no multiple of a spread of 0 contains such values.
    infinite = np.isinf(residuals)
    if infinite.any() and infinite.mean() > 0.02:
        residuals = residuals[~infinite]
    count = len(residuals)
    if count < _FEWEST_ROWS:
        return Calibration()
    largest = np.abs(residuals[np.isfinite(residuals)]).max(initial=0.0)
    residuals = np.clip(residuals, -largest, largest)
    lower, upper = -conformal_quantile(-residuals, 0.95), conformal_quantile(residuals, 0.95)
    return Calibration(lower, upper, count, local)
