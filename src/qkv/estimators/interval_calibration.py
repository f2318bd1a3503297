"""Calibration of prediction intervals on the leave-one-out errors of held-out rows, at no further fit.

Member m of an ensemble was not trained on its held-out rows. With e_i, the error of its prediction of row i from all
other rows, the interval at x is

    prediction(x) + κ g(x) [a, b]        z_i = e_i / g(x_i)

where g is the local scale of the errors (see below), and a and b are conformal quantiles of z (see
`qkv.core.conformal`): ± the quantile of |z| at the level of the interval, and with many rows one for each end. If
several members hold out rows, the error of their mean is smaller than theirs by the factor

    κ² = 1 − (1 − 1/M) mean(s² / g²) / mean(z²)        s²: variance of the M predictions of a row

The quantiles were exact for one member if its held-out rows had no part in the choice of the step at which training
stopped and of the bandwidth.

Source: Barber, Candès, Ramdas, Tibshirani (2021), Predictive inference with the jackknife+ (cross-validation),
https://arxiv.org/abs/1905.02928.

The local scale makes intervals wider where rows are hard to predict. For held-out rows x_i with leave-one-out errors
e_i, and l_i = log |e_i| less its mean,

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

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from qkv.core.conformal import conformal_quantile
from qkv.core.typing import Float, Int
from qkv.engine import observe
from qkv.estimators.features import Features
from qkv.estimators.fitted_rows import FittedRows
from qkv.estimators.regression.local_scale import log_sizes
from qkv.masks import Documents, Mask
from qkv.readouts import LogSumExp
from qkv.scores import Gaussian

_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_PRIORS = (0.5, 2.0, 8.0, 32.0)
_RIDGE = 5.0
_LEAST_SPREAD = 0.1
"""Features whose standard deviation is much smaller say nothing of the errors; slopes fitted to them would be huge."""
# Fewer rows do not tell where errors are larger.
_FEWEST_SCALE_ROWS = 20
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
        """Return g for queries."""
        means, totals = _kernel_means(keys, self.keys, self.logs, self.factor, None)
        mean = means / (1.0 + self.prior / totals)
        log_distance = np.log(distance.numpy())
        features = np.stack([mean.numpy(), np.clip(log_distance, self.nearest, self.farthest)], axis=-1)
        beyond = np.maximum(log_distance - self.farthest, 0.0) * max(1.0, float(self.slopes[1]))
        return np.asarray(np.exp(((features - self.center) @ self.slopes + beyond).mean(axis=0)))


def fit_error_scale(
    keys: Float[Tensor, "members n width"], distance: Float[Tensor, "members n"], errors: Float[Tensor, "members n"]
) -> tuple[ErrorScale, Float[np.ndarray, "members n"]]:
    """Return the scale of the errors of held-out rows, and g of each of these rows without its own error.

    Args:
        keys: keys of the held-out rows of each member, in units of the bandwidth.
        distance: their soft distances to the other fitted rows.
        errors: their leave-one-out errors.
    """
    logs = torch.from_numpy(log_sizes(errors.numpy()))
    log_distance = np.log(distance.numpy())
    nearest, farthest = float(log_distance.min()), float(log_distance.max())
    if logs.numel() < _FEWEST_SCALE_ROWS or float(logs.std()) < _TINY:
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
    queries: Float[Tensor, "members q width"], keys: Float[Tensor, "members k width"], mask: Mask | None = None
) -> Float[Tensor, "members q"]:
    """Return the soft distance d of each query to the rows, in units of the bandwidth, as are the keys.

    It is near the distance to the closest row if that is large, and √(2 / number of rows nearby) if it is small.
    """
    _, total = _kernel_sums(queries, keys, keys[..., :1], 1.0, mask)
    return (2.0 * torch.nn.functional.softplus(-total)).clamp_min(_TINY).sqrt()


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


_MOST_ROWS = 2000
_FEWEST_ROWS = 200
_MOST_PAIRS = 10**8
# With fewer rows, each end of an interval would depend on fewer than ten errors at a level of 90 %.
_ROWS_FOR_EACH_END = 200
_ROWS_OF_ONE = 20


@dataclass(frozen=True, eq=False)
class _OutputCalibration:
    """The calibration of one output.

    Attributes:
        scale: g.
        scores: z of the held-out rows of all members.
        weights: sample weights of these rows, or None.
        shrinkage: κ.
    """

    scale: ErrorScale
    scores: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"] | None
    shrinkage: float

    def deviation(self) -> float:
        """Return the standard deviation of an error where g = 1."""
        return self.shrinkage * math.sqrt(float(np.average(np.square(self.scores), weights=self.weights)))

    def ends(self, level: float) -> tuple[float, float]:
        """Return κ a and κ b, the ends of the interval of a level divided by g.

        Where the number of rows does not suffice for the level, the quantile is that of Student's t distribution, but
        not less than the largest score.
        """
        count = len(self.scores)
        tail = 0.5 * (1.0 + level)
        normal = float(stdtrit(count, tail)) * self.deviation()
        normal = max(normal, self.shrinkage * float(np.abs(self.scores).max()))

        def end(scores: Float[np.ndarray, " n"], probability: float) -> float:
            found = self.shrinkage * conformal_quantile(scores, probability, self.weights)
            return found if math.isfinite(found) else normal

        if count < _ROWS_FOR_EACH_END:
            size = end(np.abs(self.scores), level)
            return -size, size
        return -end(-self.scores, tail), end(self.scores, tail)


@dataclass(frozen=True, eq=False)
class IntervalCalibration:
    """Intervals and standard deviations of the errors of predictions, for each output.

    Attributes:
        rows: the fitted rows.
        outputs: the calibration of each output.
    """

    rows: FittedRows
    outputs: list[_OutputCalibration]

    def ends(self, features: Features, level: float) -> Float[np.ndarray, "2 queries outputs"]:
        """Return the lower and the upper end of each interval, relative to the prediction."""
        factors = np.array([each.ends(level) for each in self.outputs]).T
        return np.asarray(factors[:, None, :] * self._scales(features))

    def deviations(self, features: Features) -> Float[np.ndarray, "queries outputs"]:
        """Return the standard deviation of the error of each prediction."""
        return np.asarray(self._scales(features) * np.array([each.deviation() for each in self.outputs]))

    def _scales(self, features: Features) -> Float[np.ndarray, "queries outputs"]:
        parts = []
        for keys, _ in self.rows.query_blocks(features):
            columns = []
            for output, calibration in enumerate(self.outputs):
                h = _bandwidth(self.rows, output)
                distance = soft_distance(keys / h, self.rows.keys / h)
                columns.append(calibration.scale.at(keys / h, distance))
            parts.append(np.stack(columns, axis=-1))
        return np.concatenate(parts) if parts else np.empty((0, len(self.outputs)))


def calibrate_intervals(rows: FittedRows, held_out: Int[np.ndarray, "members n"]) -> IntervalCalibration | None:
    """Return the calibration, or None if there are no held-out rows or no other rows to predict them from.

    Args:
        rows: the fitted rows.
        held_out: indices of the rows that each member was not trained on; at most 2,000 of them are used, and fewer
            in tables of more than 50,000 rows.
    """
    members, count = rows.keys.shape[:2]
    most = min(_MOST_ROWS, max(_FEWEST_ROWS, _MOST_PAIRS // (count * members)))
    held_out = held_out[:, : max(1, most // members)]
    if held_out.shape[1] == 0 or count < 2:
        return None
    errors = torch.stack([rows.left_out_errors(torch.from_numpy(each)) for each in held_out])
    own = torch.arange(members)
    single = errors[own, own]  # (members, n, outputs)
    weights = None if rows.sample_weight is None else rows.sample_weight[held_out, 0].numpy().ravel()
    outputs = []
    for output in range(single.shape[2]):
        h = _bandwidth(rows, output)
        keys = rows.keys / h
        queries = keys[own[:, None], held_out]
        others = ~Documents(torch.from_numpy(held_out), torch.arange(count).expand(members, count))
        distance = soft_distance(queries, keys, others)
        scale, local = fit_error_scale(queries, distance, single[..., output])
        scores = single[..., output].numpy() / local
        shrinkage = 1.0
        if members > 1:
            spread = errors[..., output].var(dim=1).numpy() / np.square(local)
            shrinkage = _ensemble_factor(np.square(scores), spread, members)
        outputs.append(_OutputCalibration(scale, scores.ravel(), weights, shrinkage))
    return IntervalCalibration(rows, outputs)


def _ensemble_factor(
    squares: Float[np.ndarray, "members n"], spread: Float[np.ndarray, "members n"], members: int
) -> float:
    """Return κ, which is at least 1 / √M, as if all errors were independent.

    κ² is the mean of the estimate from the rows and of 1, with the weight of 20 rows: few rows do not show that members
    err independently.
    """
    if not squares.any():
        return 1.0
    part = (1.0 - 1.0 / members) * float(spread.mean() / squares.mean())
    found = max(1.0 - part, 1.0 / members)
    return math.sqrt((squares.size * found + _ROWS_OF_ONE) / (squares.size + _ROWS_OF_ONE))


def _bandwidth(rows: FittedRows, output: int) -> Float[Tensor, "members 1 1"]:
    return rows.bandwidth[:, min(output, rows.bandwidth.shape[1] - 1), None, None]
