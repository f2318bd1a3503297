"""How large a tile or a strip is: as many numbers as fit the cache, never more than the memory allowed."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.plan.cost import counted, tile_sides
from qkv.plan.problem import Problem

__all__ = [
    "MAX_PATTERN_BYTES",
    "ROW_BLOCK_BUDGET",
    "TileSizes",
    "projection_bytes",
    "partial_numbers",
    "size_text",
    "row_block_arrays",
    "row_block_size",
    "tile_arrays",
    "tile_shape",
    "tile_sizes",
]

MAX_PATTERN_BYTES = 2**23
"""Bytes up to which the patterns of all keys of an additive score are kept; beyond, for each tile."""
ROW_BLOCK_BUDGET = 2**23
"""Numbers in all arrays of a strip together."""


def tile_shape(problem: Problem, budget: int, alive: int) -> tuple[int, int]:
    """Rows and columns of a tile.

    Args:
        problem: what is to be run.
        budget: numbers in the widest array of a tile.
        alive: numbers in memory at once for each pair; half of the memory allowed holds them.
    """
    axes = problem.axes
    batch = max(1, axes.batch_size)
    # Below 256 pairs the work of a tile is nothing beside the Python around it.
    pairs = max(min(256, budget), budget // (batch * problem.elements_per_logit))
    allowed = problem.memory // 2 // (batch * problem.itemsize * alive)
    rows = max(1, problem.memory // 4 // (batch * problem.itemsize * partial_numbers(problem)))
    return tile_sides(min(axes.q, rows), axes.k, max(1, min(pairs, allowed)))


def row_block_size(problem: Problem, budget: int, alive: int) -> int:
    """Queries in a strip of whole rows, at least 1.

    Args:
        problem: what is to be run.
        budget: numbers in all arrays of a strip together.
        alive: numbers in memory at once for each pair; half of the memory allowed holds them.
    """
    axes = problem.axes
    row = max(1, axes.batch_size * axes.k * alive)
    allowed = problem.memory // 2 // problem.itemsize
    return max(1, min(axes.q, min(budget, allowed) // row))


def size_text(rows: int, cols: int) -> str:
    """The size of a tile or strip in words."""
    return f"{counted(rows, 'query', 'queries')} × {counted(cols, 'key', 'keys')}"


def partial_numbers(problem: Problem) -> int:
    """Numbers in memory at once for each query of a tile: two partials, joined, and sorted."""
    return 4 * problem.normalizer.accumulator_width(problem.axes.value_width)


def row_block_arrays(problem: Problem) -> int:
    """Numbers in memory at once for each pair of a strip; with a gradient, all that backward keeps."""
    return (12 if problem.gradient else 5) + 3 * problem.elements_per_logit


@dataclass(frozen=True)
class TileSizes:
    """Sizes of a tile.

    Attributes:
        rows, cols: queries and keys of a tile.
        most: batch elements in a tile.
    """

    rows: int
    cols: int
    most: int


def tile_sizes(problem: Problem, budget: int, careful: bool = False) -> TileSizes:
    """Tiles of at most `budget` numbers in their widest array.

    One batch element after the other, so that a tile is a plain matrix; small ones together. `careful`: for
    data that is not finite, whose tiles take the way of every score.
    """
    axes = problem.axes
    # Half of the memory allowed is for tiles.
    allowed = (
        max(0, problem.memory - projection_bytes(problem)) // 2 // (problem.itemsize * tile_arrays(problem, careful))
    )
    elements = _elements_of(problem, careful)
    additive = problem.score.tanh_vector is not None and elements == 1
    pairs = max(1, min(budget // elements, allowed))
    if axes.q * axes.k <= pairs:
        most = 1 if additive else pairs // max(1, axes.q * axes.k)
        return TileSizes(max(1, axes.q), max(1, axes.k), max(1, most))
    rows = _narrowed(problem, tile_sides(axes.q, axes.k, pairs)[0])
    if rows >= 128:
        rows = 2 ** (rows.bit_length() - 1)
    cols = max(1, pairs // rows)
    # Whole vectors of the processor: odd lengths cost matrix products a tenth.
    return TileSizes(rows, min(axes.k, cols - cols % 64 if cols > 64 else cols), 1)


_TILE_OVERHEAD = 25_000
"""What starting a tile costs, in pairs computed."""


def _narrowed(problem: Problem, rows: int) -> int:
    """Fewer rows to a tile where a mask reaches few keys: what a tile holds too much is computed too."""
    mask, q = problem.spec.mask, problem.axes.q
    if mask is None or rows < 128:
        return rows

    def cost(rows: int) -> float:
        middle = (q - rows) // 2
        start, stop = mask.key_range(problem.tile.restrict((middle, middle + rows), (0, problem.axes.k)))
        return max(1, stop - start) + _TILE_OVERHEAD / rows

    return min((rows, rows // 2, rows // 4, rows // 8), key=cost)


def tile_arrays(problem: Problem, careful: bool = False) -> int:
    """Numbers in memory at once for each pair of a tile."""
    elements = _elements_of(problem, careful)
    return (8 + 4 * elements) if problem.gradient else (4 + 2 * elements)


def projection_bytes(problem: Problem) -> int:
    """Bytes of an additive score's two sides, and of the patterns of its keys (`tiled/logits/tanh_expansion.py`)."""
    axes = problem.axes
    if problem.score.tanh_vector is None:
        return 0
    sides = axes.batch_size * (axes.q + axes.k) * problem.elements_per_logit * problem.itemsize
    patterns = 4 * axes.k * problem.elements_per_logit * problem.itemsize
    return sides + (patterns * (2 if problem.gradient else 1) if patterns <= MAX_PATTERN_BYTES else 0)


def _elements_of(problem: Problem, careful: bool) -> int:
    """Numbers in memory at once for each logit."""
    axes, normalizer = problem.axes, problem.normalizer
    # `units.py` never holds the hidden units of a tile, but takes one batch element after the other.
    tiles = normalizer.log_sum_exp and normalizer.scale is not None and not careful
    if problem.score.gated_product and tiles:
        return 1
    additive = problem.score.tanh_vector is not None and tiles and axes.q * axes.k >= 64 * 64
    return 1 if additive else problem.elements_per_logit
