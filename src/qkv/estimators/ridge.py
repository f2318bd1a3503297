"""Ridge regression whose penalty has the smallest leave-one-out error, in closed form.

C = argmin Σ_i s_i (v_i − c − x_i C)² + λ ‖C‖²        left-out error of row i: (v_i − v̂_i) / (1 − H_ii)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.core.typing import Float

_PENALTIES = 10.0 ** np.arange(-6.0, 3.5, 0.5)
"""Values of λ per row, of columns with a variance of about 1."""
_MANY_ROWS = 256


class RidgeRegression(NamedTuple):
    """A fitted ridge regression.

    Attributes:
        slopes: C.
        errors: left-out errors, multiplied by the square root of the share of the row, so that squares sum to the mean
            squared error.
    """

    slopes: Float[np.ndarray, "columns outputs"]
    errors: Float[np.ndarray, "rows outputs"]


def row_shares(rows: int, sample_weight: Float[np.ndarray, "rows 1"] | None) -> Float[np.ndarray, "rows 1"]:
    """Return the sample weights divided by their sum, or equal weights if there are none."""
    return np.full((rows, 1), 1.0 / rows) if sample_weight is None else sample_weight / sample_weight.sum()


def fit_ridge(
    features: Float[np.ndarray, "rows columns"],
    values: Float[np.ndarray, "rows outputs"],
    sample_weight: Float[np.ndarray, "rows 1"] | None = None,
) -> RidgeRegression:
    """Return a ridge regression, each output with the penalty of its smallest leave-one-out error.

    Args:
        features: features of the rows, in similar units.
        values: values of the rows.
        sample_weight: weights of the rows; None means equal weights.
    """
    share = row_shares(len(features), sample_weight)
    root = np.sqrt(share)
    x = features.astype(np.float64)
    y = values.astype(np.float64)
    x = (x - (share * x).sum(axis=0)) * root
    y = (y - (share * y).sum(axis=0)) * root
    left, singular, right = _decompose(x)
    projected, squares = left.T @ y, left**2
    smallest = np.full(y.shape[1], np.inf)
    slopes, errors = np.zeros((x.shape[1], y.shape[1])), y.copy()
    for penalty in _PENALTIES:
        shrunk = singular**2 / (singular**2 + penalty)
        leverage = squares @ shrunk + share[:, 0]
        left_out = (y - left @ (shrunk[:, None] * projected)) / np.maximum(1.0 - leverage, 1e-6)[:, None]
        error = np.square(left_out).sum(axis=0)
        better = error < smallest
        smallest = np.where(better, error, smallest)
        errors[:, better] = left_out[:, better]
        factors = singular / (singular**2 + penalty)
        slopes[:, better] = (right.T @ (factors[:, None] * projected))[:, better]
    return RidgeRegression(slopes.astype(np.float32), errors)


def _decompose(
    x: Float[np.ndarray, "rows columns"],
) -> tuple[Float[np.ndarray, "rows rank"], Float[np.ndarray, " rank"], Float[np.ndarray, "rank columns"]]:
    """Return a singular value decomposition, of many rows from that of the columns' products.

    The latter takes a fifth of the time, and loses singular values below 1e-8, which the smallest penalty exceeds.
    """
    if len(x) < max(_MANY_ROWS, 2 * x.shape[1]):
        left, singular, right = np.linalg.svd(x, full_matrices=False)
        return left, singular, right
    squares, vectors = np.linalg.eigh(x.T @ x)
    singular = np.sqrt(np.maximum(squares, 0.0))
    known = singular > 1e-7 * singular.max(initial=0.0)
    singular, vectors = singular[known], vectors[:, known]
    return (x @ vectors) / singular, singular, vectors.T
