"""The strip kernel: PyTorch, some queries at a time with their whole rows, in memory linear in the keys.

For normalizers that must see whole rows, and for readouts. Each strip is recomputed in the backward pass by
`torch.utils.checkpoint`, which also gives derivatives of higher order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from qkv.core.arrays import Array, cast, requires_gradient
from qkv.core.equation import Ready
from qkv.kernels.fold import spans, strip_rows
from qkv.kernels.hidden import refuse_hidden_gradients
from qkv.kernels.sizes import STRIP_BUDGET, said, strip_alive, strip_rows_of
from qkv.plan.cost import Cost
from qkv.plan.kernel import Kernel, Result
from qkv.plan.problem import Problem
from qkv.readouts import Readout
from qkv.readouts.base import join

__all__ = ["StripKernel", "read_strips"]


@dataclass(frozen=True)
class StripKernel(Kernel):
    """Whole rows of some queries at a time; every score, normalizer, mask and readout.

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
        peak = axes.batch_size * rows * axes.k * problem.itemsize * strip_alive(problem) + problem.kept_bytes
        traffic = problem.input_bytes + 8 * axes.pairs * problem.itemsize * times
        strips = -(-axes.q // rows)
        return Cost(axes.pairs * problem.flop_per_pair * times, traffic, peak, 5e-4 + strips * 4e-4 * times)

    def run(self, ready: Ready, problem: Problem) -> Result:
        """Strips of output and readouts."""
        refuse_hidden_gradients(ready)
        output, readouts = read_strips(ready, problem.readouts, self._rows(problem), with_output=True)
        return Result(cast(output, ready.out_dtype), readouts)

    def _rows(self, problem: Problem) -> int:
        return strip_rows_of(problem, self.budget, strip_alive(problem))


def read_strips(
    ready: Ready, readouts: tuple[Readout, ...], rows: int, with_output: bool
) -> tuple[Array, tuple[Any, ...]]:
    """Output (an empty list of strips gives None) and readouts, strip by strip, differentiable, linear in the keys."""
    import torch
    from torch.utils.checkpoint import checkpoint

    tensors = (ready.query, ready.key, ready.value, *ready.score.arrays(), *ready.normalizer.arrays())
    records = any(requires_gradient(x) for x in tensors)
    held = len(ready.score.arrays())

    def strip(limits: tuple[int, int], query: Array, key: Array, value: Array, *arrays: Array) -> Any:
        again = replace(
            ready,
            query=query,
            key=key,
            value=value,
            score=ready.score.replace_arrays(arrays[:held]),
            normalizer=ready.normalizer.replace_arrays(arrays[held:]),
        )
        with torch.autocast(query.device.type, enabled=False):
            return strip_rows(again, limits, ready.place.k_total or 1, readouts, with_output)

    outputs, seen = [], []
    for limits in spans(ready.place.q_total, rows):
        output, read = (
            checkpoint(strip, limits, *tensors, use_reentrant=False, preserve_rng_state=False)
            if records
            else strip(limits, *tensors)
        )
        outputs.append(output)
        seen.append(read)
    joined = torch.cat(outputs, dim=-2) if with_output else None
    return joined, tuple(
        readout.finish(join(readout, [pieces[n] for pieces in seen]), ready.place)
        for n, readout in enumerate(readouts)
    )
