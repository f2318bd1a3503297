"""Kernel that computes attention in TensorFlow in blocks of queries, in memory linear in the lengths.

It supports gradients, eager execution and `tf.function`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall, dense
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size, size_text
from qkv.kernels.tensorflow_blocks.row_blocks import attend_row_blocks
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["TensorflowBlocksKernel"]

_BLOCK_SECONDS = 3e-3
"""Fixed cost in seconds of a block with its gradient, which consists of some hundred small operations."""
_SORT_FLOP = 2000
"""Cost of sorting a row, in flop per element."""


@dataclass(frozen=True)
class TensorflowBlocksKernel(Kernel):
    """Kernel that computes attention in blocks of TensorFlow tensors, for every score, normalizer and mask.

    The backward pass computes each block again, so only the inputs are saved. Readouts are not supported.

    Args:
        budget: largest number of elements in all arrays of a block together.
    """

    name: ClassVar[str] = "tensorflow_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("tensorflow",)
    budget: int = ROW_BLOCK_BUDGET

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield a reason for refusal if the call has readouts."""
        if problem.readouts:
            yield "it computes no readouts; on TensorFlow only the dense kernel does"

    def describe(self, problem: Problem) -> str:
        """Describe the size of the row blocks of a call, as text for the plan."""
        return f"row blocks of {size_text(self._rows(problem), problem.axes.k)}; backward computes them again"

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, whose peak memory is that of one block and of the gradients."""
        axes, rows = problem.axes, self._rows(problem)
        blocks = -(-axes.q // rows)
        block = axes.batch_size * rows * axes.k * row_block_arrays(problem)
        # Projections, a copy of the output, and what is added to the gradients for each block.
        sides = axes.batch_size * (axes.q + axes.k) * (axes.query_width + axes.value_width)
        numbers = block + sides * (3 if problem.gradient else 1)
        passes = 4 if problem.gradient else 1
        flop = axes.pairs * problem.flop_per_pair * passes
        if not problem.normalizer.online:
            flop += axes.pairs * _SORT_FLOP
        traffic = problem.input_bytes * (1 + blocks) + 12 * axes.pairs * problem.itemsize * passes
        scratch = numbers * problem.itemsize + problem.cast_bytes
        return Cost(flop, traffic, scratch, 1e-3 + blocks * _BLOCK_SECONDS)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Compute the output of a call, one block of queries at a time."""
        if 0 in (call.tile.q_total, call.tile.k_total):
            return Result(dense(call).output)
        return Result(cast(attend_row_blocks(call, self._rows(problem)), call.out_dtype))

    def _rows(self, problem: Problem) -> int:
        return row_block_size(problem, self.budget, row_block_arrays(problem))
