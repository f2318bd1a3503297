"""Division of points into blocks of neighbors, by which computations skip pairs of distant blocks.

A k-d tree is cut into leaves of equal size. Each leaf is a small box, and the gap between two boxes is a lower
bound of every distance between their points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from qkv.core.typing import Float, Int

FEW_COLUMNS = 4
"""Distances of wider points are computed by matrix products."""


@dataclass(frozen=True)
class PointBlocks:
    """A set of points that is divided into blocks of nearby points, with the bounding box of each block.

    Attributes:
        points: all points.
        rows: for each block the indices of its points, ascending.
        low, high: the corners of each block's bounding box.
    """

    points: Float[np.ndarray, "rows width"]
    rows: tuple[Int[np.ndarray, " _"], ...]
    low: Float[np.ndarray, "blocks width"]
    high: Float[np.ndarray, "blocks width"]

    def squared_gaps(self, a: int, others: PointBlocks) -> Float[np.ndarray, " blocks"]:
        """Return the squared distance from the bounding box of block `a` to that of each block of `others`."""
        gaps = np.maximum(np.maximum(self.low[a] - others.high, others.low - self.high[a]), 0.0)
        return np.asarray(np.square(gaps).sum(axis=-1))

    def centered(
        self, a: int, b: int, others: PointBlocks, dtype: DTypeLike = np.float32, scale: float = 1.0
    ) -> tuple[Float[np.ndarray, "m width"], Float[np.ndarray, "n width"]]:
        """Return the points of block `a`, and of block `b` of `others`, relative to the midpoint of their means.

        The coordinates of near pairs are then small, and their differences accurate in float32. They are multiplied by
        `scale`.
        """
        first, second = self.points[self.rows[a]], others.points[others.rows[b]]
        center = (first.mean(axis=0) + second.mean(axis=0)) / 2
        return ((first - center) * scale).astype(dtype), ((second - center) * scale).astype(dtype)


def same_rows(
    first: Int[np.ndarray, " m"], second: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " same"], Int[np.ndarray, " same"]]:
    """Return the places in `first`, and in `second`, which ascends, of the numbers that are in both.

    Example:
        >>> [places.tolist() for places in same_rows(np.array([7, 2, 5]), np.array([2, 3, 7]))]
        [[0, 1], [2, 0]]
    """
    places = np.minimum(np.searchsorted(second, first), len(second) - 1)
    both = np.flatnonzero(second[places] == first)
    return both, places[both]


def split_into_blocks(
    points: Float[np.ndarray, "rows width"], size: int = 512, rows: Int[np.ndarray, " n"] | None = None
) -> PointBlocks:
    """Divide points into blocks of `size` nearby points. The last block may be smaller.

    Args:
        points: the points.
        size: the number of points of a block.
        rows: the indices of the points that are divided; None: all.

    Example:
        >>> blocks = split_into_blocks(np.arange(10.0)[:, None], size=5)
        >>> [block.tolist() for block in blocks.rows], float(blocks.squared_gaps(0, blocks)[1])
        ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], 1.0)
    """
    divided: list[np.ndarray] = []
    unsplit = [np.arange(len(points)) if rows is None else rows]
    while unsplit:
        part = unsplit.pop()
        if len(part) <= size:
            divided.append(np.sort(part))
            continue
        inside = points[part]
        axis = int(np.argmax(np.ptp(inside, axis=0)))
        # Cut at a multiple of the size, so that only one block of the whole tree is smaller.
        left = -(-len(part) // size) // 2 * size
        order = np.argpartition(inside[:, axis], left - 1)
        unsplit += [part[order[left:]], part[order[:left]]]
    low = np.array([points[block].min(axis=0) for block in divided])
    high = np.array([points[block].max(axis=0) for block in divided])
    return PointBlocks(points, tuple(divided), low, high)


def draw_rows(rows: int, count: int) -> Int[np.ndarray, " count"]:
    """Return the indices of `count` of some rows in a random order, which is the same in each call.

    Example:
        >>> draw_rows(1000, 3).tolist() == draw_rows(1000, 5)[:3].tolist()
        True
    """
    return np.random.default_rng(0).permutation(rows)[:count]


def separate_groups(
    points: Float[np.ndarray, "rows width"], groups: Int[np.ndarray, " rows"], gap: float
) -> Float[np.ndarray, "rows width+1"]:
    """Return points with one more coordinate, by which points of different groups are at least `gap` apart.

    Example:
        >>> separate_groups(np.zeros((2, 1)), np.array([0, 1]), 10.0).tolist()
        [[0.0, 0.0], [0.0, 10.0]]
    """
    return np.concatenate([points, groups[:, None] * gap], axis=1)


def squared_distances(
    first: Float[np.ndarray, "m width"],
    second: Float[np.ndarray, "n width"],
    out: Float[np.ndarray, "m n"],
    scratch: Float[np.ndarray, "m n"],
) -> Float[np.ndarray, "m n"]:
    """Write the squared distances of all pairs from two sets of points into `out`, and return `out`.

    `scratch` is overwritten.
    """
    if first.shape[1] > FEW_COLUMNS:
        # One matrix product is cheaper than many passes; its cancellation affects distant pairs only.
        np.matmul(first, second.T, out=out)
        out *= -2.0
        out += np.square(first).sum(axis=1)[:, None]
        out += np.square(second).sum(axis=1)[None, :]
        np.maximum(out, 0.0, out=out)
        return out
    np.subtract(first[:, :1], second[None, :, 0], out=out)
    np.multiply(out, out, out=out)
    for axis in range(1, first.shape[1]):
        np.subtract(first[:, axis : axis + 1], second[None, :, axis], out=scratch)
        np.multiply(scratch, scratch, out=scratch)
        np.add(out, scratch, out=out)
    return out


def nearest_distances(points: Float[np.ndarray, "rows width"], most: int = 10_000) -> Float[np.ndarray, " sample"]:
    """Return the distance from each point, or from each point of a sample, to its nearest other point.

    Args:
        points: the points.
        most: maximum number of distances; with more points, a sample of them is compared with all.

    Example:
        >>> nearest_distances(np.array([[0.0], [1.0], [5.0]])).tolist()
        [1.0, 1.0, 4.0]
    """
    if not len(points):
        return np.zeros(0)
    spread = np.quantile(np.abs(points - np.median(points, axis=0)), 0.99, axis=0).max()
    unit = 2.0 ** int(np.frexp(spread)[1])  # in which float32 holds most squares
    points = points / unit
    # Of wide points, most blocks are near each other, and fewer products of larger ones take less time.
    blocks = split_into_blocks(points, 512 if points.shape[1] > FEW_COLUMNS else 128)
    chosen = blocks if len(points) <= most else split_into_blocks(points, 128, draw_rows(len(points), most))
    distances = []
    for a, rows in enumerate(chosen.rows):
        best = np.full(len(rows), np.inf, np.float32)
        gaps = chosen.squared_gaps(a, blocks)
        for b in np.argsort(gaps, kind="stable").tolist():
            if gaps[b] > best.max():
                break
            first, second = chosen.centered(a, b, blocks)
            squared = squared_distances(first, second, *np.empty((2, len(first), len(second)), np.float32))
            squared[same_rows(rows, blocks.rows[b])] = np.inf
            np.minimum(best, squared.min(axis=1), out=best)
        distances.append(np.sqrt(best.astype(np.float64)) * unit)
    return np.concatenate(distances)


def nearest_distance_quantile(
    points: Float[np.ndarray, "rows width"], groups: Int[np.ndarray, " rows"] | None = None
) -> float:
    """Return the 99th percentile of the distances from each point to its nearest other point, if any in its group.

    It is 0 if there are no two such points.
    """
    farthest = np.inf
    if groups is not None and len(points):
        farthest = float(np.linalg.norm(np.ptp(points, axis=0)) + 1)
        points = separate_groups(points, groups, 2 * farthest)
    distances = nearest_distances(points)
    distances = distances[distances < farthest]
    return float(np.quantile(distances, 0.99)) if len(distances) else 0.0
