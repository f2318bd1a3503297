"""Points in blocks of near neighbours, so that work on pairs of far blocks can be skipped.

A k-d tree cut into leaves of equal size: each block is a small box, and the gap between two boxes bounds
every distance between their points from below.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["PointBlocks", "split_into_blocks", "nearest_distances", "squared_distances"]


@dataclass(frozen=True)
class PointBlocks:
    """`rows[b]` are the rows of block b, ascending; it lies between the corners `low[b]` and `high[b]`."""

    points: np.ndarray
    rows: tuple[np.ndarray, ...]
    low: np.ndarray
    high: np.ndarray

    def gaps(self, a: int) -> np.ndarray:
        """The squared distance of block a's box from every box."""
        apart = np.maximum(np.maximum(self.low[a] - self.high, self.low - self.high[a]), 0.0)
        return np.asarray(np.square(apart).sum(axis=-1))

    def offsets(self, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
        """The points of two blocks in float32, seen from the middle of both.

        Near pairs then have small coordinates, and float32 differences of small numbers lose nothing.
        """
        first, second = self.points[self.rows[a]], self.points[self.rows[b]]
        middle = (first.mean(axis=0) + second.mean(axis=0)) / 2
        return (first - middle).astype(np.float32), (second - middle).astype(np.float32)


def split_into_blocks(points: np.ndarray, size: int = 512) -> PointBlocks:
    """Cut `(rows, width)` points into blocks of `size` rows, the last one smaller.

    Example:
        >>> cut = split_into_blocks(np.arange(10.0)[:, None], size=5)
        >>> [block.tolist() for block in cut.rows], float(cut.gaps(0)[1])
        ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], 1.0)
    """
    rows: list[np.ndarray] = []
    waiting = [np.arange(len(points))]
    while waiting:
        part = waiting.pop()
        if len(part) <= size:
            rows.append(np.sort(part))
            continue
        inside = points[part]
        axis = int(np.argmax(np.ptp(inside, axis=0)))
        # Cut at a multiple of the size: only one block of the whole tree is left smaller.
        left = -(-len(part) // size) // 2 * size
        order = np.argpartition(inside[:, axis], left - 1)
        waiting += [part[order[left:]], part[order[:left]]]
    low = np.array([points[block].min(axis=0) for block in rows])
    high = np.array([points[block].max(axis=0) for block in rows])
    return PointBlocks(points, tuple(rows), low, high)


def squared_distances(first: np.ndarray, second: np.ndarray, out: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """All squared distances `(a, b)` of two sets of points, written into `out`; `spare` is overwritten."""
    if first.shape[1] > 4:
        # One product is cheaper than many passes; what it loses to cancellation is lost by far pairs only.
        np.matmul(first, second.T, out=out)
        out *= -2.0
        out += np.square(first).sum(axis=1)[:, None]
        out += np.square(second).sum(axis=1)[None, :]
        np.maximum(out, 0.0, out=out)
        return out
    np.subtract(first[:, :1], second[None, :, 0], out=out)
    np.multiply(out, out, out=out)
    for axis in range(1, first.shape[1]):
        np.subtract(first[:, axis : axis + 1], second[None, :, axis], out=spare)
        np.multiply(spare, spare, out=spare)
        np.add(out, spare, out=out)
    return out


def nearest_distances(points: np.ndarray, most: int = 50_000) -> np.ndarray:
    """The distance of each point to its nearest other; of a sample of about `most` where there are more.

    Example:
        >>> nearest_distances(np.array([[0.0], [1.0], [5.0]])).tolist()
        [1.0, 1.0, 4.0]
    """
    if not len(points):
        return np.zeros(0)
    blocks = split_into_blocks(points)
    found = []
    # Evenly spread blocks, each against all points, so that a sample's distances are those of the whole.
    for a in range(0, len(blocks.rows), -(-len(points) // most)):
        best = np.full(len(blocks.rows[a]), np.inf, np.float32)
        gaps = blocks.gaps(a)
        for b in np.argsort(gaps, kind="stable"):
            if gaps[b] > best.max():
                break
            first, second = blocks.offsets(a, int(b))
            pair = (len(first), len(second))
            squared = squared_distances(first, second, np.empty(pair, np.float32), np.empty(pair, np.float32))
            if a == b:
                np.fill_diagonal(squared, np.inf)
            np.minimum(best, squared.min(axis=1), out=best)
        found.append(np.sqrt(best.astype(np.float64)))
    return np.concatenate(found)
