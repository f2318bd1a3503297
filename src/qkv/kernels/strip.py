"""The strip kernel: PyTorch, some queries at a time with their whole rows, in memory linear in the keys.

For normalizers that must see whole rows, and for readouts. `strips.py` does the work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast
from qkv.core.equation import Ready
from qkv.kernels.hidden import refuse_hidden_gradients
from qkv.kernels.sizes import STRIP_BUDGET, said, strip_alive, strip_rows_of
from qkv.kernels.strips import Strips
from qkv.plan.cost import Cost
from qkv.plan.kernel import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["StripKernel"]


@dataclass(frozen=True)
class StripKernel(Kernel):
    """Whole rows of some queries at a time: every score, normalizer, mask and readout, any derivative.

    Args:
        budget: numbers in all arrays of a strip together.
    """

    name: ClassVar[str] = "strip"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    budget: int = STRIP_BUDGET

    def refuse(self, problem: Problem) -> str | None:
        """PyTorch only."""
        return self.refuse_library(problem)

    def describe(self, problem: Problem) -> str:
        """Strip size."""
        return f"strips of {said(self._rows(problem), problem.axes.k)}"

    def cost(self, problem: Problem) -> Cost:
        """One strip at a time, with all that its backward pass keeps."""
        axes, rows = problem.axes, self._rows(problem)
        times = 4 if problem.gradient else 1
        strips = -(-axes.q // rows)
        peak = axes.batch_size * rows * axes.k * problem.itemsize * strip_alive(problem) + problem.kept_bytes
        traffic = problem.input_bytes + strip_alive(problem) * axes.pairs * problem.itemsize * times
        if problem.gradient:
            # Each strip adds its gradient of all keys and values.
            sides = (math.prod(axes.key) + math.prod(axes.value)) * problem.itemsize
            traffic += strips * 3 * sides
            peak += 2 * sides
        return Cost(axes.pairs * problem.flop_per_pair * times, traffic, peak, 5e-4 + strips * 4e-4 * times)

    def run(self, ready: Ready, problem: Problem) -> Result:
        """Strips of output and readouts."""
        refuse_hidden_gradients(ready)
        output, readouts = Strips(ready, problem.readouts, self._rows(problem), with_output=True).attend()
        return Result(cast(output, ready.out_dtype), readouts)

    def _rows(self, problem: Problem) -> int:
        return strip_rows_of(problem, self.budget, strip_alive(problem))
