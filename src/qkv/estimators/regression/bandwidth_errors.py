"""Leave-one-out errors of the weighted mean for a series of bandwidths of a Gaussian kernel.

Some rows, the targets, are predicted from all other rows. Since K_{h/√2} = K_h², one exponential per pair of rows
serves several bandwidths h, h/√2, h/2 … by squaring. Pairs of blocks that are far apart are skipped, and memory is
linear in the rows. A row without neighbors within the kernel is predicted as at the next wider bandwidth, that is,
nearly by its nearest row, which then has nearly all of the weight; without neighbors at the widest, by the mean of the
others.

Of 1,000 rows or more, those that lie in one cube with a side of h/8 are compared at their mean, if at most half as many
cubes as rows hold them. That is as exact as a bandwidth that differs by 0.1 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.threads import on_cores
from qkv.core.typing import Float, Int
from qkv.estimators.regression.neighbor_blocks import (
    FEW_COLUMNS,
    PointBlocks,
    same_rows,
    split_into_blocks,
    squared_distances,
)

# Squaring doubles a relative error: after eight squarings the rounding of one exponential has grown to about
# 3e-5. More than eight bandwidths need fresh exponentials, and four where rows are merged.
_BANDWIDTHS_AT_ONCE = 8
_MERGED_BANDWIDTHS = 4
_FEWEST_MERGED = 1000
_CUBES = 8
LARGEST_EXPONENT = 34.5
"""Kernel values below exp(−34.5), beyond 8.3 bandwidths, are set to 0.

Larger ones stay far above the denormals of float32 when squared; denormals would make the exponential ten times and the
products thirty times slower.
"""
_SMALLEST_KERNEL = np.exp(-LARGEST_EXPONENT)
# OpenBLAS computes a matrix product of up to this many multiplications in one thread. Larger ones, started by two
# threads at once, would start further threads that wait for one another, thirty times longer than the work takes.
_MULTIPLICATIONS = 2**18
_BLOCK = 360
# Blocks of drawn rows, and of rows with more than a few values, whose sums are then one product.
_SMALL_BLOCK = 128
_FEW_VALUES = 4
# Up to four series of eight bandwidths, from 2 to 0.00006 standard deviations.
_GRIDS = 4
_GRID = 8


@dataclass(frozen=True, eq=False)
class _Sources:
    """The points with which targets are compared: the rows, or the means of rows that are near each other.

    Attributes:
        blocks: the points in blocks.
        values: for each block the sums of the values of its points, by a few columns.
        place: the point of each row.
        rest: these sums without the row itself, for each row.
    """

    blocks: PointBlocks
    values: list[list[Float[np.ndarray, "n columns"]]]
    place: Int[np.ndarray, " rows"]
    rest: Float[np.ndarray, "rows columns"]

    @classmethod
    def of(
        cls,
        points: Float[np.ndarray, "rows width"],
        values: Float[np.ndarray, "rows columns"],
        place: Int[np.ndarray, " rows"],
        size: int,
        columns: int,
    ) -> _Sources:
        """Return the means of the rows with the same number in `place`, in blocks of a size, with values by columns."""
        count = np.bincount(place)
        means = np.stack([np.bincount(place, column) / count for column in points.T], axis=1)
        sums = np.stack([np.bincount(place, column) for column in values.T], axis=1)
        blocks, rounded = split_into_blocks(means, size), sums.astype(values.dtype)
        parts = [rounded[:, start : start + columns] for start in range(0, rounded.shape[1], columns)]
        by_block = [[np.ascontiguousarray(part[rows]) for part in parts] for rows in blocks.rows]
        return cls(blocks, by_block, place, sums[place] - values)


class KernelSums:
    """The sums of the values of the rows near each of some rows, weighted by the kernel, without the row itself.

    Args:
        points: the points of all rows.
        values: the values that are summed, in the dtype of the computation.
        targets: the indices of some rows; None: all rows.

    Attributes:
        rows: `(t,)` the indices of the targets, in the order of the sums.
    """

    def __init__(
        self,
        points: Float[np.ndarray, "rows width"],
        values: Float[np.ndarray, "rows columns"],
        targets: Int[np.ndarray, " t"] | None,
    ) -> None:
        self.points, self.values = points, values
        own = size = _BLOCK if values.shape[1] <= _FEW_VALUES else _SMALL_BLOCK
        if targets is not None and points.shape[1] <= FEW_COLUMNS:
            own = _SMALL_BLOCK  # drawn rows are farther apart, so that blocks of fewer of them have smaller boxes
        self._blocks, self._parts = split_into_blocks(points, own, targets), (size, _MULTIPLICATIONS // (size * own))
        self.rows = np.concatenate(self._blocks.rows)
        self._too_small = 0.0

    @cached_property
    def _unmerged(self) -> _Sources:
        return _Sources.of(self.points, self.values, np.arange(len(self.points)), *self._parts)

    def _sources(self, widest: float, count: int) -> tuple[_Sources, int]:
        """Return the points with which targets are compared at the widest of `count` bandwidths, and at how many."""
        few = min(count, _MERGED_BANDWIDTHS)
        side = widest * 2.0 ** ((1 - few) / 2) / _CUBES
        if len(self.points) >= _FEWEST_MERGED and side > self._too_small:
            place = _number_cubes(self.points, side)
            if 2 * (place.max() + 1) <= len(place):
                return _Sources.of(self.points, self.values, place, *self._parts), few
            self._too_small = side
        return self._unmerged, min(count, _BANDWIDTHS_AT_ONCE)

    def near_rows(self, widest: float) -> float:
        """Return with how many points a target is compared at a bandwidth, on average."""
        sources = self._sources(widest, _MERGED_BANDWIDTHS)[0].blocks
        lengths = np.array([len(rows) for rows in sources.rows])
        near = (self._squared_gaps(sources) < _reach(widest)) @ lengths
        return float(np.average(near, weights=[len(rows) for rows in self._blocks.rows]))

    def _squared_gaps(self, sources: PointBlocks) -> Float[np.ndarray, "blocks others"]:
        return np.array([self._blocks.squared_gaps(a, sources) for a in range(len(self._blocks.rows))])

    def series(
        self, widest: float, count: int, progress: Progress | None = None
    ) -> Iterator[Float[np.ndarray, "t columns"]]:
        """Yield the sums of each target at `count` bandwidths, widest first, in float64."""
        done = 0
        while done < count:
            start = widest * 2.0 ** (-done / 2)
            sources, steps = self._sources(start, count - done)
            yield from self._sums(sources, start, steps, progress)
            done += steps

    def _sums(
        self, sources: _Sources, widest: float, steps: int, progress: Progress | None
    ) -> Iterator[Float[np.ndarray, "t columns"]]:
        gaps, count = self._squared_gaps(sources.blocks), len(self._blocks.rows)

        def sum_block(a: int) -> Float[np.ndarray, "steps m columns"]:
            sums = np.zeros((steps, len(self._blocks.rows[a]), self.values.shape[1]), self.values.dtype)
            for b in np.flatnonzero(gaps[a] < _reach(widest)).tolist():
                self._add_pair(sums, a, b, sources, gaps[a, b], widest)
            return sums

        blocks = []
        for block in on_cores(sum_block, range(count)):
            blocks.append(block)
            report(progress, "choosing a bandwidth", len(blocks), count)
        sums = np.concatenate(blocks, axis=1).astype(np.float64)
        offsets = self.points[self.rows] - sources.blocks.points[sources.place[self.rows]]
        exponents = np.square(offsets).sum(axis=1, keepdims=True) / (-2.0 * widest**2)
        for step in range(steps):
            yield sums[step] + np.exp(exponents * 2.0**step) * sources.rest[self.rows]

    def _add_pair(
        self,
        sums: Float[np.ndarray, "steps m columns"],
        a: int,
        b: int,
        sources: _Sources,
        squared_gap: float,
        widest: float,
    ) -> None:
        """Add the sums over the points of block `b`, without the own point of each target, for those of block `a`."""
        # Scaled before squaring, so that the exponent is formed without a further pass.
        first, second = self._blocks.centered(a, b, sources.blocks, self.values.dtype, 1.0 / (np.sqrt(2.0) * widest))
        kernel = squared_distances(first, second, *np.empty((2, len(first), len(second)), first.dtype))
        farthest = float(kernel.max())
        np.clip(kernel, None, kernel.dtype.type(LARGEST_EXPONENT + 1.0), out=kernel)
        np.negative(kernel, out=kernel)
        np.exp(kernel, out=kernel)
        kernel[same_rows(sources.place[self._blocks.rows[a]], sources.blocks.rows[b])] = 0.0
        nearest = squared_gap / (2.0 * widest**2)
        for step in range(len(sums)):
            if nearest * 2.0**step > LARGEST_EXPONENT:
                return
            if step:
                np.multiply(kernel, kernel, out=kernel)
            if farthest * 2.0**step > LARGEST_EXPONENT:
                np.multiply(kernel, kernel > kernel.dtype.type(_SMALLEST_KERNEL), out=kernel)
            for group, values in enumerate(sources.values[b]):
                start = group * self._parts[1]
                sums[step, :, start : start + values.shape[1]] += kernel @ values


class MeanErrors:
    """The leave-one-out errors of the weighted means of some rows.

    Args:
        points: the points of all rows.
        values: the values to predict.
        targets: the indices of the rows that are predicted; None: all rows.
        others: for each row the number of rows whose mean predicts it if it has no neighbors; None: all others. The
            mean of all these rows and the row itself is 0.

    Attributes:
        sums: the sums over the rows near each target.
        isolated: the share of the targets without neighbors at the last bandwidth.
    """

    def __init__(
        self,
        points: Float[np.ndarray, "rows width"],
        values: Float[np.ndarray, "rows targets"],
        targets: Int[np.ndarray, " t"] | None = None,
        others: Int[np.ndarray, " rows"] | None = None,
    ) -> None:
        columns = np.concatenate([values, np.ones((len(values), 1))], axis=1).astype(np.float32)
        self.sums = KernelSums(points, columns, targets)
        others = np.full(len(points), len(points) - 1) if others is None else others
        self._own = columns[self.sums.rows, :-1].astype(np.float64)
        self._predicted = -self._own / others[self.sums.rows, None]
        self.isolated = 0.0

    def errors(self, widest: float, count: int, progress: Progress | None = None) -> Float[np.ndarray, "count t"]:
        """Return the squared error of each target at `count` bandwidths, widest first.

        Narrower bandwidths are to be asked for after wider ones.
        """
        errors = []
        for sums in self.sums.series(widest, count, progress):
            mass = sums[:, -1:]
            has_neighbors = mass > 0
            weighted = sums[:, :-1] / np.where(has_neighbors, mass, 1.0)
            self._predicted = np.where(has_neighbors, weighted, self._predicted)
            self.isolated = float(1.0 - has_neighbors.mean())
            errors.append(np.square(self._predicted - self._own).sum(axis=1))
        return np.array(errors)


def _reach(widest: float) -> float:
    """Return the squared distance from which a kernel of some bandwidth is 0."""
    return LARGEST_EXPONENT * 2.0 * widest**2


def error_series(targets: MeanErrors, widest: float, progress: Progress | None = None) -> Float[np.ndarray, "steps t"]:
    """Return the errors of targets at the bandwidths `series_widths`, until most of them have no neighbors."""
    found: list[Float[np.ndarray, "some t"]] = []
    for number in range(_GRIDS):
        part = part_progress(progress, number, _GRIDS)
        found.append(targets.errors(widest * 2.0 ** (-number * _GRID / 2), _GRID, part))
        last, previous = found[-1][-1].mean(), found[-1][-2].mean()
        if targets.isolated > 0.5 or abs(last - previous) <= 1e-9 * last:
            break  # most rows have no neighbors but identical rows, so narrower kernels change nothing
    return np.concatenate(found)


def series_widths(widest: float, steps: int) -> Float[np.ndarray, " steps"]:
    """Return bandwidths that differ by factors of √2, widest first.

    Example:
        >>> series_widths(2.0, 3).round(3).tolist()
        [2.0, 1.414, 1.0]
    """
    return np.asarray(widest * 2.0 ** (-np.arange(steps) / 2))


def part_progress(progress: Progress | None, number: int, parts: int) -> Progress | None:
    """Return a function that reports the progress of one of several equal parts."""
    if progress is None:
        return None
    return lambda what, done, total: progress(what, number * total + done, parts * total)


def _number_cubes(points: Float[np.ndarray, "rows width"], side: float) -> Int[np.ndarray, " rows"]:
    """Return the number of the cube in which each point lies; cubes without points have none.

    Example:
        >>> _number_cubes(np.array([[0.1], [7.0], [0.4]]), 0.5).tolist()
        [0, 1, 0]
    """
    numbers = np.zeros(len(points), np.int64)
    for column in points.T:
        cells = np.unique(np.floor(column / side), return_inverse=True)[1]
        numbers = np.unique(numbers * len(points) + cells, return_inverse=True)[1]
    return numbers
