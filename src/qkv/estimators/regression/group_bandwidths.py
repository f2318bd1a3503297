"""Bandwidths within groups of rows, such as the days of each shop, by leave-one-out cross-validation.

Each row is predicted from the other rows of its group. Values are standardized by the mean and the deviation of their
group, so that groups of small and large values count alike. The candidates of a group are the bandwidths that are
common to all groups, and those that would be tried for a table of this group alone, which begin at twice the
deviation of its own keys. With E_g(h), the sum of the squared errors of group g, and M(h), their mean over the rows of
all groups, group g has the bandwidth

    h_g = argmin over h of E_g(h) + c M(h)

so that groups without a clear minimum follow the others. M counts as much as c rows: c is the largest of 8, 4, 2, …
1/8, 0 with which the sum over all groups of E_g(h_g) is at most that of splitting the table by group,

    sum over g of min over the group's own candidates of E_g(h).

With c = 0 it always is, because the own candidates are among those of the group. Of a group of more than 4,000 rows,
1,000 are predicted by all bandwidths, and as many as take half a second by those that
are not clearly worse than the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.progress import Progress
from qkv.core.typing import Float, Int
from qkv.estimators.regression.bandwidth_errors import LARGEST_EXPONENT, BandwidthErrors, error_series, series_widths
from qkv.estimators.regression.neighbor_blocks import draw_rows, separate_groups

__all__ = ["GroupBandwidths", "choose_within_groups"]

# Of larger groups, some rows are predicted by all bandwidths, and more by those that are not clearly worse than the
# best, by so many standard errors of the difference. Fifty million pairs take a quarter of a second.
_ALL_OF_GROUP = 4000
_FIRST_OF_GROUP = 1000
_CLEARLY_WORSE = 4.0
_MOST_PAIRS = 5 * 10**7
_SHARED_ROWS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)
# Sums of float32 errors are equal within this factor.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class GroupBandwidths:
    """The bandwidths of groups, in units of the points.

    Attributes:
        value: the common bandwidth of smallest error.
        rows: the number of rows in groups of two or more.
        error: the mean squared error with the bandwidth of each group, relative to the variance of the group.
        baseline: the error of the mean of each group.
        tried: pairs of a common bandwidth and its error.
        factors: pairs of the index of a group and the factor of its bandwidth; other groups have the factor 1.
        split_error: the mean squared error of choosing the bandwidth of each group from the group's own candidates.
    """

    value: float
    rows: int
    error: float
    baseline: float
    tried: tuple[tuple[float, float], ...]
    factors: tuple[tuple[int, float], ...]
    split_error: float


def choose_within_groups(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, "rows targets"],
    groups: Int[np.ndarray, " rows"],
    widest: float,
    progress: Progress | None = None,
) -> GroupBandwidths | None:
    """Return the bandwidth of each group, or None for fewer than three rows in groups of two or more.

    Args:
        points: standardized points.
        values: the values to predict; a category is given as one-hot columns.
        groups: the group of each row, from which alone it is predicted.
        widest: the widest common bandwidth.
        progress: called as `progress("choosing a bandwidth", done, total)`.

    Example:
        >>> x, shop = np.tile(np.linspace(-1.7, 1.7, 100), 2), np.repeat([0, 1], 100)
        >>> y = np.where(shop, np.sin(20 * x), x)
        >>> chosen = choose_within_groups(x[:, None], y[:, None], shop, 2.0)
        >>> chosen is not None and chosen.error <= chosen.split_error
        True
    """
    values, counts = _standardize(values, groups)
    some = counts > 1
    points, values, groups = points[some], values[some], groups[some]
    if len(points) < 3 or not values.any():
        return None
    alone = -1.0 / (counts[some, None] - 1)
    spreads, sizes = _spreads(points, groups), np.bincount(groups)
    sums: list[Float[np.ndarray, "steps groups"]] = []
    for number, scale in enumerate((np.ones(len(points)), spreads[groups])):
        scaled = separate_groups(points / scale[:, None], groups, 2 * np.sqrt(2 * LARGEST_EXPONENT) * widest)
        errors = BandwidthErrors(scaled, values, alone)
        sums.append(_group_errors(errors, groups, widest, _half_progress(progress, number)))
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
    return GroupBandwidths(
        value=float(widths[best]),
        rows=len(points),
        error=float(_at(every, chosen).sum() / len(points)),
        baseline=float(np.square(values).sum(axis=1).mean()),
        tried=tuple(zip(widths.tolist(), means.tolist(), strict=True)),
        factors=tuple((int(group), float(factors[group])) for group in np.flatnonzero((factors != 1) & (sizes > 0))),
        split_error=float(split / len(points)),
    )


def _group_errors(
    errors: BandwidthErrors, groups: Int[np.ndarray, " rows"], widest: float, progress: Progress | None
) -> Float[np.ndarray, "steps groups"]:
    """Return the sum of the errors of each group at a series of bandwidths, estimated from a part of large groups."""
    sizes = np.bincount(groups)
    targets = errors.targets(_drawn(groups, np.where(sizes > _ALL_OF_GROUP, _FIRST_OF_GROUP, sizes)))
    found, owners = error_series(targets, widest, progress), groups[targets.rows]
    sums = _sums(found, owners, sizes)
    ranges = [_candidates(found[:, owners == group]) for group in np.flatnonzero(sizes > _ALL_OF_GROUP)]
    if not ranges:
        return sums
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    start, large = widest * 2.0 ** (-low / 2), np.where(sizes > _ALL_OF_GROUP, sizes, 0)
    share = min(1.0, _MOST_PAIRS / max(targets.near_rows(start), 1.0) / large.sum())
    if share * large.sum() <= _FIRST_OF_GROUP * len(ranges):
        return sums
    more = errors.targets(_drawn(groups, np.ceil(share * large).astype(np.int64)))
    refined = _sums(more.errors(start, high - low), groups[more.rows], sizes)
    for group in np.flatnonzero(large):
        # The other bandwidths keep their difference from the best.
        best = int(sums[:, group].argmin())
        sums[:, group] += refined[best - low, group] - sums[best, group]
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


def _half_progress(progress: Progress | None, number: int) -> Progress | None:
    """Return a function that reports the progress of one of the two series of candidates."""
    if progress is None:
        return None
    return lambda what, done, total: progress(what, number * total + done, 2 * total)
