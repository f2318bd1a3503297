"""Local scale of the errors of predictions, which makes intervals wider where rows are hard to predict.

For held-out rows x_i with leave-one-out errors e_i, and l_i = log |e_i| less its mean,

    log g(x) = a p(x) + b u(x)
    p(x) = Σ K(x, x_i) l_i / (c + Σ K(x, x_i))         K: the Gaussian kernel of the metric, with bandwidth f h
    u(x) = log d(x)                                    d: soft distance of x to all fitted rows, in bandwidths
    d(x)² = 2 log(1 + 1 / Σ_j exp(−‖k(x) − k(x_j)‖² / 2h²))

p is the mean of the held-out rows near x, and 0 far away from them; f and c have the smallest leave-one-out error of l.
a and b are those of a ridge regression of l; a feature that hardly differs between the held-out rows gets no weight.
Beyond the distances of the held-out rows, g grows at least in proportion to d, so intervals widen away from the rows.
Members of an ensemble have separate p and u; log g is their mean.

Source: Lei, G'Sell, Rinaldo, Tibshirani, Wasserman (2018), Distribution-free predictive inference for regression,
section 5.2 (locally weighted conformal inference).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from qkv.core.typing import Float
from qkv.engine import observe
from qkv.masks import Documents, Mask
from qkv.readouts import LogSumExp
from qkv.scores import Gaussian

__all__ = ["ErrorScale", "fit_error_scale", "soft_distance"]

_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_PRIORS = (0.5, 2.0, 8.0, 32.0)
_RIDGE = 5.0
_LEAST_SPREAD = 0.1
"""Features whose standard deviation is much smaller say nothing of the errors; slopes fitted to them would be huge."""
# Fewer rows do not tell where errors are larger.
_FEWEST_ROWS = 20
# Errors below exp(−3) times the median count as that; rounded values have errors of 0.
_FLOOR = 3.0
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class ErrorScale:
    """The scale g of errors as a function of the keys of a row.

    Attributes:
        keys: keys of the held-out rows of each member, in units of the bandwidth.
        logs: l of each of them.
        factor: f.
        prior: c.
        center: means of p and u over the held-out rows.
        slopes: a and b.
        nearest, farthest: smallest and largest u of a held-out row.
    """

    keys: Float[Tensor, "members n width"]
    logs: Float[Tensor, "members n"]
    factor: float
    prior: float
    center: Float[np.ndarray, " 2"]
    slopes: Float[np.ndarray, " 2"]
    nearest: float
    farthest: float

    def at(
        self, keys: Float[Tensor, "members q width"], distance: Float[Tensor, "members q"]
    ) -> Float[np.ndarray, " q"]:
        """Return g for queries.

        Args:
            keys: keys of the queries, in units of the bandwidth.
            distance: their soft distances d, see `soft_distance`.
        """
        mean = _smooth(keys, self.keys, self.logs, self.factor, self.prior)
        log_distance = np.log(distance.numpy())
        features = np.stack([mean.numpy(), np.clip(log_distance, self.nearest, self.farthest)], axis=-1)
        beyond = np.maximum(log_distance - self.farthest, 0.0) * max(1.0, float(self.slopes[1]))
        return np.asarray(np.exp(((features - self.center) @ self.slopes + beyond).mean(axis=0)))


def fit_error_scale(
    keys: Float[Tensor, "members n width"],
    distance: Float[Tensor, "members n"],
    errors: Float[Tensor, "members n"],
) -> tuple[ErrorScale, Float[np.ndarray, "members n"]]:
    """Return the scale of the errors of held-out rows, and g of each of these rows without its own error.

    Args:
        keys: keys of the held-out rows of each member, in units of the bandwidth.
        distance: their soft distances to the other fitted rows.
        errors: their leave-one-out errors.
    """
    logs = torch.from_numpy(_log_sizes(errors.numpy()))
    log_distance = np.log(distance.numpy())
    nearest, farthest = float(log_distance.min()), float(log_distance.max())
    if logs.numel() < _FEWEST_ROWS or float(logs.std()) < _TINY:
        scale = ErrorScale(keys, logs, 1.0, 1.0, np.array([0.0, farthest]), np.zeros(2), nearest, farthest)
        return scale, np.ones(errors.shape)
    others = ~Documents(torch.arange(logs.shape[1]), torch.arange(logs.shape[1]))
    best = np.inf
    for factor in _FACTORS:
        means, totals = _kernel_means(keys, keys, logs, factor, others)
        for prior in _PRIORS:
            smoothed = means / (1.0 + prior / totals)
            loss = float((smoothed - logs).square().mean())
            if loss < best:
                best, chosen, mean = loss, (factor, prior), smoothed.numpy()
    features = np.stack([mean, log_distance], axis=-1).reshape(-1, 2)
    center, deviation = features.mean(axis=0), np.maximum(features.std(axis=0), _LEAST_SPREAD)
    standard, target = (features - center) / deviation, logs.numpy().ravel()
    inverse = np.linalg.inv(standard.T @ standard + _RIDGE * np.eye(2))
    slopes = inverse @ (standard.T @ target)
    leverage = np.einsum("ni,ij,nj->n", standard, inverse, standard) + 1.0 / len(standard)
    fitted = standard @ slopes
    left_out = fitted - leverage * (target - fitted) / (1.0 - leverage)
    scale = ErrorScale(keys, logs, *chosen, center, slopes / deviation, nearest, farthest)
    return scale, np.exp(left_out).reshape(errors.shape)


def soft_distance(
    queries: Float[Tensor, "members q width"],
    keys: Float[Tensor, "members k width"],
    mask: Mask | None = None,
) -> Float[Tensor, "members q"]:
    """Return the soft distance d of each query to the rows, in units of the bandwidth, as are the keys.

    It is near the distance to the closest row if that is large, and √(2 / number of rows nearby) if it is small.
    """
    _, total = _kernel_sums(queries, keys, keys[..., :1], 1.0, mask)
    return (2.0 * torch.nn.functional.softplus(-total)).clamp_min(_TINY).sqrt()


def _log_sizes(errors: Float[np.ndarray, "members n"]) -> Float[np.ndarray, "members n"]:
    """Return the logarithms of the sizes of errors, less their mean."""
    sizes = np.abs(errors)
    positive = sizes[sizes > 0]
    if not positive.size:
        return np.zeros(errors.shape)
    logs = np.log(np.maximum(sizes, np.median(positive) * np.exp(-_FLOOR)))
    return np.asarray(logs - logs.mean())


def _smooth(
    queries: Float[Tensor, "members q width"],
    keys: Float[Tensor, "members n width"],
    logs: Float[Tensor, "members n"],
    factor: float,
    prior: float,
) -> Float[Tensor, "members q"]:
    """Return p of each query."""
    means, totals = _kernel_means(queries, keys, logs, factor, None)
    return means / (1.0 + prior / totals)


def _kernel_means(
    queries: Float[Tensor, "members q width"],
    keys: Float[Tensor, "members n width"],
    logs: Float[Tensor, "members n"],
    factor: float,
    mask: Mask | None,
) -> tuple[Float[Tensor, "members q"], Float[Tensor, "members q"]]:
    """Return the weighted means of l, and the sums of the weights before they are normalized."""
    means, total = _kernel_sums(queries, keys, logs[..., None], factor, mask)
    return means[..., 0], total.exp().clamp_min(1e-300)


def _kernel_sums(
    queries: Float[Tensor, "members q width"],
    keys: Float[Tensor, "members n width"],
    values: Float[Tensor, "members n 1"],
    factor: float,
    mask: Mask | None,
) -> tuple[Float[Tensor, "members q 1"], Float[Tensor, "members q"]]:
    found = observe(queries, keys, values, score=Gaussian(factor), mask=mask, readouts=[LogSumExp()])
    return cast(Tensor, found.output), cast(Tensor, found.readouts[0])
