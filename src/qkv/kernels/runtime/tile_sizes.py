"""Choice of the sizes of tiles and row blocks that fit the processor's cache and the memory limit of a call.

On a GPU, tiles are larger than a cache, because each operation of a tile is launched from Python.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.formatting import counted
from qkv.plan.cost import tile_sides
from qkv.plan.problem import Problem
from qkv.scores.forms import Gated, Tanh

ROW_BLOCK_BUDGET = 2**23
"""Largest number of elements in all arrays of a row block together."""
_MIN_TILE_PAIRS = 256
"""Smallest useful number of pairs in a tile: for fewer, Python overhead exceeds the time of the arithmetic."""
_MIN_TORCH_PAIRS = 64 * 64
"""Smallest useful number of pairs in a tile of PyTorch; the memory budget does not make tiles smaller."""
TILE_FACTOR = 64
"""Ratio of the elements of a tile on a GPU and on a core: 64 MiB in float32, so that launches take little time."""
ROW_BLOCK_FACTOR = 16
"""Ratio of the elements of all arrays of a row block on a GPU and on a CPU: 512 MiB in float32."""
_TILE_OVERHEAD = 25_000
"""Fixed cost of a tile, as the number of pairs that could be computed in the same time."""


def tile_shape(problem: Problem, budget: int, arrays: int) -> tuple[int, int]:
    """Choose the number of queries and the number of keys in a tile, within `budget` and the memory limit.

    Args:
        budget: largest number of elements in any array of a tile.
        arrays: number of arrays of the tile's size in memory at once. They may use half of the memory limit.
    """
    axes = problem.axes
    batch = max(1, axes.batch_size)
    pairs = max(min(_MIN_TILE_PAIRS, budget), budget // (batch * problem.elements_per_logit))
    allowed = problem.memory // 2 // (batch * problem.itemsize * arrays)
    rows = max(1, problem.memory // 4 // (batch * problem.itemsize * partial_elements(problem)))
    return tile_sides(min(axes.q, rows), axes.k, max(1, min(_MIN_TILE_PAIRS, pairs), min(pairs, allowed)))


def row_block_size(problem: Problem, budget: int, arrays: int) -> int:
    """Choose the number of queries in a row block, at least 1, within `budget` and the memory limit.

    Args:
        budget: largest number of elements in all arrays of a row block together.
        arrays: number of arrays of the row block's size in memory at once. They may use half of the memory limit.
    """
    axes = problem.axes
    budget *= ROW_BLOCK_FACTOR if problem.device.is_gpu else 1
    row = max(1, axes.batch_size * axes.k * arrays)
    allowed = problem.memory // 2 // problem.itemsize
    return max(1, min(axes.q, min(budget, allowed) // row))


def equal_parts(length: int, step: int) -> int:
    """Return the smallest step in which as many parts as with `step` cover a length.

    Loops whose parts all have one size compute pairs that parts share again.

    Example:
        >>> equal_parts(384, 256)
        192
    """
    step = max(1, min(step, length))
    return -(-length // -(-length // step)) if length else 1


def size_text(rows: int, cols: int) -> str:
    """Return the size of a tile or row block as text, like "64 queries × 512 keys"."""
    return f"{counted(rows, 'query', 'queries')} × {counted(cols, 'key', 'keys')}"


def partial_elements(problem: Problem) -> int:
    """Return the largest number of elements of partial results in memory for each query of a tile.

    Merging concatenates two partial results and sorts them, so it needs four times the elements of one.
    """
    return 4 * problem.normalizer.accumulator_width(problem.axes.value_width)


def row_block_arrays(problem: Problem) -> int:
    """Return how many arrays of the size of a row block are in memory at once, with those saved by autograd."""
    return (12 if problem.gradient else 5) + 3 * problem.elements_per_logit


@dataclass(frozen=True)
class TileSizes:
    """Numbers of queries, keys and batch elements in a tile.

    Attributes:
        rows: number of queries.
        cols: number of keys.
        batch: number of batch elements.
    """

    rows: int
    cols: int
    batch: int


def tile_sizes(problem: Problem, budget: int, nonfinite: bool = False) -> TileSizes:
    """Return the sizes of tiles whose arrays hold at most `budget` elements for each thread of PyTorch.

    PyTorch divides each operation on a tile among its threads. Tiles of long sequences hold a batch element for each
    thread, as far as there are some: threads that divide a single matrix gain less. Short sequences share a tile.
    Tiles of additive scores and of readouts hold one batch element.

    Args:
        budget: largest number of elements in any array of a tile.
        nonfinite: whether the data contains NaN or infinity, so that the generic implementation computes the tiles.
    """
    axes = problem.axes
    budget *= TILE_FACTOR if problem.device.is_gpu else 1
    # Tiles may use half of the memory limit.
    available = max(0, problem.memory - projection_bytes(problem)) // 2
    allowed = available // (problem.itemsize * tile_arrays(problem, nonfinite))
    elements = _elements_per_logit(problem, nonfinite)
    additive = isinstance(problem.score.form, Tanh) and elements == 1
    single = additive or bool(problem.readouts)
    threads = thread_count(problem)
    # Each operation on hidden units reads two arrays and writes a third, so three must fit the cache.
    pairs = max(1, budget // (2 if additive else elements)) * threads
    pairs = max(min(_MIN_TORCH_PAIRS, pairs), min(pairs, allowed))
    if axes.q * axes.k * threads <= pairs:
        batch = 1 if single else pairs // max(1, axes.q * axes.k)
        return TileSizes(max(1, axes.q), max(1, axes.k), max(1, batch))
    batch = 1 if single else max(1, min(threads, axes.batch_size))
    pairs = max(1, pairs // batch)
    rows = narrow_for_mask(problem, tile_sides(axes.q, axes.k, pairs)[0])
    if rows >= 128:
        rows = 2 ** (rows.bit_length() - 1)
    cols = max(1, pairs // rows)
    # Multiples of the processor's vector length: with other lengths matrix products take 10 % longer.
    return TileSizes(rows, min(axes.k, cols - cols % 64 if cols > 64 else cols), batch)


def thread_count(problem: Problem) -> int:
    """Return PyTorch's number of threads for calls on a CPU, or 1 on other devices."""
    if problem.device.is_gpu:
        return 1
    import torch

    return int(torch.get_num_threads())


LEAST_NARROWED = 128
"""Least number of queries per tile of which `narrow_for_mask` returns fewer."""


def narrow_for_mask(problem: Problem, rows: int) -> int:
    """Return `rows`, or a smaller number of queries per tile if the mask then excludes more pairs.

    Masked pairs of a tile that is not fully masked are computed too.
    """
    mask, q = problem.spec.mask, problem.axes.q
    if mask is None or rows < LEAST_NARROWED:
        return rows

    def cost(rows: int) -> float:
        middle = (q - rows) // 2
        start, stop = mask.key_range(problem.tile.restrict((middle, middle + rows), (0, problem.axes.k)))
        return max(1, stop - start) + _TILE_OVERHEAD / rows

    return min((rows, rows // 2, rows // 4, rows // 8), key=cost)


def tile_arrays(problem: Problem, nonfinite: bool = False) -> int:
    """Return how many arrays of the size of a tile are in memory at once.

    The argument `nonfinite` is that of `tile_sizes`.
    """
    elements = _elements_per_logit(problem, nonfinite)
    return (4 + 4 * elements) if problem.gradient else (2 + 2 * elements)


def projection_bytes(problem: Problem) -> int:
    """Return the number of bytes of the projections of an additive score and their exponentials, or 0 for others."""
    axes = problem.axes
    if not isinstance(problem.score.form, Tanh):
        return 0
    # The exponentials are those of one batch element.
    return (axes.batch_size + 1) * (axes.q + axes.k) * problem.elements_per_logit * problem.itemsize


def _elements_per_logit(problem: Problem, nonfinite: bool) -> int:
    axes, normalizer = problem.axes, problem.normalizer
    softmax = normalizer.log_sum_exp and normalizer.scale is not None and not nonfinite
    if isinstance(problem.score.form, Gated) and softmax:
        return 1
    # `AdditiveLogits` never stores the hidden units of a tile, but it computes one batch element at a time.
    additive = isinstance(problem.score.form, Tanh) and softmax and axes.q * axes.k >= 64 * 64
    return 1 if additive else problem.elements_per_logit
