"""Calibration of prediction intervals on the leave-one-out errors of held-out rows, at no further fit.

Member m of an ensemble was not trained on its held-out rows. With e_i, the error of its prediction of row i from all
other rows, the interval at x is

    prediction(x) + κ g(x) [a, b]        z_i = e_i / g(x_i)

where g is the local scale of the errors (see `error_scale`), and a and b are conformal quantiles of z (see
`qkv.core.conformal`): ± the quantile of |z| at the level of the interval, and with many rows one for each end. If
several members hold out rows, the error of their mean is smaller than theirs by the factor

    κ² = 1 − (1 − 1/M) mean(s² / g²) / mean(z²)        s²: variance of the M predictions of a row

The quantiles were exact for one member if its held-out rows had no part in the choice of the step at which training
stopped and of the bandwidth.

Source: Barber, Candès, Ramdas, Tibshirani (2021), Predictive inference with the jackknife+ (cross-validation),
https://arxiv.org/abs/1905.02928.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from qkv.core.conformal import conformal_quantile
from qkv.core.typing import Float, Int
from qkv.estimators.error_scale import ErrorScale, fit_error_scale, soft_distance
from qkv.estimators.features import Features
from qkv.estimators.fitted_rows import FittedRows
from qkv.masks import Documents

__all__ = ["IntervalCalibration", "calibrate_intervals"]

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
        """Return κ a and κ b.

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
