"""Choice of the bandwidth of a Gaussian kernel by leave-one-out cross-validation.

    error(h) = mean over rows i of | v_i - sum_{j != i} K_h(x_i, x_j) v_j / sum_{j != i} K_h(x_i, x_j) |^2
    K_h(x, y) = exp(-|x - y|^2 / 2 h^2)

For one-hot values this is the Brier score. Of more than 4,000 rows, 1,000 are predicted by all bandwidths. Those that
are clearly worse than the best are dropped, and as many rows as take half a second are predicted by the others.

For rows in groups, see `qkv.estimators.regression.group_bandwidths`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.formatting import number as format_number
from qkv.core.progress import Progress
from qkv.core.typing import Float, Int
from qkv.core.untrusted_json import Fields
from qkv.estimators.regression.bandwidth_errors import BandwidthErrors, TargetErrors, error_series, series_widths
from qkv.estimators.regression.group_bandwidths import GroupBandwidths, choose_within_groups
from qkv.estimators.regression.neighbor_blocks import draw_rows
from qkv.plan.cost import counted

__all__ = ["KERNEL_WIDTHS", "Bandwidth", "choose_bandwidth", "leave_one_out", "method_text", "scott"]

# The bandwidth at which a kernel smooths as much as a Gaussian of bandwidth 1: Marron and Nolan (1988),
# Canonical kernels for density estimation; the ratio of (R(K) / μ₂(K)²)^(1/5).
KERNEL_WIDTHS = {"laplace": 0.7398, "boxcar": 1.7401, "epanechnikov": 2.2138, "triangular": 2.4326}
# Of more rows, some are predicted by all bandwidths, and more by those that are not clearly worse than the best, by so
# many standard errors of the difference. A hundred million pairs take half a second.
_FIRST_TARGETS = 1000
_CLEARLY_WORSE = 4.0
_MOST_PAIRS = 10**8
_ALL_TARGETS = 4000


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


def choose_bandwidth(
    points: Float[np.ndarray, "rows width"],
    targets: Float[np.ndarray, "rows targets"] | str,
    progress: Progress | None = None,
    total: int | None = None,
    groups: Int[np.ndarray, " rows"] | None = None,
) -> Bandwidth:
    """Return the bandwidth of smallest leave-one-out error, or that of Scott's rule if there are no values to predict.

    Args:
        points: standardized points.
        targets: the values to predict, or the reason why there are none.
        progress: as in `leave_one_out`.
        total: as in `leave_one_out`.
        groups: as in `leave_one_out`.
    """
    if isinstance(targets, str):
        return scott(len(points) if total is None else total, points.shape[1], targets)
    return leave_one_out(points, targets, progress, total, groups)


def scott(rows: int, width: int, reason: str) -> Bandwidth:
    """Return the bandwidth by Scott's rule for standardized points, `rows^(-1/(width + 4))`.

    Example:
        >>> round(scott(1000, 2, "the values are all different").value, 3)
        0.316
    """
    return Bandwidth(max(rows, 1) ** (-1.0 / (width + 4)), f"Scott's rule ({reason})", rows)


def leave_one_out(
    points: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, "rows targets"],
    progress: Progress | None = None,
    total: int | None = None,
    groups: Int[np.ndarray, " rows"] | None = None,
) -> Bandwidth:
    """Return the bandwidth with the smallest leave-one-out error among bandwidths that differ by factors of √2.

    If the points are a sample of a table, the chosen bandwidth is multiplied by (total / points)^(-1/(width + 4)) as
    in Scott's rule; `Bandwidth.method` then says so. The result is deterministic.

    Args:
        points: standardized points.
        values: the values to predict; a category is given as one-hot columns.
        progress: called as `progress("choosing a bandwidth", done, total)`.
        total: the number of rows of the table of which the points are a sample; None if they are all rows.
        groups: the group of each row, from which alone it is predicted; None: all rows are one group.

    Example:
        >>> x = np.linspace(0, 6, 200)[:, None]
        >>> chosen = leave_one_out(x, np.sin(3 * x))
        >>> chosen.rows, chosen.value < 0.1
        (200, True)
    """
    width = points.shape[1]
    total = len(points) if total is None else total
    if len(points) < 3:
        return scott(total, width, "fewer than three rows")
    spread = values.std()
    if not spread > 0:
        return scott(total, width, "the values are all equal")
    widest = 2.0 * np.sqrt(width)
    if groups is not None:
        return _within_groups(choose_within_groups(points, values, groups, widest, progress), width, total)
    # Centered and scaled: float32 sums of large, nearly equal values would cancel. A row without neighbors is
    # predicted by the mean of the other rows, −v / (n − 1).
    values = (values - values.mean(axis=0)) / spread
    alone = np.full((len(values), 1), -1.0 / (len(values) - 1))
    errors = BandwidthErrors(points, values, alone)
    targets = errors.targets(None if len(points) <= _ALL_TARGETS else draw_rows(len(points), _FIRST_TARGETS))
    every = error_series(targets, widest, progress)
    means = every.mean(axis=1) if len(targets.rows) == len(points) else _refined(errors, targets, every, widest)
    # Ties go to the wider kernel, which gives a smoother function.
    best, scale = int(np.argmin(means)), float(spread) ** 2
    widths = series_widths(widest, len(means))
    value = float(widths[best]) * (total / len(points)) ** (-1.0 / (width + 4))
    baseline = float(np.square(values).sum(axis=1).mean()) * scale
    tried = tuple(zip(widths.tolist(), (means * scale).tolist(), strict=True))
    return Bandwidth(value, "leave-one-out", len(points), float(means[best]) * scale, baseline, tried, total)


def _within_groups(chosen: GroupBandwidths | None, width: int, total: int) -> Bandwidth:
    """Return bandwidths of groups, for a table with `total` rows of which they were chosen from a sample."""
    if chosen is None:
        return scott(total, width, "fewer than three rows in groups of two or more")
    value = chosen.value * (total / chosen.rows) ** (-1.0 / (width + 4))
    found = chosen.error, chosen.baseline, chosen.tried
    return Bandwidth(value, "leave-one-out", chosen.rows, *found, total, grouped=True, factors=chosen.factors)


def _refined(
    errors: BandwidthErrors, first: TargetErrors, found: Float[np.ndarray, "steps t"], widest: float
) -> Float[np.ndarray, " steps"]:
    """Return the mean errors, of which those that may be the smallest are computed from more targets.

    Args:
        errors: all rows.
        first: the targets from which all errors were computed.
        found: their errors.
        widest: the widest bandwidth.
    """
    means, count = found.mean(axis=1), len(errors.values)
    best = int(means.argmin())
    worse = found - found[best]
    candidates = np.flatnonzero(worse.mean(axis=1) <= _CLEARLY_WORSE * worse.std(axis=1) / np.sqrt(found.shape[1]))
    low, high = int(candidates.min()), int(candidates.max()) + 1
    start = widest * 2.0 ** (-low / 2)
    more = min(count, int(_MOST_PAIRS / max(first.near_rows(start), 1.0)))
    if more <= len(first.rows):
        return np.asarray(means)
    refined = errors.targets(draw_rows(count, more)).errors(start, high - low).mean(axis=1)
    # The others keep their difference from the best.
    means += refined[best - low] - means[best]
    means[low:high] = refined
    return np.asarray(means)


def method_text(chosen: Bandwidth) -> str:
    """Return how a bandwidth was chosen, as the end of a sentence."""
    rows = counted(chosen.rows, "row", "rows")
    if chosen.total > chosen.rows:
        rows = f"a sample of {chosen.rows:,} of {chosen.total:,} rows, multiplied by Scott's factor"
    text = f"by {chosen.method} over {rows}"
    if chosen.error is None:
        return text
    error, baseline = format_number(chosen.error**0.5), format_number((chosen.baseline or 0.0) ** 0.5)
    if chosen.grouped:
        share = f"{error} of a group's deviation; {baseline} for the mean of each group"
        return f"{text} in groups of equal texts and categories: error {share}"
    return f"{text}: error {error} (root mean square; {baseline} for the mean of all)"
