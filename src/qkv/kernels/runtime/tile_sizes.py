"""Sizes of tiles and row blocks: as many numbers as fit the cache, and never more than the memory allowed."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.plan.cost import counted, tile_sides
from qkv.plan.problem import Problem

__all__ = [
    "MAX_PATTERN_BYTES",
    "ROW_BLOCK_BUDGET",
    "TileSizes",
    "partial_numbers",
    "projection_bytes",
    "row_block_arrays",
    "row_block_size",
    "size_text",
    "tile_arrays",
    "tile_shape",
    "tile_sizes",
]

MAX_PATTERN_BYTES = 2**23
"""Bytes of the patterns of all keys of an additive score, up to which they are stored for all tiles."""
ROW_BLOCK_BUDGET = 2**23
"""Numbers in all arrays of a row block together."""
MIN_TILE_PAIRS = 256
"""Smallest useful tile: below, the Python code of a tile takes longer than its arithmetic."""
_TILE_OVERHEAD = 25_000
"""Cost of starting a tile, in pairs computed."""


def tile_shape(problem: Problem, budget: int, arrays: int) -> tuple[int, int]:
    """Return the numbers of queries and keys in a tile.

    Args:
        problem: the problem.
        budget: numbers in the widest array of a tile.
        arrays: arrays of the tile's size in memory at once; half of the memory allowed holds them.
    """
    axes = problem.axes
    batch = max(1, axes.batch_size)
    pairs = max(min(MIN_TILE_PAIRS, budget), budget // (batch * problem.elements_per_logit))
    allowed = problem.memory // 2 // (batch * problem.itemsize * arrays)
    rows = max(1, problem.memory // 4 // (batch * problem.itemsize * partial_numbers(problem)))
    return tile_sides(min(axes.q, rows), axes.k, max(1, min(pairs, allowed)))


def row_block_size(problem: Problem, budget: int, arrays: int) -> int:
    """Return the number of queries in a block of whole rows, at least 1.

    Args:
        problem: the problem.
        budget: numbers in all arrays of a row block together.
        arrays: arrays of the row block's size in memory at once; half of the memory allowed holds them.
    """
    axes = problem.axes
    row = max(1, axes.batch_size * axes.k * arrays)
    allowed = problem.memory // 2 // problem.itemsize
    return max(1, min(axes.q, min(budget, allowed) // row))


def size_text(rows: int, cols: int) -> str:
    """Return the size of a tile or row block in words."""
    return f"{counted(rows, 'query', 'queries')} × {counted(cols, 'key', 'keys')}"


def partial_numbers(problem: Problem) -> int:
    """Return the numbers in memory at once for each query of a tile: two partial results, concatenated and sorted."""
    return 4 * problem.normalizer.accumulator_width(problem.axes.value_width)


def row_block_arrays(problem: Problem) -> int:
    """Return the arrays of a row block's size in memory at once, including those that autograd saves."""
    return (12 if problem.gradient else 5) + 3 * problem.elements_per_logit


@dataclass(frozen=True)
class TileSizes:
    """Sizes of a tile.

    Attributes:
        rows: number of queries.
        cols: number of keys.
        batch: number of batch elements.
    """

    rows: int
    cols: int
    batch: int


def tile_sizes(problem: Problem, budget: int, nonfinite: bool = False) -> TileSizes:
    """Return the sizes of tiles with at most `budget` numbers in their widest array.

    A large batch element has tiles of its own, which are plain matrices; small elements share a tile.

    Args:
        problem: the problem.
        budget: numbers in the widest array of a tile.
        nonfinite: the data is not finite, so that tiles are computed by the generic implementation.
    """
    axes = problem.axes
    # Half of the memory allowed is for tiles.
    available = max(0, problem.memory - projection_bytes(problem)) // 2
    allowed = available // (problem.itemsize * tile_arrays(problem, nonfinite))
    elements = _elements_per_logit(problem, nonfinite)
    additive = problem.score.tanh_vector is not None and elements == 1
    pairs = max(1, min(budget // elements, allowed))
    if axes.q * axes.k <= pairs:
        batch = 1 if additive else pairs // max(1, axes.q * axes.k)
        return TileSizes(max(1, axes.q), max(1, axes.k), max(1, batch))
    rows = _narrow_for_mask(problem, tile_sides(axes.q, axes.k, pairs)[0])
    if rows >= 128:
        rows = 2 ** (rows.bit_length() - 1)
    cols = max(1, pairs // rows)
    # Whole vectors of the processor: with odd lengths matrix products take a tenth longer.
    return TileSizes(rows, min(axes.k, cols - cols % 64 if cols > 64 else cols), 1)


def _narrow_for_mask(problem: Problem, rows: int) -> int:
    """Return fewer rows if the mask allows few keys: the excluded pairs of a tile are computed too."""
    mask, q = problem.spec.mask, problem.axes.q
    if mask is None or rows < 128:
        return rows

    def cost(rows: int) -> float:
        middle = (q - rows) // 2
        start, stop = mask.key_range(problem.tile.restrict((middle, middle + rows), (0, problem.axes.k)))
        return max(1, stop - start) + _TILE_OVERHEAD / rows

    return min((rows, rows // 2, rows // 4, rows // 8), key=cost)


def tile_arrays(problem: Problem, nonfinite: bool = False) -> int:
    """Return the arrays of a tile's size in memory at once; `nonfinite` as in `tile_sizes`."""
    elements = _elements_per_logit(problem, nonfinite)
    return (8 + 4 * elements) if problem.gradient else (4 + 2 * elements)


def projection_bytes(problem: Problem) -> int:
    """Return the bytes of an additive score's projections and of its keys' patterns; 0 for other scores."""
    axes = problem.axes
    if problem.score.tanh_vector is None:
        return 0
    sides = axes.batch_size * (axes.q + axes.k) * problem.elements_per_logit * problem.itemsize
    patterns = 4 * axes.k * problem.elements_per_logit * problem.itemsize
    return sides + (patterns * (2 if problem.gradient else 1) if patterns <= MAX_PATTERN_BYTES else 0)


def _elements_per_logit(problem: Problem, nonfinite: bool) -> int:
    axes, normalizer = problem.axes, problem.normalizer
    softmax = normalizer.log_sum_exp and normalizer.scale is not None and not nonfinite
    if problem.score.gated_product and softmax:
        return 1
    # `AdditiveLogits` never holds the hidden units of a tile, but computes one batch element at a time.
    additive = problem.score.tanh_vector is not None and softmax and axes.q * axes.k >= 64 * 64
    return 1 if additive else problem.elements_per_logit
