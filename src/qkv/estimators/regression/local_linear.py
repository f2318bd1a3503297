"""Local linear regression: the weighted least-squares line through the rows near a query, evaluated at the query.

For weights w of the rows that sum to 1, with keys at the offsets d = key − query, the line a + b·d minimizes
Σ w (v − a − b·d)². With the means m = Σ w d and v̄ = Σ w v, and C = Σ w (d − m)(d − m)ᵀ,

    b = C⁻¹ Σ w (d − m) v        a = v̄ − b·m = Σ l v        l = w (1 − (d − m)·C⁻¹m)

where a is the answer, b its gradient, and l are the effective weights, which sum to 1 and can be negative. With
G = 1 + (d − m)·C⁻¹(d − m) and the weighted squares s² = Σ w (v − a − b·d)²,

    σ² = s² / (1 − Σ w² G)           variance of the values around the line, without bias if it is constant
    SE(a)² = σ² Σ l²                 SE(b)² = σ² Σ w² (C⁻¹(d − m))²
    ν = (1 − Σ w² G) / Σ w²          degrees of freedom, n − p − 1 for equal weights

Directions in which the keys near the query do not vary are left out of the line.

Source: Fan, Gijbels (1996), Local polynomial modelling and its applications, sections 2.3 and 3.2.

For the choice of a bandwidth, some rows are predicted from all other rows by a Gaussian of bandwidth h, h/√2, h/2 …
(see `bandwidth_errors`). The moments of the line are weighted sums of 1, v, x, v x and x x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qkv.core.partial import merge_means
from qkv.core.progress import Progress
from qkv.core.typing import Bool, Float, Int, Num
from qkv.estimators.regression.bandwidth import Bandwidth, column_means, no_errors, sample_factor, scott, square_unit
from qkv.estimators.regression.bandwidth_errors import LARGEST_EXPONENT, KernelSums
from qkv.estimators.regression.neighbor_blocks import draw_rows, separate_groups

_STEPS = 26
# The search ends this many bandwidths after the best.
_WORSE = 7
_MOST_LINE_PAIRS = 4 * 10**7
_MOST_TARGETS = 2000
# The comparison runs before every first answer, so it takes less: some 0.1 seconds.
_COMPARED_ROWS = 2000
_COMPARED_TARGETS = 400
_FEWEST_ROWS = 40
# Squared errors of values with variance 1 below this are rounding errors.
_ERROR_ROUNDING = 1e-18
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
    total = len(points) if total is None else total
    reason = targets if isinstance(targets, str) else no_errors(points, targets[:, :1])
    if isinstance(targets, str) or reason:
        return scott(total, points.shape[1], reason)
    values = targets[:, 0]
    count = min(_MOST_TARGETS, len(points), max(200, _MOST_LINE_PAIRS // len(points)))
    errors = _errors(points, values, draw_rows(len(points), count), groups, progress)
    means = errors.linear.mean(axis=1)
    # Ties go to the wider kernel, which gives a smoother function.
    best = int(np.argmin(np.maximum(means, _ERROR_ROUNDING)))
    value = float(errors.bandwidths[best]) * sample_factor(points, total)
    method = "local linear leave-one-out" + (f" at {count:,} rows" if count < len(points) else "")
    with np.errstate(over="ignore", under="ignore"):  # the errors of huge values are infinite
        square = float(np.square(errors.deviation))
    tried = tuple(zip(errors.bandwidths.tolist(), (means * square).tolist(), strict=True))
    baseline = float(np.square(_standardized(values, groups)[0]).mean()) * square
    return Bandwidth(value, method, len(points), float(means[best]) * square, baseline, tried, total)


def compare_fits(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, " rows"],
    groups: Int[np.ndarray, " rows"] | None = None,
) -> FitComparison | None:
    """Return the leave-one-out errors of both fits, from at most 2,000 rows; None for fewer than 40 rows.

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
    if len(points) < _FEWEST_ROWS or not np.ptp(values) > 0:
        return None
    rows = np.sort(draw_rows(len(points), _COMPARED_ROWS))
    points, values = points[rows], values[rows]
    groups = None if groups is None else groups[rows]
    errors = _errors(points, values, draw_rows(len(rows), _COMPARED_TARGETS), groups, None)
    mean = errors.mean[np.argmin(errors.mean.mean(axis=1))]
    linear = errors.linear[np.argmin(errors.linear.mean(axis=1))]
    better = mean - linear
    clear = better.mean() > max(_CLEAR_SHARE * mean.mean(), _CLEAR_ERRORS * better.std() / np.sqrt(len(better)))
    roots = [float(np.sqrt(each.mean())) * errors.deviation for each in (mean, linear)]
    return FitComparison(roots[0], roots[1], len(better), bool(clear))


def _standardized(
    values: Float[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"] | None
) -> tuple[Float[np.ndarray, " rows"], float]:
    """Return values relative to their mean, or to that of their group, in units of their deviation."""
    if groups is not None:
        counts = np.maximum(np.bincount(groups), 1)
        values = values - (np.bincount(groups, values) / counts)[groups]
    else:
        values = values - column_means(values)
    unit = square_unit(np.abs(values).max(axis=None, keepdims=True)).item()
    deviation = float((values / unit).std()) * unit or 1.0
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
    apart = points if groups is None else separate_groups(points, groups, 2 * np.sqrt(2 * LARGEST_EXPONENT) * widest)
    near = KernelSums(apart, _features(points, values), targets)
    predicted, errors, averages = np.zeros((2, len(near.rows))), list[np.ndarray](), list[np.ndarray]()
    for number, sums in enumerate(near.series(widest, _STEPS, progress)):
        # Without neighbors, a row is predicted as at the next wider bandwidth, or by the mean of all, which is 0.
        predicted = np.where(sums[:, 0] > 0, _predict(sums, points[near.rows]), predicted)
        errors.append(np.square(predicted - values[near.rows]))
        averages.append(errors[-1].mean(axis=1))
        if (number - np.argmin(averages, axis=0) >= _WORSE).all():
            break
    every = np.array(errors)
    bandwidths = widest * 2.0 ** (-np.arange(len(every)) / 2)
    return _Errors(bandwidths, every[:, 0], every[:, 1], deviation)


def _features(
    points: Float[np.ndarray, "rows width"], values: Float[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows features"]:
    """Return the columns 1, v, x, v x and x x, whose weighted sums are the moments of a line."""
    rows, columns = np.triu_indices(points.shape[1])
    squares = points[:, rows] * points[:, columns]
    return np.concatenate([np.ones((len(points), 1)), values[:, None], points, values[:, None] * points, squares], 1)


def _predict(sums: Float[np.ndarray, "t features"], own: Float[np.ndarray, "t width"]) -> Float[np.ndarray, "2 t"]:
    """Return the mean and the value of the line at each of some points, from the sums of features."""
    width = own.shape[1]
    mass = sums[:, :1]
    means = sums / np.where(mass > 0, mass, 1.0)
    center, at = means[:, 1], means[:, 2 : 2 + width]
    cross = means[:, 2 + width : 2 + 2 * width] - center[:, None] * at
    squares, (rows, columns) = np.empty((len(sums), width, width)), np.triu_indices(width)
    squares[:, rows, columns] = squares[:, columns, rows] = means[:, 2 + 2 * width :]
    covariance = squares - at[:, :, None] * at[:, None, :]
    offset = np.where(mass > 0, at - own, 0.0)
    inverse, _, reasons = spanned_inverse(offset, covariance)
    slope = np.einsum("qij,qj->qi", inverse, offset)
    line = np.where(reasons.any(axis=0), center, center - (slope * cross).sum(axis=1))
    return np.stack([center, line])


# Directions with a variance below this part of the largest are left out.
_SINGULAR = 1e-10
# The query is outside the span of the keys if it is farther away than this part of their deviation.
_OUTSIDE = 3e-5
# Squared rounding errors of an offset relative to its length.
_ROUNDING = 1e-24
# Smaller residuals are rounding errors of the sums.
_RESIDUAL_ROUNDING = 1e-12

ONE_KEY = "the rows near the query have one distinct key"
COLLINEAR = "the keys near the query are collinear, and the query is not on their line"
ONE_SIDE = "all rows near the query lie on one side of it"
BEYOND = "a line through the rows near the query leaves the range of times"
WEAK = "a line through the rows near the query is less certain than one row"
PARTIAL = "the keys near the query vary in {rank} of {width} directions, and no slope is known in the others"


@dataclass(frozen=True)
class LocalMoments:
    """Weighted sums over rows for each query, which merge. Columns of x are the offsets d, the last is the value.

    Attributes:
        mass, mean: Σ w, and the weighted mean of x.
        products: Σ w (x − mean) (x − mean)ᵀ.
        squares, first, second: Σ w², Σ w² d and Σ w² d dᵀ.
    """

    mass: Float[np.ndarray, " q"]
    mean: Float[np.ndarray, "q n"]
    products: Float[np.ndarray, "q n n"]
    squares: Float[np.ndarray, " q"]
    first: Float[np.ndarray, "q width"]
    second: Float[np.ndarray, "q width width"]

    @classmethod
    def of(
        cls, weights: Float[np.ndarray, "q rows"], rows: Num[np.ndarray, "rows n"], at: Float[np.ndarray, "q width"]
    ) -> LocalMoments:
        """Return the sums over some rows, which consist of coordinates and a value, for queries at some coordinates."""
        q, width = at.shape
        shapes = (q,), (q, width + 1), (q, width + 1, width + 1), (q,), (q, width), (q, width, width)
        out = cls(*map(np.zeros, shapes))
        for query, row in enumerate(weights):
            some = np.flatnonzero(row)
            if not len(some):
                continue
            w, x = row[some].astype(np.float64), rows[some].astype(np.float64)
            x[:, :-1] -= at[query]
            out.mass[query] = mass = w.sum()
            out.mean[query] = mean = w @ x / mass
            offset, square, d = x - mean, w * w, x[:, :-1]
            with np.errstate(over="ignore", invalid="ignore"):  # squares of values of 1e200
                out.products[query] = (w[:, None] * offset).T @ offset
            out.squares[query] = square.sum()
            out.first[query] = square @ d
            out.second[query] = (square[:, None] * d).T @ d
        return out

    def rescale(self, factor: Float[np.ndarray, " q"]) -> LocalMoments:
        """Return the sums with all weights multiplied by a factor for each query."""
        square = np.square(factor)
        return LocalMoments(
            self.mass * factor,
            self.mean,
            self.products * factor[:, None, None],
            self.squares * square,
            self.first * square[:, None],
            self.second * square[:, None, None],
        )

    def merge(self, other: LocalMoments) -> LocalMoments:
        """Return the sums over the rows of both, which must be disjoint."""
        with np.errstate(over="ignore", invalid="ignore"):
            means = self.mass[:, None], self.mean, other.mass[:, None], other.mean
            mean, difference, weight = map(np.asarray, merge_means(*means))
            between = difference[:, :, None] * difference[:, None, :] * weight[:, :, None]
            products = self.products + other.products + between
        squares = self.squares + other.squares, self.first + other.first, self.second + other.second
        return LocalMoments(self.mass + other.mass, mean, products, *squares)


@dataclass(frozen=True)
class LocalFits:
    """The lines of several queries.

    Attributes:
        value: the answers a.
        gradient, gradient_error: b and its standard error; NaN where it is not known.
        spread: s.
        noise: σ.
        rows: 1 / Σ l², the effective number of rows.
        degrees: ν.
        intercept, slope: such that l = w (intercept − slope · d).
        notes: why the answer is the weighted mean, or which slopes are not known; empty otherwise.
    """

    value: Float[np.ndarray, " q"]
    gradient: Float[np.ndarray, "q width"]
    gradient_error: Float[np.ndarray, "q width"]
    spread: Float[np.ndarray, " q"]
    noise: Float[np.ndarray, " q"]
    rows: Float[np.ndarray, " q"]
    degrees: Float[np.ndarray, " q"]
    intercept: Float[np.ndarray, " q"]
    slope: Float[np.ndarray, "q width"]
    notes: tuple[str, ...]

    def weights(
        self, index: int, weights: Float[np.ndarray, " rows"], offsets: Float[np.ndarray, "rows width"]
    ) -> Float[np.ndarray, " rows"]:
        """Return the effective weights l of rows for the query `index`."""
        return np.asarray(weights * (self.intercept[index] - offsets @ self.slope[index]))


def fit_rows(
    weights: Float[np.ndarray, "q rows"],
    key: Float[np.ndarray, "rows width"],
    query: Float[np.ndarray, "q width"],
    cells: Float[np.ndarray, " rows"],
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> LocalFits:
    """Return the line of each query through all rows; see `solve` for the limits.

    Example:
        >>> x = np.arange(5.0)
        >>> fits = fit_rows(np.full((1, 5), 0.2), x[:, None], np.array([[0.0]]), 3 + 2 * x)
        >>> fits.value.round(9), fits.gradient.round(9)
        (array([3.]), array([[2.]]))
    """
    return solve(LocalMoments.of(weights, np.column_stack([key, cells]), query), limits)


def spanned_inverse(
    mean: Float[np.ndarray, "q width"], covariance: Float[np.ndarray, "q width width"]
) -> tuple[Float[np.ndarray, "q width width"], Float[np.ndarray, "q width width"], Bool[np.ndarray, "3 q"]]:
    """Return C⁻¹ in the directions in which keys vary, the projection to them, and why there can be no line.

    Returns:
        The inverse, the projection, and three booleans for each query: there is one distinct key, the query is outside
        the span of the keys, and it is so far away from them that they lie on one side.
    """
    width = mean.shape[1]
    values, vectors = np.linalg.eigh(covariance)
    largest, length = values[:, -1:], np.square(mean).sum(axis=1, keepdims=True)
    varies = (values > _SINGULAR * largest) & (values > _ROUNDING * length) & (values > 0)
    inverse = np.where(varies, 1.0 / np.where(varies, values, 1.0), 0.0)
    along = np.einsum("qij,qi->qj", vectors, mean)
    one_key = ~varies.any(axis=1)
    outside = (~varies & (np.abs(along) > _OUTSIDE * np.sqrt(np.maximum(largest, 0)))).any(axis=1) & ~one_key
    # Gaussian weights at the edge of uniformly distributed keys have a distance of 1.3 √width.
    far = (np.square(along) * inverse).sum(axis=1) > (2.0 * np.sqrt(width) + 1.0) ** 2
    spanned = np.einsum("qij,qj,qkj->qik", vectors, inverse, vectors)
    projection = np.einsum("qij,qj,qkj->qik", vectors, varies.astype(np.float64), vectors)
    return spanned, projection, np.stack([one_key, outside, far & ~outside])


def solve(moments: LocalMoments, limits: tuple[float, float] = (-math.inf, math.inf)) -> LocalFits:
    """Return the line of each query from the moments of the rows.

    Where there is no line, where its variance is larger than that of one row, or where its value is not between the
    limits, the answer is the weighted mean.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        mass = np.where(moments.mass > 0, moments.mass, 1.0)
        m, center, products = moments.mean[:, :-1], moments.mean[:, -1], moments.products / mass[:, None, None]
        covariance, variance, cross = products[:, :-1, :-1], products[:, -1, -1], products[:, :-1, -1]
        covariance = np.where(np.isfinite(covariance).all(axis=(1, 2), keepdims=True), covariance, 0.0)
        inverse, projection, (one_key, outside, far) = spanned_inverse(m, covariance)
        square = np.square(mass)
        q0, q1, q2 = moments.squares / square, moments.first / square[:, None], moments.second / square[:, None, None]
        outer = q1[:, :, None] * m[:, None, :]
        second = q2 - outer - outer.transpose(0, 2, 1) + q0[:, None, None] * m[:, :, None] * m[:, None, :]
        slope = np.einsum("qij,qj->qi", inverse, m)
        first = q1 - q0[:, None] * m
        squares = q0 - 2 * (slope * first).sum(axis=1) + np.einsum("qi,qij,qj->q", slope, second, slope)
        weak = squares > 1.0 + 1e-9
        value = center - (slope * cross).sum(axis=1)
        beyond = (value < limits[0]) | (value > limits[1])
        fallback = one_key | outside | far | weak | beyond
        inverse = np.where(fallback[:, None, None], 0.0, inverse)
        slope = np.where(fallback[:, None], 0.0, slope)
        squares = np.where(fallback, q0, squares)
        gradient = np.einsum("qij,qj->qi", inverse, cross)
        residual = variance - np.einsum("qi,qij,qj->q", gradient, covariance, gradient)
        residual = np.where(residual > _RESIDUAL_ROUNDING * variance, residual, 0.0)
        residual = np.where(np.isfinite(variance), residual, np.nan)
        share = 1.0 - q0 - np.einsum("qij,qji->q", inverse, second)
        noise = np.sqrt(residual / np.where(share > 0, share, np.nan))
        spread_of_slope = np.einsum("qij,qjk,qki->qi", inverse, second, inverse)
        known = (np.einsum("qii->qi", projection) > 1.0 - 1e-6) & ~fallback[:, None]
        rows = 1.0 / np.where(squares > 0, squares, np.nan)
    return LocalFits(
        value=center - (gradient * m).sum(axis=1),
        gradient=np.where(known, gradient, np.nan),
        gradient_error=np.where(known, noise[:, None] * np.sqrt(np.maximum(spread_of_slope, 0.0)), np.nan),
        spread=np.sqrt(residual),
        noise=noise,
        rows=rows,
        degrees=share * (1.0 / np.where(q0 > 0, q0, np.nan)),
        intercept=1.0 + (slope * m).sum(axis=1),
        slope=slope,
        notes=_notes(projection, (one_key, outside, far, weak, beyond)),
    )


def _notes(
    projection: Float[np.ndarray, "q width width"], reasons: tuple[Bool[np.ndarray, " q"], ...]
) -> tuple[str, ...]:
    width = projection.shape[1]
    ranks = np.einsum("qii->q", projection).round().astype(int)
    notes = []
    for rank, *found in zip(ranks.tolist(), *(reason.tolist() for reason in reasons), strict=True):
        texts = [text for text, true in zip((ONE_KEY, COLLINEAR, ONE_SIDE, WEAK, BEYOND), found, strict=True) if true]
        partial = PARTIAL.format(rank=rank, width=width) if rank < width else ""
        notes.append(f"weighted mean, because {texts[0]}" if texts else partial)
    return tuple(notes)
