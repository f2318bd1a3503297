"""A linear part of the trend in the units of the columns, for rows far from the others.

    t(x) = x S + …        x: the numbers of a row, divided by their standard deviations

The encoded numbers are limited to some spreads, so nothing can be extrapolated from them; x is limited to the range of
the fitted column and as far beyond it. Two ridge regressions are compared by their
left-out errors e₀ and e₁: on the encoded features, and on the numbers x and the categories. S are the slopes of x in
the second one, times the factor

    α = argmin Σ_i s_i (e₀ − α (e₀ − e₁))²        0 ≤ α ≤ 1

It is 0 if the mixture has not a smaller error than the first regression, or than the weighted mean of the values in
the encoded features: the latter are tables whose values are not linear in the columns at all. Each member of an
ensemble fits its slopes to its training rows, and learns the rest of the trend from the remainders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int
from qkv.estimators.analytic_gradient import EncodedRows
from qkv.estimators.effort import SMALL_TABLE
from qkv.estimators.leave_one_out import leave_one_out_loss
from qkv.estimators.ridge import fit_ridge, row_shares

__all__ = ["fit_linear_part"]

_MOST_ROWS, _MOST_COLUMNS, _MOST_FLAGS = 2048, 256, 128
"""Larger tables are represented by random rows; wider ones have no linear part, or one without categories."""
_LOCAL_ROWS = 512
_BANDWIDTHS = 2.0 ** np.arange(-4.0, 2.0)
_FLAGS_SCALE = np.float32(0.3)
_MOST_ERROR = 0.95
"""Largest error relative to the first regression in tables of 256 rows or more, which learn much besides."""


def fit_linear_part(
    numbers: Float[np.ndarray, "rows numbers"],
    encoded: EncodedRows,
    values: Float[np.ndarray, "rows outputs"],
    sample_weight: Float[np.ndarray, "rows 1"] | None,
    training: Int[np.ndarray, "members training"],
) -> Float[np.ndarray, "members numbers outputs"] | None:
    """Return S of each member, or None if no output has a linear part.

    Args:
        numbers: x of all rows.
        encoded: encoded features of all rows.
        values: values of all rows.
        sample_weight: weights of the rows; None means equal weights.
        training: indices of the training rows of each member.
    """
    count = numbers.shape[1]
    if not 0 < count <= _MOST_COLUMNS:
        return None
    rows = _some_rows(np.arange(len(values)))
    with ignore_numpy_warnings():
        designs = _designs(numbers[rows], encoded[rows])
        weights = None if sample_weight is None else sample_weight[rows]
        factors = _mixture(designs, encoded[rows], values[rows], weights)
        if not factors.any():
            return None
        slopes = np.zeros((len(training), count, values.shape[1]), np.float32)
        for member, own in enumerate(training):
            own = _some_rows(own)
            _, design = _designs(numbers[own], encoded[own])
            own_weights = None if sample_weight is None else sample_weight[own]
            slopes[member] = factors * fit_ridge(design, values[own], own_weights).slopes[:count]
    return slopes


def _some_rows(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    return rows if len(rows) <= _MOST_ROWS else np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False)


def _designs(numbers: Float[np.ndarray, "n numbers"], encoded: EncodedRows) -> list[Float[np.ndarray, "n columns"]]:
    """Return the columns of the two regressions: encoded features, and numbers, both with the categories."""
    flags = encoded.dense_flags
    flags = flags if flags.shape[1] <= _MOST_FLAGS or len(flags) < SMALL_TABLE else flags[:, :0]
    return [np.concatenate([each, flags], axis=1) for each in (encoded.numbers, numbers)]


def _mixture(
    designs: Sequence[Float[np.ndarray, "n columns"]],
    encoded: EncodedRows,
    values: Float[np.ndarray, "n outputs"],
    sample_weight: Float[np.ndarray, "n 1"] | None,
) -> Float[np.ndarray, " outputs"]:
    """Return α of each output."""
    first, second = (fit_ridge(each, values, sample_weight).errors for each in designs)
    change, mean_square = first - second, np.square(first).sum(axis=0)
    factors = (change * first).sum(axis=0) / np.maximum(np.square(change).sum(axis=0), 1e-300)
    factors = np.clip(factors, 0.0, 1.0)
    mixed = np.square(first - factors * change).sum(axis=0)
    better = mixed < mean_square * (_MOST_ERROR if len(values) >= SMALL_TABLE else 1.0)
    for output in np.flatnonzero(better):
        better[output] = mixed[output] < _local_error(encoded, values[:, [output]], sample_weight)
    return np.where(better, factors, 0.0)


def _local_error(
    encoded: EncodedRows, values: Float[np.ndarray, "n 1"], sample_weight: Float[np.ndarray, "n 1"] | None
) -> float:
    """Return the smallest mean squared leave-one-out error of weighted means of the values of at most 512 rows."""
    some = np.random.default_rng(0).permutation(len(values))[:_LOCAL_ROWS]
    keys = np.concatenate([encoded.numbers[some], _FLAGS_SCALE * encoded.dense_flags[some]], axis=1)
    share = row_shares(len(some), None if sample_weight is None else sample_weight[some]) * len(some)
    weights = None if sample_weight is None else share.astype(np.float32)
    return min(
        leave_one_out_loss(keys, values[some], None, np.array([0.5 / h**2], np.float32), weights, False).loss
        for h in _BANDWIDTHS
    )
