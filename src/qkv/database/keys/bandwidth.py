"""The bandwidth of a Gaussian kernel, chosen by leaving one row out.

    error(h) = mean over rows i of | v_i - sum_{j != i} K_h(x_i, x_j) v_j / sum_{j != i} K_h(x_i, x_j) |^2
    K_h(x, y) = exp(-|x - y|^2 / 2 h^2)

For one-hot values this is the Brier score. Since K_{h/√2} = K_h², one exponential per pair of rows serves
a whole ladder of bandwidths h, h/√2, h/2 … by squaring. Pairs are taken a block at a time, each once for
both of its rows, so memory is linear in the rows. A row that no other row reaches is predicted by the mean.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from qkv.core.progress import Progress
from qkv.database.keys.neighbor_blocks import PointBlocks, split_into_blocks, squared_distances

__all__ = ["Bandwidth", "Progress", "leave_one_out", "scott", "thinning_step"]

# Squaring doubles a relative error, so after eight of them the rounding of one exponential has grown to about
# 3e-5; a ladder longer than eight rungs begins again with fresh exponentials.
_RUNGS = 8
_LADDERS = 4
# Smaller kernel values are 0: a row reaches 8.3 bandwidths. What is left squares far above the denormals of
# float32, which would make the exponential ten times slower and the products thirty times.
_OUT_OF_REACH = 34.5
_LEAST = np.float32(np.exp(-_OUT_OF_REACH))
# Products of 360 × 360 by 2 stay below the size from which OpenBLAS starts threads of its own. Two threads
# that each start more wait for one another, thirty times longer than the work takes.
_BLOCK = 360
_COLUMNS = 2
# Two halves of the pairs, whatever the machine: sums are then the same to the last bit everywhere.
_HALVES = 2
_MOST_ROWS = 50_000


@dataclass(frozen=True)
class Bandwidth:
    """A bandwidth in the units of the points, and how it was found."""

    value: float
    method: str
    rows: int
    error: float | None = None
    baseline: float | None = None
    tried: tuple[tuple[float, float], ...] = ()


def scott(rows: int, width: int, reason: str) -> Bandwidth:
    """Scott's rule of thumb for standardised points, `rows^(-1/(width + 4))`: no values are looked at.

    Example:
        >>> round(scott(1000, 2, "the values are all different").value, 3)
        0.316
    """
    return Bandwidth(max(rows, 1) ** (-1.0 / (width + 4)), f"Scott's rule ({reason})", rows)


def leave_one_out(
    points: np.ndarray, values: np.ndarray, progress: Progress | None = None, total: int | None = None
) -> Bandwidth:
    """The bandwidth with the least leave-one-out error among rungs √2 apart.

    Args:
        points: `(rows, width)`, standardised.
        values: `(rows, value_width)`; a category is given as one-hot columns.
        progress: called as `progress("choosing a bandwidth", done, total)` while pairs are compared.
        total: the points were thinned already, as `thinning_step` says, from so many; None: they are all.

    More than 50,000 rows are thinned evenly, and the bandwidth found is narrowed by Scott's power of the
    thinning; the result says so. The same rows always give the same bandwidth.

    Example:
        >>> x = np.linspace(0, 6, 200)[:, None]
        >>> found = leave_one_out(x, np.sin(3 * x))
        >>> found.rows, found.value < 0.1
        (200, True)
    """
    width = points.shape[1]
    step = thinning_step(len(points) if total is None else total)
    if total is None:
        total, points, values = len(points), points[::step], values[::step]
    spread = values.std()
    if len(points) < 3 or not spread > 0:
        return scott(total, width, "fewer than three rows" if len(points) < 3 else "the values are all equal")
    # Centred and scaled: float32 sums of large, nearly equal values would cancel.
    values = (values - values.mean(axis=0)) / spread
    ladder = _Ladder(split_into_blocks(points, _BLOCK), values)
    tried: list[tuple[float, float]] = []
    widest = 2.0 * np.sqrt(width)
    for number in range(_LADDERS):
        errors, alone = ladder.climb(widest * 2.0 ** (-number * _RUNGS / 2), number, progress)
        tried += errors
        still = abs(errors[-1][1] - errors[-2][1]) <= 1e-9 * errors[-1][1]
        if alone > 0.5 or still:
            break  # most rows see nobody any more, or only their equals: narrower kernels change nothing
    # Among equal errors the wider kernel: it says less than the data do not say.
    best, error = min(tried, key=lambda pair: (pair[1], -pair[0]))
    scale = float(spread) ** 2
    method, value = "leave-one-out", best
    if step > 1:
        value = best * step ** (-1.0 / (width + 4))
        method = f"leave-one-out on every {step}th row, narrowed by Scott's power"
    baseline = float(np.square(values).sum(axis=1).mean()) * scale
    return Bandwidth(value, method, len(points), error * scale, baseline, tuple((h, e * scale) for h, e in tried))


def thinning_step(rows: int) -> int:
    """Every so-manyth of the rows is compared with the others.

    Example:
        >>> thinning_step(50_000), thinning_step(50_001)
        (1, 2)
    """
    return max(1, -(-rows // _MOST_ROWS))


class _Ladder:
    """All pairs of blocks at eight bandwidths, from one exponential per pair of rows."""

    def __init__(self, blocks: PointBlocks, values: np.ndarray) -> None:
        self.blocks = blocks
        self.gap = np.array([blocks.gaps(a) for a in range(len(blocks.rows))])
        self.values = values.astype(np.float32)
        ones = np.ones((len(values), 1), np.float32)
        carried = np.concatenate([self.values, ones], axis=1)
        self.width = carried.shape[1]
        groups = [carried[:, start : start + _COLUMNS] for start in range(0, self.width, _COLUMNS)]
        self.carried = [[np.ascontiguousarray(group[rows]) for group in groups] for rows in blocks.rows]

    def climb(self, widest: float, number: int, progress: Progress | None) -> tuple[list[tuple[float, float]], float]:
        """Bandwidths and their errors, widest first, and the share of rows alone at the narrowest."""
        cut = _OUT_OF_REACH * 2.0 * widest**2
        count = len(self.blocks.rows)
        pairs = [(a, b) for a in range(count) for b in range(a, count) if self.gap[a, b] < cut]
        done = [0] * _HALVES

        def half(which: int) -> np.ndarray:
            sums = np.zeros((_RUNGS, len(self.values), self.width), np.float32)
            parts = [sums[:, rows] for rows in self.blocks.rows]
            for a, b in pairs[which::_HALVES]:
                self._add_pair(parts, a, b, widest)
                done[which] += 1
                if progress is not None and which == 0:
                    progress("choosing a bandwidth", number * len(pairs) + sum(done), _LADDERS * len(pairs))
            for rows, part in zip(self.blocks.rows, parts, strict=True):
                sums[:, rows] = part
            return sums

        with ThreadPoolExecutor(_HALVES) as pool:
            halves = list(pool.map(half, range(_HALVES)))
        sums = halves[0].astype(np.float64) + halves[1]
        errors = []
        for rung in range(_RUNGS):
            mass = sums[rung, :, -1:]
            reached = mass > 0
            predicted = np.where(reached, sums[rung, :, :-1] / np.where(reached, mass, 1.0), 0.0)
            error = float(np.square(predicted - self.values).sum(axis=1).mean())
            errors.append((float(widest * 2.0 ** (-rung / 2)), error))
        return errors, float(1.0 - reached.mean())

    def _add_pair(self, parts: list[np.ndarray], a: int, b: int, widest: float) -> None:
        first, second = self.blocks.offsets(a, b)
        # Scaled before squaring, so that the exponent is formed in float32 without a further pass.
        scale = np.float32(1.0 / (np.sqrt(2.0) * widest))
        shape = (len(first), len(second))
        spare = np.empty(shape, np.float32)
        kernel = squared_distances(first * scale, second * scale, np.empty(shape, np.float32), spare)
        np.minimum(kernel, np.float32(_OUT_OF_REACH + 1.0), out=kernel)
        np.negative(kernel, out=kernel)
        np.exp(kernel, out=kernel)
        if a == b:
            np.fill_diagonal(kernel, 0.0)
        gap = self.gap[a, b] / (2.0 * widest**2)
        for rung in range(_RUNGS):
            if gap * 2.0**rung > _OUT_OF_REACH:
                return
            if rung:
                np.multiply(kernel, kernel, out=kernel)
            np.multiply(kernel, kernel > _LEAST, out=kernel)
            for group, start in enumerate(range(0, self.width, _COLUMNS)):
                columns = slice(start, start + _COLUMNS)
                parts[a][rung, :, columns] += kernel @ self.carried[b][group]
                if a != b:
                    parts[b][rung, :, columns] += kernel.T @ self.carried[a][group]
