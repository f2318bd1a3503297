"""The NumPy block kernel: NumPy, forward, tile by tile, in memory linear in the keys. What `ask` uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.core.arrays import cast, ignore_numpy_warnings, namespace
from qkv.core.equation import BoundCall
from qkv.kernels.numpy_blocks.softmax import attend_softmax
from qkv.kernels.numpy_blocks.tile_shapes import Sizes, softmax_sizes
from qkv.kernels.runtime.tile_loop import attend_rows, ranges, row_logits, weigh_rows
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, partial_numbers, row_block_size, size_text, tile_shape
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["NumpyBlocksKernel"]

_FOLD = 4
"""How much larger a tile is that is folded or joined to rows: merging partials costs more than the cache."""


@dataclass(frozen=True)
class NumpyBlocksKernel(Kernel):
    """Sums exponentials where they are all that is wanted; folds tiles where the normalizer has another fold;
    takes strips of whole rows where it has none, or readouts are wanted.

    Args:
        budget: numbers in the widest array of a tile; 1 MB in float32, which stays in a cache of 2 MB. Tiles
            that are not summed as exponentials are four times as large.
        strip_budget: numbers in all arrays of a strip together.
    """

    name: ClassVar[str] = "numpy_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    casts_tiles: ClassVar[bool] = True
    budget: int = 2**18
    row_block_budget: int = ROW_BLOCK_BUDGET

    def refuse(self, problem: Problem) -> str | None:
        """NumPy only; there is no gradient to refuse."""
        return self.refuse_library(problem)

    def describe(self, problem: Problem) -> str:
        """Tile or strip sizes."""
        if self._softmax(problem):
            sizes = self._sizes(problem)
            return f"tiles of {size_text(sizes.rows, sizes.cols)}, one pass over the keys"
        rows, cols = self._sides(problem)
        if self._strips(problem):
            return f"strips of whole rows, {size_text(rows, problem.axes.k)} at a time"
        return f"tiles of {size_text(rows, cols)}"

    def cost(self, problem: Problem) -> Cost:
        """One tile or strip at a time, and what the readouts keep."""
        axes = problem.axes
        if self._softmax(problem):
            return self._sizes(problem).cost(problem)
        rows, cols = self._sides(problem)
        tile = axes.batch_size * rows * cols * problem.itemsize * (5 + problem.elements_per_logit)
        tile += axes.batch_size * rows * problem.itemsize * partial_numbers(problem)
        if self._strips(problem):
            tile += axes.batch_size * rows * axes.k * problem.itemsize * 5
        tiles = -(-axes.q // rows) * -(-axes.k // cols)
        traffic = problem.input_bytes + (-(-axes.q // rows) - 1) * axes.k * axes.key_width * problem.itemsize
        if self._strips(problem):
            traffic += axes.pairs * problem.itemsize * 6
        tile += problem.untiled_bytes
        return Cost(axes.pairs * problem.flop_per_pair, traffic, tile, 2.5e-4 + tiles * 1e-4)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Some queries at a time."""
        if self._softmax(problem):
            with ignore_numpy_warnings():
                return Result(attend_softmax(call, self._sizes(problem)))
        call = call.with_all_cast()
        rows, cols = self._sides(problem)
        outputs, reading = [], ReadoutAccumulator(problem.readouts, call.tile)
        with ignore_numpy_warnings():
            for limits in ranges(call.tile.q_total, rows):
                output: Any
                if self._strips(problem):
                    logits = row_logits(call, limits, cols)
                    output, found = weigh_rows(call, limits, logits, problem.readouts)
                    reading.add(found, call.tile.restrict(limits, (0, call.tile.k_total)))
                else:
                    output, _ = attend_rows(call, limits, cols)
                outputs.append(cast(output, call.out_dtype))
            joined = outputs[0] if len(outputs) == 1 else namespace(call.value).concat(outputs, axis=-2)
            return Result(joined, reading.results())

    def _softmax(self, problem: Problem) -> bool:
        """Whether sums of exponentials are all that is wanted."""
        normalizer = problem.normalizer
        return normalizer.log_sum_exp and not (self._strips(problem) or problem.spec.dropout)

    def _strips(self, problem: Problem) -> bool:
        return bool(problem.readouts) or not problem.normalizer.online

    def _sizes(self, problem: Problem) -> Sizes:
        return softmax_sizes(problem, self.budget)

    def _sides(self, problem: Problem) -> tuple[int, int]:
        alive = 5 + problem.elements_per_logit
        if not self._strips(problem):
            return tile_shape(problem, _FOLD * self.budget, alive)
        rows = row_block_size(problem, self.row_block_budget, 5)
        pairs = _FOLD * self.budget // max(1, problem.axes.batch_size * rows * problem.elements_per_logit)
        return rows, max(1, min(problem.axes.k, pairs))
