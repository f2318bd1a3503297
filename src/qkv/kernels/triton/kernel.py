"""Kernel for additive scores on GPUs, by programs written in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import AdditiveBlocks, Block, additive_blocks
from qkv.kernels.triton.program_kernel import ProgramKernel, product_precision
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.scores.forms import Tanh

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["FORWARD_OPERATIONS", "TritonKernel"]

_MAX_UNITS = 256
_MAX_VALUE_WIDTH = 256
FORWARD_OPERATIONS = 13
_GRADIENT_OPERATIONS = 66
"""Operations for each pair and hidden unit, two for each instruction, counted in the code of the programs."""


@dataclass(frozen=True)
class TritonKernel(ProgramKernel):
    """Kernel for additive scores under softmax on GPUs.

    Args:
        interpreted, block: as in `ProgramKernel`.
    """

    name: ClassVar[str] = "triton"
    guards: ClassVar[tuple[str, ...]] = (
        "if the hidden units of a batch element have a moderate range: two of them share a division; else: one "
        "exponential and one division for each",
    )

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why the programs cannot compute a call."""
        axes, score = problem.axes, problem.score
        yield from super().limits(problem)
        if not isinstance(score.form, Tanh):
            yield f"{score} is not an additive score"
        yield from softmax_limits(problem.normalizer)
        if isinstance(score.form, Tanh) and not 0 < score.form.vector.shape[-1] <= _MAX_UNITS:
            yield f"it supports 1 to {_MAX_UNITS} hidden units"
        if axes.value_width > _MAX_VALUE_WIDTH:
            yield f"it supports values up to {_MAX_VALUE_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        """Describe the tiles and the arithmetic."""
        forward = self._blocks(problem).forward
        return (
            f"tiles of {forward.queries} queries × {forward.keys} keys in registers, two hidden units to a division; "
            "backward recomputes the logits, once for queries and once for keys"
        )

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, which allocates the projections and the statistics of each query."""
        axes = problem.axes
        pairs, units = visible_pairs(problem, 64), problem.elements_per_logit
        times = 3.5 if problem.gradient else 1.0
        sides = axes.batch_size * (axes.q + axes.k)
        numbers = 3 * sides * units + sides * (axes.query_width + axes.key_width + axes.value_width)
        if problem.gradient:
            numbers += 3 * sides * units + sides * axes.value_width
        scratch = numbers * problem.itemsize + problem.cast_bytes
        traffic = (problem.input_bytes + numbers * problem.itemsize) * (2 if problem.gradient else 1)
        return Cost(pairs * problem.flop_per_pair * times, traffic, scratch, 2e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the programs, whose tiles never leave the registers."""
        pairs, units = visible_pairs(problem, 64, 64), problem.elements_per_logit
        products = pairs * 2 * problem.axes.value_width
        gradient = problem.gradient
        return GpuWork(
            matrix=products * (4 if gradient else 1),
            vector=pairs * units * (FORWARD_OPERATIONS + (_GRADIENT_OPERATIONS if gradient else 0)),
            special=pairs * (units / 2 * (5 if gradient else 1) + 1),
            traffic=self.cost(problem).traffic,
            launches=35 * (2 if gradient else 1),
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the programs, without reading anything back."""
        from qkv.kernels.triton.additive import Launch, additive_attention

        tensors = cast("TorchCall", call)
        with no_autocast(tensors.value), on_device(tensors.value):
            offset = split_mask(tensors.mask, tensors.tile)[1]
            launch = Launch(offset, self._blocks(problem), product_precision(problem.dtype))
            output = additive_attention(tensors, launch)
        return Result(arrays.cast(output, call.out_dtype))

    def _blocks(self, problem: Problem) -> AdditiveBlocks:
        """Return the sizes of the blocks of each program."""
        if self.block is not None:
            return AdditiveBlocks(*(Block(*self.block, 4),) * 3)
        width = max(problem.axes.value_width, problem.elements_per_logit)
        return additive_blocks(problem.device.capability, width, product_precision(problem.dtype) == "tf32")
