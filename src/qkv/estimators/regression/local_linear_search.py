"""Leave-one-out errors of local linear regression and of the weighted mean, over a series of bandwidths.

Some rows are predicted from all other rows by a Gaussian of bandwidth h, h/√2, h/2 …: since K_{h/√2} = K_h², one
exponential per pair of rows serves all of them. The moments of the line are sums of products with 1, v, x, v x and x x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Float, Int
from qkv.estimators.regression.bandwidth import Bandwidth, scott
from qkv.estimators.regression.local_linear import spanned_inverse

__all__ = ["FitComparison", "choose_linear_bandwidth", "compare_fits"]

_STEPS = 26
# The search ends this many bandwidths after the best.
_WORSE = 7
_MOST_PAIRS = 4 * 10**7
_MOST_TARGETS = 2000
_PAIRS_AT_ONCE = 2**20
# The comparison runs before every first answer, so it takes less: some 0.2 seconds.
_COMPARED_ROWS = 5000
_COMPARED_TARGETS = 400
_FEWEST_ROWS = 40
# Squared errors of values with variance 1 below this are rounding errors.
_ROUNDING = 1e-18
# The improvement of the squared error that counts as clear: a tenth, and three standard errors.
_CLEAR_SHARE = 0.1
_CLEAR_ERRORS = 3.0


@dataclass(frozen=True)
class FitComparison:
    """The leave-one-out errors of the weighted mean and of local linear regression, each with its best bandwidth.

    Attributes:
        mean, linear: root mean squared errors.
        rows: the number of rows that were predicted.
        clear: whether local linear regression is clearly better.
    """

    mean: float
    linear: float
    rows: int
    clear: bool


@dataclass(frozen=True)
class _Errors:
    """Squared leave-one-out errors, relative to the variance of the values.

    Attributes:
        bandwidths: the bandwidths, widest first.
        mean, linear: the errors of each bandwidth at each predicted row.
        deviation: the standard deviation of the values.
    """

    bandwidths: Float[np.ndarray, " steps"]
    mean: Float[np.ndarray, "steps rows"]
    linear: Float[np.ndarray, "steps rows"]
    deviation: float


def choose_linear_bandwidth(
    points: Float[np.ndarray, "rows width"],
    targets: Float[np.ndarray, "rows targets"] | str,
    progress: Progress | None = None,
    total: int | None = None,
    groups: Int[np.ndarray, " rows"] | None = None,
) -> Bandwidth:
    """Return the bandwidth with the smallest leave-one-out error of local linear regression.

    The arguments are those of `bandwidth.choose_bandwidth`. At most 2,000 rows are predicted.

    Example:
        >>> x = np.linspace(0, 6, 200)[:, None]
        >>> noise = np.random.default_rng(0).normal(size=(200, 1))
        >>> straight = choose_linear_bandwidth(x, x + noise).value
        >>> curved = choose_linear_bandwidth(x, np.sin(3 * x) + 0.1 * noise).value
        >>> straight > 1 > curved
        True
    """
    width = points.shape[1]
    total = len(points) if total is None else total
    if isinstance(targets, str):
        return scott(total, width, targets)
    if len(points) < 3:
        return scott(total, width, "fewer than three rows")
    values = targets[:, 0]
    if not values.std() > 0:
        return scott(total, width, "the values are all equal")
    count = min(_MOST_TARGETS, len(points), max(200, _MOST_PAIRS // len(points)))
    chosen = _draw(len(points), count)
    errors = _errors(points, values, chosen, groups, progress)
    means = errors.linear.mean(axis=1)
    # Ties go to the wider kernel, which gives a smoother function.
    best = int(np.argmin(np.maximum(means, _ROUNDING)))
    value = float(errors.bandwidths[best]) * (total / len(points)) ** (-1.0 / (width + 4))
    method = "local linear leave-one-out" + (f" at {count:,} rows" if count < len(points) else "")
    square = errors.deviation**2
    tried = tuple(zip(errors.bandwidths.tolist(), (means * square).tolist(), strict=True))
    baseline = float(np.square(_standardized(values, groups)[0]).mean()) * square
    return Bandwidth(value, method, len(points), float(means[best]) * square, baseline, tried, total)


def compare_fits(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, " rows"],
    groups: Int[np.ndarray, " rows"] | None = None,
) -> FitComparison | None:
    """Return the leave-one-out errors of both fits, from at most 5,000 rows; None for fewer than 40 rows.

    Args:
        points: the keys.
        values: the values.
        groups: the group of each row, from which alone it is predicted; None: all rows are one group.

    Example:
        >>> x, noise = np.split(np.random.default_rng(0).normal(size=(400, 3)), [2], axis=1)
        >>> found = compare_fits(x, x[:, 0] - x[:, 1] + 0.05 * noise[:, 0])
        >>> found.clear, found.linear < found.mean
        (True, True)
    """
    if len(points) < _FEWEST_ROWS or not values.std() > 0:
        return None
    rows = np.sort(_draw(len(points), min(len(points), _COMPARED_ROWS)))
    points, values = points[rows], values[rows]
    groups = None if groups is None else groups[rows]
    errors = _errors(points, values, _draw(len(rows), min(len(rows), _COMPARED_TARGETS)), groups, None)
    mean = errors.mean[np.argmin(errors.mean.mean(axis=1))]
    linear = errors.linear[np.argmin(errors.linear.mean(axis=1))]
    better = mean - linear
    clear = better.mean() > max(_CLEAR_SHARE * mean.mean(), _CLEAR_ERRORS * better.std() / np.sqrt(len(better)))
    roots = [float(np.sqrt(each.mean())) * errors.deviation for each in (mean, linear)]
    return FitComparison(roots[0], roots[1], len(better), bool(clear))


def _draw(rows: int, count: int) -> Int[np.ndarray, " count"]:
    return np.arange(rows) if count >= rows else np.random.default_rng(0).permutation(rows)[:count]


def _standardized(
    values: Float[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"] | None
) -> tuple[Float[np.ndarray, " rows"], float]:
    """Return values relative to their mean, or to that of their group, in units of their deviation."""
    if groups is not None:
        counts = np.maximum(np.bincount(groups), 1)
        values = values - (np.bincount(groups, values) / counts)[groups]
    else:
        values = values - values.mean()
    deviation = float(values.std()) or 1.0
    return values / deviation, deviation


def _errors(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, " rows"],
    targets: Int[np.ndarray, " t"],
    groups: Int[np.ndarray, " rows"] | None,
    progress: Progress | None,
) -> _Errors:
    """Return the errors at the rows `targets` for a series of bandwidths, which ends after the best of both fits."""
    width = points.shape[1]
    points = points - points.mean(axis=0)
    values, deviation = _standardized(values, groups)
    widest = 4.0 * np.sqrt(width)
    step = max(1, _PAIRS_AT_ONCE // len(points))
    parts = [targets[start : start + step] for start in range(0, len(targets), step)]
    # Rounded, so that all parts run over the same bandwidths: the first part finds where the search ends.
    steps = _STEPS
    found: list[Float[np.ndarray, "steps 2 t"]] = []
    features = _features(points, values)
    for number, part in enumerate(parts):
        errors = _part_errors(points, values, part, groups, features, widest, steps, ends=number == 0)
        steps = len(errors)
        found.append(errors)
        report(progress, "choosing a bandwidth", number + 1, len(parts))
    every = np.concatenate(found, axis=2)
    bandwidths = widest * 2.0 ** (-np.arange(steps) / 2)
    return _Errors(bandwidths, every[:, 0], every[:, 1], deviation)


def _features(
    points: Float[np.ndarray, "rows width"], values: Float[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows features"]:
    """Return the columns 1, v, x, v x and x x, whose weighted sums are the moments of a line."""
    squares = (points[:, :, None] * points[:, None, :]).reshape(len(points), -1)
    return np.concatenate([np.ones((len(points), 1)), values[:, None], points, values[:, None] * points, squares], 1)


def _part_errors(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, " rows"],
    targets: Int[np.ndarray, " t"],
    groups: Int[np.ndarray, " rows"] | None,
    features: Float[np.ndarray, "rows features"],
    widest: float,
    steps: int,
    ends: bool,
) -> Float[np.ndarray, "steps 2 t"]:
    """Return the errors of the mean and of the line, until both are past their best if `ends` is True."""
    own = points[targets]
    distances = np.zeros((len(targets), len(points)))
    for column, cell in zip(points.T, own.T, strict=True):
        distances += np.square(cell[:, None] - column)
    kernel = np.exp(distances * (-0.5 / widest**2))
    kernel[np.arange(len(targets)), targets] = 0.0
    if groups is not None:
        kernel *= groups[targets][:, None] == groups
    errors: list[Float[np.ndarray, "2 t"]] = []
    for number in range(steps):
        if number:
            with np.errstate(under="ignore"):
                np.multiply(kernel, kernel, out=kernel)
            kernel[kernel < 1e-150] = 0.0
        errors.append(_errors_of(kernel @ features, own, values[targets]))
        averages = np.array(errors).mean(axis=2)
        if ends and (len(errors) - 1 - averages.argmin(axis=0) >= _WORSE).all():
            break
    return np.array(errors)


def _errors_of(
    sums: Float[np.ndarray, "t features"], own: Float[np.ndarray, "t width"], values: Float[np.ndarray, " t"]
) -> Float[np.ndarray, "2 t"]:
    width = own.shape[1]
    mass = sums[:, :1]
    means = sums / np.where(mass > 0, mass, 1.0)
    center, at = means[:, 1], means[:, 2 : 2 + width]
    cross = means[:, 2 + width : 2 + 2 * width] - center[:, None] * at
    covariance = means[:, 2 + 2 * width :].reshape(-1, width, width) - at[:, :, None] * at[:, None, :]
    offset = np.where(mass > 0, at - own, 0.0)
    inverse, _, reasons = spanned_inverse(offset, covariance)
    slope = np.einsum("qij,qj->qi", inverse, offset)
    line = np.where(reasons.any(axis=0), center, center - (slope * cross).sum(axis=1))
    return np.asarray(np.square(np.stack([center, line]) - values))
