"""The row-block kernel: PyTorch, some queries at a time with their whole rows, in memory linear in the keys.

For normalizers that must see whole rows, and for readouts. `strips.py` does the work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size, size_text
from qkv.normalizers import Normalizer
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

if TYPE_CHECKING:
    from qkv.kernels.row_blocks.rows import Rows

__all__ = ["RowBlocksKernel"]

LOOK = 150
"""Operations in whose time a logit is looked at: it is written, and the largest of its group is found."""
KEPT = 48
"""Keys of a query that are remembered for backward, as normal logits have them."""


@dataclass(frozen=True)
class RowBlocksKernel(Kernel):
    """Whole rows of some queries at a time: every score, normalizer, mask and readout, any derivative.

    Args:
        budget: numbers in all arrays of a strip together.
        most: keys per query that may reach the normalizer's floor; where more do, whole rows are weighed.
    """

    name: ClassVar[str] = "row_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    budget: int = ROW_BLOCK_BUDGET
    most: int = 128

    def refuse(self, problem: Problem) -> str | None:
        """PyTorch only."""
        return self.refuse_library(problem)

    def describe(self, problem: Problem) -> str:
        """Strip size."""
        return f"strips of {size_text(self._rows(problem), problem.axes.k)}"

    def cost(self, problem: Problem) -> Cost:
        """One strip at a time: with all that its backward pass keeps, or with the few keys that matter."""
        if not problem.readouts and _keeps_few(problem.normalizer):
            return self._cost_of_few(problem)
        axes, rows = problem.axes, self._rows(problem)
        times = 4 if problem.gradient else 1
        strips = -(-axes.q // rows)
        peak = axes.batch_size * rows * axes.k * problem.itemsize * row_block_arrays(problem) + problem.untiled_bytes
        traffic = problem.input_bytes + row_block_arrays(problem) * axes.pairs * problem.itemsize * times
        if problem.gradient:
            # Each strip adds its gradient of all keys and values.
            sides = (math.prod(axes.key) + math.prod(axes.value)) * problem.itemsize
            traffic += strips * 3 * sides
            peak += 2 * sides
        return Cost(axes.pairs * problem.flop_per_pair * times, traffic, peak, 5e-4 + strips * 4e-4 * times)

    def _cost_of_few(self, problem: Problem) -> Cost:
        """The score of all pairs, and a look at each; backward touches the kept keys alone."""
        axes, rows = problem.axes, self._whole_rows(problem)
        strips = axes.batch_size * -(-axes.q // rows)
        score = problem.score.flop_per_logit(axes.query_width, axes.key_width)
        flop = axes.pairs * (score + LOOK)
        tile = min(rows * axes.k, max(1, self.budget // 8 // problem.elements_per_logit))
        ranks = 2 if problem.normalizer.stochastic else 1
        numbers = rows * axes.k * (2 * ranks + 1) // 2 + 3 * tile * problem.elements_per_logit
        if problem.gradient:
            product = problem.score.is_product
            flop += axes.pairs * score * 3 // (10 if product else 1)
            sides = math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value)
            numbers += 3 * sides + axes.batch_size * axes.q * KEPT * 2
        return Cost(
            flop,
            problem.input_bytes,
            numbers * problem.itemsize + problem.untiled_bytes,
            5e-4 + strips * (8e-4 if problem.gradient else 5e-4),
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Strips of output and readouts."""
        import torch

        with torch.autocast(call.value.device.type, enabled=False):
            return self._run(call, problem)

    def _run(self, call: BoundCall, problem: Problem) -> Result:
        from qkv.kernels.row_blocks.autograd import RowBlocks

        refuse_closure_gradients(call)
        if self._fast(call, problem):
            return Result(cast(self._rows_of(call, problem).attend(), call.out_dtype))
        output, readouts = RowBlocks(call, problem.readouts, self._rows(problem), with_output=True).attend()
        return Result(cast(output, call.out_dtype), readouts)

    def _fast(self, call: BoundCall, problem: Problem) -> bool:
        """Whether rows are taken one batch element at a time, and few of their keys looked at."""
        some = problem.axes.pairs > 0 and call.value.shape[-1] > 0
        return some and not problem.readouts and call.finite_value and _keeps_few(problem.normalizer)

    def _rows_of(self, call: BoundCall, problem: Problem) -> Rows:
        """The call for `rows.py`, of the score's sides where nothing masked could be read through them."""
        from qkv.kernels.row_blocks.rows import Rows
        from qkv.kernels.runtime.isolated_autograd import project_call

        if call.mask is None or call.finite_sides:
            call = project_call(call)
        rows = self._whole_rows(problem)
        tile = max(1, self.budget // 8 // (rows * problem.elements_per_logit))
        return Rows(call, rows, min(tile, problem.axes.k), self.most, self._rows(problem))

    def _whole_rows(self, problem: Problem) -> int:
        """Queries in a strip of one batch element: 8 MB of logits, 32 queries at least."""
        axes = problem.axes
        strip = self.budget // 4
        rows = max(strip // axes.k, min(32, 2 * strip // axes.k))
        allowed = problem.memory // 2 // (problem.itemsize * axes.k * 4)
        return max(1, min(axes.q, 512, rows, allowed))

    def _rows(self, problem: Problem) -> int:
        return row_block_size(problem, self.budget, row_block_arrays(problem))


def _keeps_few(normalizer: Normalizer) -> bool:
    """Whether the normalizer says below which logits no key gets weight."""
    return type(normalizer).threshold_bound is not Normalizer.threshold_bound
