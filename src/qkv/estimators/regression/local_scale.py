"""Scale of the residuals near a query, by which prediction intervals are wider where values scatter more.

For calibration rows at the points x_i with studentized residuals z_i (see `calibration`), the scale at x is

    log g(x) = Σ K_h(x, x_i) log |z_i| / Σ K_h(x, x_i)

The bandwidth h has the smallest leave-one-out error of log |z_i|. If this error is not smaller than that of the mean of
all by two standard errors of the difference, there is no local scale.

Source: Lei, G'Sell, Rinaldo, Tibshirani, Wasserman (2018), Distribution-free predictive inference for regression,
section 5.2 (locally weighted conformal inference).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qkv.core.typing import Float
from qkv.engine import attend
from qkv.estimators.regression.bandwidth_errors import MeanErrors, error_series, series_widths
from qkv.masks import AllowedPairs, Mask
from qkv.scores import Gaussian

# Fewer rows do not tell where values scatter more.
_FEWEST_ROWS = 100
# The number of standard errors by which the scale must be better than the mean of all.
_BETTER = 2.0
# Residuals below exp(−3) times the median count as that; rounded values have residuals of 0.
_FLOOR = 3.0


@dataclass(frozen=True, eq=False)
class LocalScale:
    """The scale of residuals as a function of the key.

    Attributes:
        points: the keys of the calibration rows.
        logs: the logarithms of their residuals, relative to the mean of all.
        bandwidth: the bandwidth of each coordinate.
    """

    points: Float[np.ndarray, "rows width"]
    logs: Float[np.ndarray, " rows"]
    bandwidth: Float[np.ndarray, " width"]

    def at(self, points: Float[np.ndarray, "q width"]) -> Float[np.ndarray, " q"]:
        """Return the scale at each of some points.

        Example:
            >>> scale = LocalScale(np.array([[0.0], [1.0]]), np.log([1.0, 4.0]), np.array([0.1]))
            >>> scale.at(np.array([[-1.0], [0.5], [9.0]])).round(9).tolist()
            [1.0, 2.0, 4.0]
        """
        return self._means(points)

    @cached_property
    def left_out(self) -> Float[np.ndarray, " rows"]:
        """The scale at each calibration row, from the others."""
        return self._means(self.points, AllowedPairs(~np.eye(len(self.points), dtype=bool)))

    def _means(self, points: Float[np.ndarray, "q width"], mask: Mask | None = None) -> Float[np.ndarray, " q"]:
        queries, keys = points / self.bandwidth, self.points / self.bandwidth
        logs = attend(queries, keys, self.logs[:, None], score=Gaussian(1.0), mask=mask)
        return np.asarray(np.exp(np.asarray(logs)[:, 0]))


def log_sizes(errors: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return the logarithms of the sizes of errors, less their mean. Infinite errors count as the largest one."""
    sizes = np.abs(errors)
    positive = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not positive.size:
        return np.zeros(sizes.shape)
    logs = np.log(np.clip(sizes, np.median(positive) * np.exp(-_FLOOR), positive.max()))
    return np.asarray(logs - logs.mean())


def fit_scale(points: Float[np.ndarray, "rows width"], residuals: Float[np.ndarray, " rows"]) -> LocalScale | None:
    """Return the scale of residuals as a function of the key, or None if they may scatter equally everywhere.

    Args:
        points: the keys of the calibration rows.
        residuals: their studentized residuals.

    Example:
        >>> x = np.random.default_rng(0).random((500, 1))
        >>> noise = np.random.default_rng(1).normal(size=500)
        >>> fit_scale(x, noise) is None
        True
        >>> scale = fit_scale(x, noise * (0.1 + x[:, 0]))
        >>> bool(4 < np.divide(*scale.at(np.array([[1.0], [0.0]]))) < 11)
        True
    """
    if np.isfinite(residuals).sum() < _FEWEST_ROWS:
        return None
    logs, deviation, count = log_sizes(residuals), points.std(axis=0), len(residuals)
    varies, spread = deviation > 0, logs.std()
    if not varies.any() or not spread > 0:
        return None
    deviation, values = np.where(varies, deviation, 1.0), logs[:, None] / spread
    targets = MeanErrors((points / deviation)[:, varies], values)
    widest = 2.0 * np.sqrt(np.count_nonzero(varies))
    errors = error_series(targets, widest)
    best = int(np.argmin(errors.mean(axis=1)))
    better = np.square(values[targets.sums.rows, 0] * (count / (count - 1))) - errors[best]
    if not better.mean() > _BETTER * better.std() / np.sqrt(count):
        return None
    width = series_widths(widest, len(errors))[best]
    return LocalScale(points, logs, np.where(varies, width * deviation, np.inf))
