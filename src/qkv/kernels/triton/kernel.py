"""Kernel for additive scores on GPUs, by programs written in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import AdditiveBlocks, Block, additive_blocks
from qkv.kernels.triton.program_kernel import ProgramKernel, product_precision
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["TritonKernel"]

_MAX_UNITS = 256
_MAX_VALUE_WIDTH = 256


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
        axes, score = problem.axes, problem.score
        yield from super().limits(problem)
        if score.tanh_vector is None:
            yield f"{score} is not an additive score"
        yield from softmax_limits(problem.normalizer)
        if score.tanh_vector is not None and not 0 < score.tanh_vector.shape[-1] <= _MAX_UNITS:
            yield f"it supports 1 to {_MAX_UNITS} hidden units"
        if axes.value_width > _MAX_VALUE_WIDTH:
            yield f"it supports values up to {_MAX_VALUE_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        forward = self._blocks(problem).forward
        return (
            f"tiles of {forward.queries} queries × {forward.keys} keys in registers, two hidden units to a division; "
            "backward recomputes the logits, once for queries and once for keys"
        )

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of the projections and the statistics of each query."""
        axes = problem.axes
        units = problem.elements_per_logit
        sides = axes.batch_size * (axes.q + axes.k)
        numbers = 3 * sides * units + sides * (axes.query_width + axes.key_width + axes.value_width)
        if problem.gradient:
            numbers += 3 * sides * units + sides * axes.value_width
        return numbers * problem.itemsize + problem.cast_bytes

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
