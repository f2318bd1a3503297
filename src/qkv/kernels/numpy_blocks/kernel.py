"""Kernel that computes attention tile by tile in NumPy, forward only, in memory linear in the number of keys.

`Database.ask` uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, ignore_numpy_warnings, namespace
from qkv.core.equation import BoundCall
from qkv.core.typing import Array
from qkv.kernels.numpy_blocks.softmax import attend_softmax
from qkv.kernels.numpy_blocks.tile_shapes import softmax_tile_sizes
from qkv.kernels.runtime.tile_loop import attend_rows, ranges, row_logits, weigh_rows
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, partial_elements, row_block_size, size_text, tile_shape
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["NumpyBlocksKernel"]

_TILE_FACTOR = 4
"""Factor by which tiles of normalizers other than softmax are larger, since merging costs more than cache misses."""
_ROW_BLOCK_ARRAYS = 5
"""Number of arrays of a row block's size in memory at once."""


@dataclass(frozen=True)
class NumpyBlocksKernel(Kernel):
    """Kernel that computes attention in tiles or row blocks of NumPy arrays, without gradients.

    Softmax and other online normalizers run in tiles. Other normalizers, and calls with readouts, run in row blocks.

    Args:
        budget: largest number of elements in any array of a tile. The default is 1 MiB in float32, which stays in a
            cache of 2 MiB. Tiles of normalizers other than softmax are four times as large.
        row_block_budget: largest number of elements in all arrays of a row block together.
    """

    name: ClassVar[str] = "numpy_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    casts_tiles: ClassVar[bool] = True
    budget: int = 2**18
    row_block_budget: int = ROW_BLOCK_BUDGET

    def describe(self, problem: Problem) -> str:
        """Describe the size of the tiles or row blocks of a call, as text for the plan."""
        if _uses_softmax(problem):
            tiles = softmax_tile_sizes(problem, self.budget)
            return f"tiles of {size_text(tiles.rows, tiles.cols)}, one pass over the keys"
        rows, cols = self._shape(problem)
        if _needs_rows(problem):
            return f"row blocks of {size_text(rows, problem.axes.k)}"
        return f"tiles of {size_text(rows, cols)}"

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call. The peak memory is one tile or row block and the results of readouts."""
        axes = problem.axes
        if _uses_softmax(problem):
            return softmax_tile_sizes(problem, self.budget).cost(problem)
        rows, cols = self._shape(problem)
        elements = problem.elements_per_logit
        peak = axes.batch_size * rows * cols * problem.itemsize * max(_ROW_BLOCK_ARRAYS + 1, 2 * elements + 2)
        peak += axes.batch_size * rows * problem.itemsize * partial_elements(problem)
        tiles = -(-axes.q // rows) * -(-axes.k // cols)
        traffic = problem.input_bytes + (-(-axes.q // rows) - 1) * axes.k * axes.key_width * problem.itemsize
        if _needs_rows(problem):
            # A tile of logits is computed while one array of the row block is in memory, which is weighed later.
            row_block = axes.batch_size * rows * axes.k * problem.itemsize
            tile = axes.batch_size * rows * cols * problem.itemsize * 2 * elements
            weighed = 7.0 if not problem.normalizer.online else 5.6
            peak = int(max(row_block * weighed, row_block + tile))
            traffic += axes.pairs * problem.itemsize * 6
        return Cost(
            axes.pairs * problem.flop_per_pair,
            traffic,
            peak + problem.cast_bytes + _joined_bytes(problem),
            2.5e-4 + tiles * 1e-4,
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Compute the output and the readouts of a call, one block of queries at a time."""
        if _uses_softmax(problem):
            with ignore_numpy_warnings():
                return Result(attend_softmax(call, softmax_tile_sizes(problem, self.budget)))
        call = call.with_all_cast()
        block_rows, cols = self._shape(problem)
        outputs, accumulators = [], [ReadoutAccumulator(readout, call.tile) for readout in problem.readouts]
        with ignore_numpy_warnings():
            for rows in ranges(call.tile.q_total, block_rows):
                output: Array | None
                if _needs_rows(problem):
                    logits = row_logits(call, rows, cols)
                    output, read = weigh_rows(call, rows, logits, problem.readouts)
                    for accumulator, result in zip(accumulators, read, strict=True):
                        accumulator.add(result, call.tile.restrict(rows, (0, call.tile.k_total)))
                else:
                    output, _ = attend_rows(call, rows, cols)
                assert output is not None
                outputs.append(cast(output, call.out_dtype))
            joined = outputs[0] if len(outputs) == 1 else namespace(call.value).concat(outputs, axis=-2)
            return Result(joined, tuple(accumulator.result() for accumulator in accumulators))

    def _shape(self, problem: Problem) -> tuple[int, int]:
        """Return the numbers of queries and keys in a tile of logits."""
        if not _needs_rows(problem):
            arrays = _ROW_BLOCK_ARRAYS + problem.elements_per_logit
            return tile_shape(problem, _TILE_FACTOR * self.budget, arrays)
        rows = row_block_size(problem, self.row_block_budget, _ROW_BLOCK_ARRAYS)
        pairs = _TILE_FACTOR * self.budget // max(1, problem.axes.batch_size * rows * problem.elements_per_logit)
        return rows, max(1, min(problem.axes.k, pairs))


def _joined_bytes(problem: Problem) -> int:
    """Return the number of bytes of the outputs of the blocks, which are copied when they are joined."""
    return math.prod(problem.axes.output) * problem.itemsize


def _uses_softmax(problem: Problem) -> bool:
    """Return whether a call can be computed from sums of exponentials alone, by `attend_softmax`."""
    return problem.normalizer.log_sum_exp and not (_needs_rows(problem) or problem.spec.dropout)


def _needs_rows(problem: Problem) -> bool:
    return bool(problem.readouts) or not problem.normalizer.online
