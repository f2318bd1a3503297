"""Choice of the bandwidth of a Gaussian kernel by leave-one-out cross-validation.

    error(h) = mean over rows i of | v_i - sum_{j != i} K_h(x_i, x_j) v_j / sum_{j != i} K_h(x_i, x_j) |^2
    K_h(x, y) = exp(-|x - y|^2 / 2 h^2)

For one-hot values this is the Brier score. Since K_{h/√2} = K_h², one exponential per pair of rows serves a
series of bandwidths h, h/√2, h/2 … by squaring. Each pair of blocks is computed once for both of its rows,
so memory is linear in the rows. A row without neighbors within the kernel is predicted by the mean.

For rows in groups, the sums are over the rows of the same group, and values are standardized by the mean and the
deviation of their group. A group g of n rows with the sum of errors E_g(h) has the bandwidth that minimizes

    E_g(h) + error(h)

so that groups without a clear minimum follow the error of all groups, which counts as much as one row.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from qkv.core.progress import Progress
from qkv.core.typing import Float, Int
from qkv.core.untrusted_json import Fields
from qkv.database.io.formatting import number as format_number
from qkv.database.keys.neighbor_blocks import PointBlocks, separate_groups, split_into_blocks, squared_distances

__all__ = ["KERNEL_WIDTHS", "Bandwidth", "choose_bandwidth", "leave_one_out", "method_text", "scott"]

# The bandwidth at which a kernel smooths as much as a Gaussian of bandwidth 1: Marron and Nolan (1988),
# Canonical kernels for density estimation; the ratio of (R(K) / μ₂(K)²)^(1/5).
KERNEL_WIDTHS = {"laplace": 0.7398, "boxcar": 1.7401, "epanechnikov": 2.2138, "triangular": 2.4326}
# Squaring doubles a relative error: after eight squarings the rounding of one exponential has grown to about
# 3e-5. More than eight bandwidths need fresh exponentials.
_BANDWIDTHS_PER_GRID = 8
_GRIDS = 4
# Kernel values below exp(-34.5), beyond 8.3 bandwidths, are set to 0. Larger ones stay far above the denormals
# of float32 when squared; denormals would make the exponential ten times and the products thirty times slower.
_LARGEST_EXPONENT = 34.5
_SMALLEST_KERNEL = np.float32(np.exp(-_LARGEST_EXPONENT))
# Products of 360 × 360 by 2 are below the size from which OpenBLAS starts threads. Two threads that each start
# more threads wait for one another, thirty times longer than the work takes.
_BLOCK = 360
_COLUMNS = 2
# Two halves on any machine, so that sums are the same to the last bit everywhere.
_HALVES = 2


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
    # Centered and scaled: float32 sums of large, nearly equal values would cancel.
    alone = np.zeros((len(values), 1))
    if groups is None:
        values = (values - values.mean(axis=0)) / spread
    else:
        values, counts = _standardize_groups(values, groups)
        points, values, groups = points[counts > 1], values[counts > 1], groups[counts > 1]
        if len(points) < 3 or not values.any():
            return scott(total, width, "fewer than three rows in groups of two or more")
        # A row without neighbors is predicted by the mean of the other rows of its group, −v / (n − 1).
        alone = -1.0 / (counts[counts > 1, None] - 1)
        points = separate_groups(points, groups, 2 * np.sqrt(2 * _LARGEST_EXPONENT) * widest)
    grid = _BandwidthGrid(split_into_blocks(points, _BLOCK), values, alone, groups)
    tried: list[tuple[float, float]] = []
    for number in range(_GRIDS):
        errors, isolated = grid.errors(widest * 2.0 ** (-number * _BANDWIDTHS_PER_GRID / 2), number, progress)
        tried += errors
        converged = abs(errors[-1][1] - errors[-2][1]) <= 1e-9 * errors[-1][1]
        if isolated > 0.5 or converged:
            break  # most rows have no neighbors but identical rows, so narrower kernels change nothing
    # Ties go to the wider kernel, which gives a smoother function.
    best, error = min(tried, key=lambda pair: (pair[1], -pair[0]))
    scale = float(spread) ** 2 if groups is None else 1.0
    value = best * (total / len(points)) ** (-1.0 / (width + 4))
    baseline = float(np.square(values).sum(axis=1).mean()) * scale
    scaled = tuple((h, e * scale) for h, e in tried)
    method, factors = "leave-one-out", () if groups is None else grid.factors(tried, best)
    return Bandwidth(value, method, len(points), error * scale, baseline, scaled, total, groups is not None, factors)


def _standardize_groups(
    values: Float[np.ndarray, "rows targets"], groups: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows targets"], Int[np.ndarray, " rows"]]:
    """Return values relative to the mean and the deviation of their group, and the number of rows of each row's group.

    Values of a group in which all are equal become 0.
    """
    counts = np.bincount(groups)
    count = np.maximum(counts, 1)
    means = np.stack([np.bincount(groups, column) / count for column in values.T], axis=1)
    residuals = values - means[groups]
    squares = np.bincount(groups, np.square(residuals).sum(axis=1)) / count
    # Rounding leaves residuals of equal values.
    magnitude = np.bincount(groups, np.square(values).sum(axis=1)) / count
    deviations = np.sqrt(np.where(squares > 1e-24 * magnitude, squares, np.inf))
    return residuals / deviations[groups][:, None], counts[groups]


class _BandwidthGrid:
    """Computation of the leave-one-out errors of eight bandwidths, with one exponential per pair of rows.

    Args:
        blocks: the points.
        values: the values to predict.
        alone: the factor by which a row without neighbors is predicted from its own value.
        groups: the group of each row; None: all rows are one group.
    """

    def __init__(
        self,
        blocks: PointBlocks,
        values: Float[np.ndarray, "rows targets"],
        alone: Float[np.ndarray, "rows 1"],
        groups: Int[np.ndarray, " rows"] | None,
    ) -> None:
        self.blocks, self.alone, self.groups = blocks, alone, groups
        self.group_errors: list[Float[np.ndarray, " groups"]] = []
        self.squared_gaps = np.array([blocks.squared_gaps(a) for a in range(len(blocks.rows))])
        self.values = values.astype(np.float32)
        ones = np.ones((len(values), 1), np.float32)
        with_ones = np.concatenate([self.values, ones], axis=1)
        self.width = with_ones.shape[1]
        columns = [with_ones[:, start : start + _COLUMNS] for start in range(0, self.width, _COLUMNS)]
        self.block_values = [[np.ascontiguousarray(some[rows]) for some in columns] for rows in blocks.rows]

    def errors(self, widest: float, number: int, progress: Progress | None) -> tuple[list[tuple[float, float]], float]:
        """Return pairs of bandwidth and error, widest first, and the share of rows without neighbors.

        The share is that at the narrowest bandwidth.
        """
        cut = _LARGEST_EXPONENT * 2.0 * widest**2
        count = len(self.blocks.rows)
        pairs = [(a, b) for a in range(count) for b in range(a, count) if self.squared_gaps[a, b] < cut]
        done = [0] * _HALVES

        def sum_half(half: int) -> Float[np.ndarray, "bandwidths rows width"]:
            sums = np.zeros((_BANDWIDTHS_PER_GRID, len(self.values), self.width), np.float32)
            parts = [sums[:, rows] for rows in self.blocks.rows]
            for a, b in pairs[half::_HALVES]:
                self._add_pair(parts, a, b, widest)
                done[half] += 1
                if progress is not None and half == 0:
                    progress("choosing a bandwidth", number * len(pairs) + sum(done), _GRIDS * len(pairs))
            for rows, part in zip(self.blocks.rows, parts, strict=True):
                sums[:, rows] = part
            return sums

        with ThreadPoolExecutor(_HALVES) as pool:
            halves = list(pool.map(sum_half, range(_HALVES)))
        sums = halves[0].astype(np.float64) + halves[1]
        errors = []
        for step in range(_BANDWIDTHS_PER_GRID):
            mass = sums[step, :, -1:]
            has_neighbors = mass > 0
            weighted = sums[step, :, :-1] / np.where(has_neighbors, mass, 1.0)
            predicted = np.where(has_neighbors, weighted, self.alone * self.values)
            row_errors = np.square(predicted - self.values).sum(axis=1)
            errors.append((float(widest * 2.0 ** (-step / 2)), float(row_errors.mean())))
            if self.groups is not None:
                self.group_errors.append(np.bincount(self.groups, row_errors))
        return errors, float(1.0 - has_neighbors.mean())

    def factors(self, tried: list[tuple[float, float]], best: float) -> tuple[tuple[int, float], ...]:
        """Return the factor by which the bandwidth of each group differs from `best`, for groups in which it does."""
        widths, errors = np.array(tried).T
        regularized = np.stack(self.group_errors) + errors[:, None]
        chosen = widths[np.argmin(regularized, axis=0)]
        return tuple((int(group), float(chosen[group] / best)) for group in np.flatnonzero(chosen != best))

    def _add_pair(self, parts: list[Float[np.ndarray, "bandwidths _ width"]], a: int, b: int, widest: float) -> None:
        first, second = self.blocks.centered(a, b)
        # Scaled before squaring, so that the exponent is formed in float32 without a further pass.
        scale = np.float32(1.0 / (np.sqrt(2.0) * widest))
        shape = (len(first), len(second))
        scratch = np.empty(shape, np.float32)
        kernel = squared_distances(first * scale, second * scale, np.empty(shape, np.float32), scratch)
        np.minimum(kernel, np.float32(_LARGEST_EXPONENT + 1.0), out=kernel)
        np.negative(kernel, out=kernel)
        np.exp(kernel, out=kernel)
        if a == b:
            np.fill_diagonal(kernel, 0.0)
        exponent = self.squared_gaps[a, b] / (2.0 * widest**2)
        for step in range(_BANDWIDTHS_PER_GRID):
            if exponent * 2.0**step > _LARGEST_EXPONENT:
                return
            if step:
                np.multiply(kernel, kernel, out=kernel)
            np.multiply(kernel, kernel > _SMALLEST_KERNEL, out=kernel)
            for group, start in enumerate(range(0, self.width, _COLUMNS)):
                columns = slice(start, start + _COLUMNS)
                parts[a][step, :, columns] += kernel @ self.block_values[b][group]
                if a != b:
                    parts[b][step, :, columns] += kernel.T @ self.block_values[a][group]


def method_text(chosen: Bandwidth) -> str:
    """Return how a bandwidth was chosen, as the end of a sentence."""
    rows = f"{chosen.rows:,} rows"
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
