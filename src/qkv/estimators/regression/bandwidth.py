"""Choice of the bandwidth of a Gaussian kernel by leave-one-out cross-validation.

    error(h) = mean over rows i of | v_i - sum_{j != i} K_h(x_i, x_j) v_j / sum_{j != i} K_h(x_i, x_j) |^2
    K_h(x, y) = exp(-|x - y|^2 / 2 h^2)

For one-hot values this is the Brier score. Of more than 4,000 rows, 1,000 are predicted by all bandwidths. Those that
are clearly worse than the best are dropped; 4,000 rows are predicted by the others, and as many as take half a second
by those that are not clearly worse then.

Of rows in groups, such as the days of each shop, each row is predicted from the other rows of its group. Values are
standardized by the mean and the deviation of their group, so that groups of small and large values count alike. The
candidates of a group are the bandwidths that are common to all groups, and those that would be tried for a table of
this group alone, which begin at twice the deviation of its own keys. With E_g(h), the sum of the squared errors of
group g, and M(h), their mean over the rows of all groups, group g has the bandwidth

    h_g = argmin over h of E_g(h) + c M(h)

so that groups without a clear minimum follow the others. M counts as much as c rows: c is the largest of 8, 4, 2, …
1/8, 0 with which the sum over all groups of E_g(h_g) is at most that of splitting the table by group,

    sum over g of min over the group's own candidates of E_g(h).

With c = 0 it always is, because the own candidates are among those of the group. Of a group of more than 4,000 rows,
1,000 are predicted by all bandwidths, 4,000 by those that are not clearly worse than the best, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from qkv.core.formatting import counted
from qkv.core.formatting import number as format_number
from qkv.core.progress import Progress
from qkv.core.typing import Float, Int
from qkv.core.untrusted_json import Fields
from qkv.estimators.regression.bandwidth_errors import (
    LARGEST_EXPONENT,
    MeanErrors,
    error_series,
    part_progress,
    series_widths,
)
from qkv.estimators.regression.neighbor_blocks import draw_rows, separate_groups

# Of more rows, some are predicted by all bandwidths, and more by those that are not clearly worse than the best, by so
# many standard errors of the difference. A hundred million pairs take half a second.
_ALL_TARGETS = 4000
_FIRST_TARGETS = 1000
_CLEARLY_WORSE = 3.0
_MOST_PAIRS = 10**8
_SHARED_ROWS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)
# Sums of float32 errors are equal within this factor.
_ROUNDING = 1e-9


def square_unit(largest: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return powers of two, divided by which numbers of some largest magnitudes have squares in the range of float64.

    Example:
        >>> square_unit(np.array([3e200, 1.0, 0.0])) / [3e200, 1, 1] > 0.5
        array([ True,  True,  True])
    """
    known = (largest > 0) & (largest < np.inf)
    return np.asarray(np.ldexp(1.0, np.where(known, np.frexp(largest)[1] - 1, 0)))


def column_means(values: Float[np.ndarray, " rows *width"]) -> Float[np.ndarray, "*width"]:
    """Return the mean of each column, also of numbers near the largest one, whose sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.asarray(values.mean(axis=0))
    return means if np.isfinite(means).all() else np.asarray((values / len(values)).sum(axis=0))


def choose_within_groups(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, "rows targets"],
    groups: Int[np.ndarray, " rows"],
    widest: float,
    total: int,
    progress: Progress | None = None,
) -> Bandwidth:
    """Return the common bandwidth of smallest error, and the factor of each group by which its bandwidth differs.

    The error is relative to the variance of each group, and the baseline is the error of the mean of each group.

    Args:
        points: standardized points.
        values: the values to predict; a category is given as one-hot columns.
        groups: the group of each row, from which alone it is predicted.
        widest: the widest common bandwidth.
        total: the number of rows of the table of which the points are a sample.
        progress: called as `progress("choosing a bandwidth", done, total)`.

    Example:
        >>> x, shop = np.tile(np.linspace(-1.7, 1.7, 100), 2), np.repeat([0, 1], 100)
        >>> y = np.where(shop, np.sin(20 * x), x)
        >>> chosen = choose_within_groups(x[:, None], y[:, None], shop, 2.0, 200)
        >>> chosen.grouped, chosen.error < 0.1 * chosen.baseline
        (True, True)
    """
    values, counts = _standardize(values, groups)
    some = counts > 1
    points, values, groups = points[some], values[some], groups[some]
    if len(points) < 3 or not values.any():
        return scott(total, points.shape[1], "fewer than three rows in groups of two or more")
    spreads, sizes = _spreads(points, groups), np.bincount(groups)
    sums: list[Float[np.ndarray, "steps groups"]] = []
    for number, scale in enumerate((np.ones(len(points)), spreads[groups])):
        scaled = separate_groups(points / scale[:, None], groups, 2 * np.sqrt(2 * LARGEST_EXPONENT) * widest)
        errors_of = partial(MeanErrors, scaled, values, others=counts[some] - 1)
        sums.append(_group_errors(errors_of, groups, widest, _MOST_PAIRS / 2, part_progress(progress, number, 2)))
    common, own = sums
    means = common.sum(axis=1) / len(points)
    # Ties go to the wider kernel, which gives a smoother function.
    best, widths = int(np.argmin(means)), series_widths(widest, len(means))
    candidates = np.concatenate(
        [np.tile(widths[:, None], len(sizes)), series_widths(widest, len(own))[:, None] * spreads]
    )
    every = np.concatenate(sums)
    # The mean error between two common bandwidths is interpolated in the logarithm of the bandwidth.
    shared = np.interp(-np.log2(candidates), -np.log2(widths), means)
    split = own.min(axis=0).sum()
    chosen = every.argmin(axis=0)
    for rows in _SHARED_ROWS:
        trial = (every + rows * shared).argmin(axis=0)
        if _at(every, trial).sum() <= split * (1 + _ROUNDING):
            chosen = trial
            break
    factors = _at(candidates, chosen) / widths[best]
    return Bandwidth(
        value=float(widths[best]) * sample_factor(points, total),
        method="leave-one-out",
        rows=len(points),
        error=float(_at(every, chosen).sum() / len(points)),
        baseline=float(np.square(values).sum(axis=1).mean()),
        tried=tuple(zip(widths.tolist(), means.tolist(), strict=True)),
        total=total,
        grouped=True,
        factors=tuple((int(group), float(factors[group])) for group in np.flatnonzero((factors != 1) & (sizes > 0))),
    )


def _group_errors(
    errors_of: Callable[[Int[np.ndarray, " t"] | None], MeanErrors],
    groups: Int[np.ndarray, " rows"],
    widest: float,
    most_pairs: float,
    progress: Progress | None,
) -> Float[np.ndarray, "steps groups"]:
    """Return the sum of the errors of each group at a series of bandwidths, estimated from a part of large groups."""
    sizes = np.bincount(groups)
    errors = errors_of(_drawn(groups, np.where(sizes > _ALL_TARGETS, _FIRST_TARGETS, sizes)))
    found, owners, low = error_series(errors, widest, progress), groups[errors.sums.rows], 0
    sums, large = _sums(found, owners, sizes), np.flatnonzero(sizes > _ALL_TARGETS)
    for most in (_ALL_TARGETS, len(groups)) if len(large) else ():
        ranges = [_candidates(found[:, owners == group]) for group in large]
        low, high = low + min(low for low, _ in ranges), low + max(high for _, high in ranges)
        start, rows = widest * 2.0 ** (-low / 2), np.where(sizes > _ALL_TARGETS, sizes, 0)
        share = min(1.0, most_pairs / max(errors.sums.near_rows(start), 1.0) / rows.sum())
        count = np.minimum(np.ceil(share * rows), most).astype(np.int64)
        if count.sum() < 2 * np.count_nonzero(rows[owners]):
            break
        errors = errors_of(_drawn(groups, count))
        found, owners = errors.errors(start, high - low), groups[errors.sums.rows]
        refined = _sums(found, owners, sizes)
        for group in large:
            # The other bandwidths keep their difference from the best.
            best = int(sums[low:high, group].argmin())
            sums[:, group] += refined[best, group] - sums[low + best, group]
            sums[low:high, group] = refined[:, group]
    return sums


def _candidates(found: Float[np.ndarray, "steps t"]) -> tuple[int, int]:
    """Return the first of the bandwidths that are not clearly worse than the best, and the one after the last."""
    worse = found - found[int(found.mean(axis=1).argmin())]
    least = np.flatnonzero(worse.mean(axis=1) <= _CLEARLY_WORSE * worse.std(axis=1) / np.sqrt(found.shape[1]))
    return int(least.min()), int(least.max()) + 1


def _sums(
    found: Float[np.ndarray, "steps t"], owners: Int[np.ndarray, " t"], sizes: Int[np.ndarray, " groups"]
) -> Float[np.ndarray, "steps groups"]:
    """Return the sums of the errors of each group, of which the predicted rows count as all rows."""
    share = sizes / np.maximum(np.bincount(owners, minlength=len(sizes)), 1)
    return np.stack([np.bincount(owners, row, len(sizes)) for row in found]) * share


def _at(matrix: Float[np.ndarray, "steps groups"], steps: Int[np.ndarray, " groups"]) -> Float[np.ndarray, " groups"]:
    """Return the element of each column in the row that `steps` names."""
    return np.asarray(np.take_along_axis(matrix, steps[None], axis=0)[0])


def _standardize(
    values: Float[np.ndarray, "rows targets"], groups: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows targets"], Int[np.ndarray, " rows"]]:
    """Return values relative to the mean and the deviation of their group, and the number of rows of each row's group.

    Values of a group in which all are equal become 0.
    """
    counts = np.bincount(groups)
    residuals, squares = _residuals(values, groups)
    deviations = np.sqrt(np.where(squares > 0, squares, np.inf))
    return residuals / deviations[groups][:, None], counts[groups]


def _spreads(points: Float[np.ndarray, "rows width"], groups: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " groups"]:
    """Return the standard deviation of the points of each group, over all columns; 1 if all are equal."""
    squares = _residuals(points, groups)[1] / points.shape[1]
    return np.asarray(np.sqrt(np.where(squares > 0, squares, 1.0)))


def _residuals(
    values: Float[np.ndarray, "rows width"], groups: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows width"], Float[np.ndarray, " groups"]]:
    """Return values relative to the mean of their group, and each group's mean squared residual."""
    count = np.maximum(np.bincount(groups), 1)
    values = values - values.mean(axis=0)  # squares of large, nearly equal values would hide their differences
    means = np.stack([np.bincount(groups, column) / count for column in values.T], axis=1)
    residuals = values - means[groups]
    squares = np.bincount(groups, np.square(residuals).sum(axis=1)) / count
    # Rounding leaves residuals of equal values.
    magnitude = np.bincount(groups, np.square(values).sum(axis=1)) / count
    return residuals, np.where(squares > 1e-24 * magnitude, squares, 0.0)


def _drawn(groups: Int[np.ndarray, " rows"], most: Int[np.ndarray, " groups"]) -> Int[np.ndarray, " t"] | None:
    """Return the rows that are predicted, at most `most` of each group, or None for all rows."""
    sizes = np.bincount(groups)
    if (sizes <= most).all():
        return None
    order = draw_rows(len(groups), len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    places = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[places < most[groups[order]]])


# The bandwidth at which a kernel smooths as much as a Gaussian of bandwidth 1: Marron and Nolan (1988),
# Canonical kernels for density estimation; the ratio of (R(K) / μ₂(K)²)^(1/5).
KERNEL_WIDTHS = {"laplace": 0.7398, "boxcar": 1.7401, "epanechnikov": 2.2138, "triangular": 2.4326}


@dataclass(frozen=True)
class Bandwidth:
    """A bandwidth in the units of the points, with the method by which it was chosen and its error.

    Attributes:
        value: the bandwidth.
        method: the method, in words.
        rows: the number of rows from which it was chosen.
        error: the mean squared leave-one-out error; None where no error was computed.
        baseline: the error of the mean of all values.
        tried: pairs of bandwidth and error.
        total: the number of rows of the table, which is larger if `rows` of them were drawn as a sample.
        grouped: whether rows were predicted within groups; errors are then relative to the variance of each group.
        factors: pairs of the index of a group and the factor of its bandwidth; other groups have the factor 1.
    """

    value: float
    method: str
    rows: int
    error: float | None = None
    baseline: float | None = None
    tried: tuple[tuple[float, float], ...] = ()
    total: int = 0
    grouped: bool = False
    factors: tuple[tuple[int, float], ...] = ()

    @classmethod
    def parse(cls, fields: Fields) -> Bandwidth:
        """Return the bandwidth that was saved as JSON values by `dataclasses.asdict`.

        Raises:
            DamagedError: a field is missing or impossible.
        """
        if fields.number("value") <= 0:
            raise fields.damaged("value", "a positive number")
        return cls(
            fields.number("value"),
            fields.text("method"),
            fields.integer("rows"),
            None if fields.get("error") is None else fields.number("error"),
            None if fields.get("baseline") is None else fields.number("baseline"),
            tuple((pair.number("first"), pair.number("second")) for pair in _pairs(fields, "tried")),
            fields.integer("total"),
            fields.boolean("grouped"),
            tuple((pair.integer("first"), pair.number("second")) for pair in _pairs(fields, "factors")),
        )


def _pairs(fields: Fields, name: str) -> list[Fields]:
    """Return each pair of a list as fields with the names `first` and `second`."""
    pairs = [item for item in fields.items(name) if isinstance(item, list) and len(item) == 2]
    if len(pairs) < len(fields.items(name)):
        raise fields.damaged(name, "a list of pairs")
    return [Fields({"first": first, "second": second}, f"{name} in {fields.name}") for first, second in pairs]


def scott(rows: int, width: int, reason: str) -> Bandwidth:
    """Return the bandwidth by Scott's rule for standardized points, `rows^(-1/(width + 4))`.

    Example:
        >>> round(scott(1000, 2, "the values are all different").value, 3)
        0.316
    """
    return Bandwidth(max(rows, 1) ** (-1.0 / (width + 4)), f"Scott's rule ({reason})", rows)


def sample_factor(points: Float[np.ndarray, "rows width"], total: int) -> float:
    """Return the factor by which the bandwidth of a table is narrower than that of a sample, as in Scott's rule."""
    return float((total / len(points)) ** (-1.0 / (points.shape[1] + 4)))


def no_errors(points: Float[np.ndarray, "rows width"], targets: Float[np.ndarray, "rows targets"]) -> str:
    """Return the reason why no leave-one-out errors tell bandwidths apart, or "" if they do."""
    if len(points) < 3:
        return "fewer than three rows"
    return "" if (targets != targets[0]).any() else "the values are all equal"


def choose_bandwidth(
    points: Float[np.ndarray, "rows width"],
    targets: Float[np.ndarray, "rows targets"] | str,
    progress: Progress | None = None,
    total: int | None = None,
    groups: Int[np.ndarray, " rows"] | None = None,
) -> Bandwidth:
    """Return the bandwidth with the smallest leave-one-out error among bandwidths that differ by factors of √2.

    If the points are a sample of a table, the chosen bandwidth is multiplied by (total / points)^(-1/(width + 4)) as
    in Scott's rule; `Bandwidth.method` then says so. The result is deterministic.

    Args:
        points: standardized points.
        targets: the values to predict, a category as one-hot columns; or why there are none, for Scott's rule.
        progress: called as `progress("choosing a bandwidth", done, total)`.
        total: the number of rows of the table of which the points are a sample; None if they are all rows.
        groups: the group of each row, from which alone it is predicted; None: all rows are one group.

    Example:
        >>> x = np.linspace(0, 6, 200)[:, None]
        >>> chosen = choose_bandwidth(x, np.sin(3 * x))
        >>> chosen.rows, chosen.value < 0.1
        (200, True)
    """
    total = len(points) if total is None else total
    reason = targets if isinstance(targets, str) else no_errors(points, targets)
    if isinstance(targets, str) or reason:
        return scott(total, points.shape[1], reason)
    unit = square_unit(np.abs(targets - column_means(targets)).max(axis=None, keepdims=True)).item()
    values, widest = targets / unit, 2.0 * np.sqrt(points.shape[1])
    if groups is not None:
        return choose_within_groups(points, values, groups, widest, total, progress)
    spread = values.std() or 1.0
    # Centered and scaled: float32 sums of large, nearly equal values would cancel.
    values = (values - values.mean(axis=0)) / spread
    errors_of, one_group = partial(MeanErrors, points, values), np.zeros(len(points), np.int64)
    means = _group_errors(errors_of, one_group, widest, _MOST_PAIRS, progress)[:, 0] / len(points)
    # Ties go to the wider kernel, which gives a smoother function.
    best = int(np.argmin(means))
    with np.errstate(over="ignore", under="ignore"):  # the errors of huge values are infinite
        scale = float(np.square(spread * unit))
    widths = series_widths(widest, len(means))
    value = float(widths[best]) * sample_factor(points, total)
    baseline = float(np.square(values).sum(axis=1).mean()) * scale
    tried = tuple((width, mean * scale) for width, mean in zip(widths.tolist(), means.tolist(), strict=True))
    return Bandwidth(value, "leave-one-out", len(points), float(means[best]) * scale, baseline, tried, total)


def method_text(chosen: Bandwidth, unit: str = "") -> str:
    """Return how a bandwidth was chosen, as the end of a sentence. Errors of values have a unit, such as " days"."""
    rows = counted(chosen.rows, "row", "rows")
    if chosen.total > chosen.rows:
        rows = f"a sample of {chosen.rows:,} of {chosen.total:,} rows, multiplied by Scott's factor"
    text = f"by {chosen.method} over {rows}"
    if chosen.error is None:
        return text
    error, baseline = format_number(chosen.error**0.5), format_number((chosen.baseline or 0.0) ** 0.5)
    if chosen.grouped:
        share = f"{error} of a group's deviation; {baseline} for the mean of each group"
        return f"{text} in groups of equal texts, categories and booleans: error {share}"
    return f"{text}: error {error}{unit} (root mean square; {baseline}{unit} for the mean of all)"
