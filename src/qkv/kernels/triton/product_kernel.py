"""Kernel for gated products, sparsemax, 1.5-entmax and top-k on GPUs, by programs written in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import Block, product_block
from qkv.kernels.triton.program_kernel import ProgramKernel, product_precision
from qkv.normalizers import Entmax15, Normalizer, Softmax, Sparsemax, TopK
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["TritonProductsKernel"]

_MAX_WIDTH = 256
_MAX_TOP = 64
_NEWTON_STEPS = 6
"""Usual number of passes over the keys for the threshold of sparsemax or 1.5-entmax; it depends on the data."""


@dataclass(frozen=True)
class TritonProductsKernel(ProgramKernel):
    """Kernel for inner products under sparse normalizers, and for gated products, on GPUs.

    Args:
        interpreted, block: as in `ProgramKernel`.
    """

    name: ClassVar[str] = "triton_products"

    def limits(self, problem: Problem) -> Iterator[str]:
        axes, normalizer, score = problem.axes, problem.normalizer, problem.score
        yield from super().limits(problem)
        if not score.gated_product and (score.lift_kind is None or score.inner is not None):
            yield f"{score} is neither an inner product nor a gated product"
        if _kind(normalizer) is None:
            yield f"it supports softmax, sparsemax, 1.5-entmax and top-k of softmax, not {normalizer}"
        if not score.gated_product and _kind(normalizer) == (0, 0):
            yield "softmax of inner products runs on PyTorch's operators"
        if isinstance(normalizer, TopK) and normalizer.k > _MAX_TOP:
            yield f"it keeps up to {_MAX_TOP} keys for each query"
        if max(score.lifted_width(axes.query_width, axes.key_width), axes.value_width) > _MAX_WIDTH:
            yield f"it supports vectors up to {_MAX_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        block = self._block(problem)
        power, top = _kind(problem.normalizer) or (0, 0)
        passes = "one pass over the keys"
        if power:
            passes = "a pass for the maximum, one for each Newton step of the threshold, and one for the output"
        elif top:
            passes = f"a pass that keeps the {top} largest logits of each query in registers, and one for the output"
        return f"tiles of {block.queries} queries × {block.keys} keys in registers; {passes}"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies of the inputs and the statistics of each query."""
        axes = problem.axes
        rows = axes.batch_size * (axes.q + axes.k)
        width = problem.score.lifted_width(axes.query_width, axes.key_width) + axes.value_width + 4
        numbers = rows * width * (6 if problem.gradient else 3)
        return numbers * problem.itemsize + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; sparse normalizers and top-k compute the logits several times."""
        return amounts_of_work(problem, visible_pairs(problem, 64, 64) * self._passes(problem))

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the programs, without reading anything back."""
        from qkv.kernels.triton.products import ProductLaunch, product_attention

        tensors = cast("TorchCall", call)
        normalizer = tensors.normalizer
        power, top = _kind(normalizer) or (0, 0)
        inner = normalizer.inner if isinstance(normalizer, TopK) else normalizer
        scale = cast("float", inner.scale)
        with no_autocast(tensors.value), on_device(tensors.value):
            offset = split_mask(tensors.mask, tensors.tile)[1]
            precision = product_precision(problem.dtype)
            gated = tensors.score.gated_product
            launch = ProductLaunch(offset, self._block(problem), gated, power, top, scale, precision)
            output = product_attention(tensors, launch)
        return Result(arrays.cast(output, call.out_dtype))

    def _passes(self, problem: Problem) -> int:
        power, top = _kind(problem.normalizer) or (0, 0)
        return 2 + _NEWTON_STEPS if power else 2 if top else 1

    def _block(self, problem: Problem) -> Block:
        if self.block is not None:
            return Block(*self.block, 4)
        axes = problem.axes
        width = max(problem.score.lifted_width(axes.query_width, axes.key_width), axes.value_width)
        return product_block(width)


def _kind(normalizer: Normalizer) -> tuple[int, int] | None:
    """Return the power of the weights and the number of kept keys; None if the programs do not support a normalizer."""
    if isinstance(normalizer, Sparsemax):
        return 1, 0
    if isinstance(normalizer, Entmax15):
        return 2, 0
    top = normalizer.k if isinstance(normalizer, TopK) else 0
    softmax = normalizer.inner if isinstance(normalizer, TopK) else normalizer
    if isinstance(softmax, Softmax) and softmax.sink is None and softmax.scale is not None:
        return 0, top
    return None
