"""Choice of bandwidths from a grid, by the leave-one-out error of rows that were not used for training.

    error(h) = mean over rows i of  error(y_i, t(x_i) + Σ_{j≠i} w_ij(h) (y_j − t(x_j)))
    error(ε) = (Σ_i −log Σ_{j≠i} ((1 − ε) w_ij + ε / (n − 1)) [y_j = y_i] − ½ log ε) / rows i        classes only

Every output has its own bandwidth. Each ensemble member is evaluated on its out-of-bag rows, which it was not
trained on, so the errors are unbiased. Distances are computed once for all bandwidths, in float64. A uniform share ε of
the weights limits the log loss of rows unlike all others. It is chosen after h, as if there were half a row more for
which the weights were of no use: few rows without an error do not show that there are none. An ensemble of M members
has ε / M: rows that mislead one of them need not mislead the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int
from qkv.estimators.analytic_gradient import class_losses
from qkv.kernels.numpy_blocks.logits import NATURAL

LOCAL_GRID = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Factors of a bandwidth that was learned from a sample of the rows."""
BATCH_GRID = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 1.0, 1.15, 1.35)
"""Factors of a bandwidth that was learned from the rows of a batch, which are farther apart than all rows."""
SMALL_GRID = (*BATCH_GRID, 2.0, 4.0, 8.0, 30.0)
"""Factors for small tables, up to equal weights of all rows, where the trend alone predicts best."""
UNIFORM_GRID = (0.0, 0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Uniform shares of the weights of classes."""
_NO_USE = 0.5
"""Rows for which the weights are of no use, besides those that are evaluated."""
WIDE_GRID = tuple(2.0 ** (1.0 - step / 2) for step in range(18))
"""Bandwidths in units of √width, used if no metric was trained."""
MIN_ROWS = 128
"""Minimum number of rows whose errors are compared."""
SEARCH_ROWS = 4096
"""Maximum number of rows whose errors are compared if no metric was trained."""
_BLOCK = 2**20
"""Number of distances of a block."""


class BandwidthSearch(NamedTuple):
    """The bandwidths that `search_bandwidth` chose, with their losses on out-of-bag rows.

    Attributes:
        bandwidth: chosen bandwidths `(members, bandwidths)`.
        loss: mean loss of each member at the chosen bandwidths, `(members,)`.
        uniform: uniform share of the weights of the ensemble; 0 for numbers.
    """

    bandwidth: Float[np.ndarray, "members bandwidths"]
    loss: Float[np.ndarray, " members"]
    uniform: float


def search_bandwidth(
    keys: Float[np.ndarray, "members k width"],
    trends: Float[np.ndarray, "members k outputs"] | None,
    values: Float[np.ndarray, "k outputs"],
    sample_weight: Float[np.ndarray, "k 1"] | None,
    out_of_bag: Int[np.ndarray, "members n"],
    bandwidth: Float[np.ndarray, "members bandwidths"],
    factors: Sequence[float],
    classification: bool,
    max_pairs: float,
    together: bool = False,
    shares: Sequence[float] = (0.0,),
) -> BandwidthSearch:
    """Return each bandwidth multiplied by the factor of smallest leave-one-out error, with its loss.

    Args:
        keys: keys of all rows.
        trends: trends of all rows, or None.
        values: values of all rows.
        sample_weight: weights of all rows; None means equal weights.
        out_of_bag: rows to evaluate; in large tables, only the first of them are used.
        bandwidth: bandwidths that the factors multiply.
        factors: the grid.
        classification: whether values are class indicators, with log loss instead of squared error.
        max_pairs: maximum number of pairs of rows per bandwidth of the grid, which limits the time of the search.
        together: whether all members use the factor that has the smallest mean error.
        shares: the grid of uniform shares, for classes only.
    """
    members, rows = keys.shape[:2]
    losses = []
    out_of_bag = out_of_bag[:, : max(MIN_ROWS, int(max_pairs / max(rows * members, 1)))]
    for member, own in enumerate(out_of_bag):
        trend = None if trends is None else trends[member]
        residuals = values if trend is None else values - trend
        with ignore_numpy_warnings():
            predicted = _left_out_means(keys[member], residuals, sample_weight, own, bandwidth[member], factors)
        predicted = predicted if trend is None else predicted + trend[own]
        weights = None if sample_weight is None else sample_weight[own, 0].astype(np.float64)
        if classification:
            prior = _left_out_prior(values, sample_weight, own)
            own_losses = [_class_losses(predicted, prior, values[own], weights, share) for share in shares]
            losses.append(np.stack(own_losses))
        else:
            losses.append(np.average(np.square(predicted - values[own]), axis=1, weights=weights)[None])
    all_losses = np.stack(losses, axis=2)  # (shares, factors, members, outputs), or one output for classes
    if together:
        all_losses = np.broadcast_to(all_losses.mean(axis=2, keepdims=True), all_losses.shape)
    best = all_losses[0].argmin(axis=0)
    least = np.take_along_axis(all_losses, best[None, None], axis=1)[:, 0].mean(axis=2)
    share = int((least.mean(axis=1) - _NO_USE * np.log(np.maximum(shares, 1e-9)) / out_of_bag.size).argmin())
    chosen = bandwidth * np.array(factors, bandwidth.dtype)[best]
    return BandwidthSearch(chosen, least[share], shares[share] / members)


def _left_out_prior(
    values: Float[np.ndarray, "k classes"], sample_weight: Float[np.ndarray, "k 1"] | None, own: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "n classes"]:
    """Return the frequencies of the classes in all other rows, for some rows."""
    weight = np.ones((len(values), 1)) if sample_weight is None else sample_weight.astype(np.float64)
    rest = weight.sum() - weight[own]
    prior: np.ndarray = ((weight * values).sum(axis=0) - weight[own] * values[own]) / np.where(rest > 0, rest, 1.0)
    return prior


def _class_losses(
    predicted: Float[np.ndarray, "factors n classes"],
    prior: Float[np.ndarray, "n classes"],
    values: Float[np.ndarray, "n classes"],
    weights: Float[np.ndarray, " n"] | None,
    share: float,
) -> Float[np.ndarray, "factors 1"]:
    """Return the log losses of predictions that are mixed with a share of the class frequencies."""
    mixed = (1.0 - share) * predicted + share * prior
    losses = class_losses(mixed, np.broadcast_to(values, mixed.shape))
    return np.average(losses, axis=1, weights=weights)[:, None]


def _left_out_means(
    keys: Float[np.ndarray, "k width"],
    residuals: Float[np.ndarray, "k outputs"],
    sample_weight: Float[np.ndarray, "k 1"] | None,
    own: Int[np.ndarray, " n"],
    bandwidth: Float[np.ndarray, " bandwidths"],
    factors: Sequence[float],
) -> Float[np.ndarray, "factors n outputs"]:
    """Return the weighted means of the residuals of all other rows for some rows, for each factor of the bandwidth."""
    one = np.ones((len(keys), 1), np.float32)
    weight = one if sample_weight is None else sample_weight.astype(np.float32)
    inverse = 0.5 / np.square(np.outer(factors, bandwidth.astype(np.float64)))
    scales = (-np.clip(inverse, 1e-30, 1e30)).astype(np.float32)
    parts = [slice(None)] if len(bandwidth) == 1 else [slice(number, number + 1) for number in range(len(bandwidth))]
    known = [np.concatenate([residuals[:, part] * weight, weight], axis=1) for part in parts]
    keys = keys.astype(np.float64)
    keys -= keys.mean(axis=0)
    squares = np.einsum("nd,nd->n", keys, keys)
    found = np.empty((len(factors), len(own), residuals.shape[1]), np.float32)
    step = max(1, _BLOCK // len(keys))
    buffer = np.empty((step, len(keys)), np.float32)
    for start in range(0, len(own), step):
        block = own[start : start + step]
        distances = _distances(keys, squares, block)
        weights = buffer[: len(block)]
        for scale, means in zip(scales, found[:, start : start + step], strict=True):
            for number, part in enumerate(parts):
                np.multiply(distances, scale[number], out=weights)
                NATURAL.apply_(weights)
                sums = weights @ known[number]
                means[:, part] = sums[:, :-1] / np.maximum(sums[:, -1:], np.finfo(np.float32).tiny)
    return found


def _distances(
    keys: Float[np.ndarray, "k width"], squares: Float[np.ndarray, " k"], own: Int[np.ndarray, " b"]
) -> Float[np.ndarray, "b k"]:
    """Return squared distances from some rows to all, less the smallest of each row, and infinite to the row itself."""
    distances = keys[own] @ keys.T
    distances *= -2.0
    distances += squares
    distances[np.arange(len(own)), own] = np.inf
    nearest = distances.min(axis=1, keepdims=True)
    distances -= np.where(np.isfinite(nearest), nearest, 0.0)
    return np.asarray(distances, np.float32)
