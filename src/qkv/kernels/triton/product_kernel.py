"""Kernel for gated products, sparsemax, 1.5-entmax and top-k on GPUs, by programs written in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import Block, product_block
from qkv.kernels.triton.program_kernel import ProgramKernel, product_precision
from qkv.normalizers import Entmax15, Normalizer, Softmax, Sparsemax, TopK
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.scores.forms import Gated

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["TritonProductsKernel"]

_MAX_WIDTH = 256
_MAX_TOP = 64
_NEWTON_STEPS = 6
"""Usual number of passes over the keys for the threshold of sparsemax or 1.5-entmax; it depends on the data."""
_SORT_OPERATIONS = 80
"""Operations for each pair to keep the largest logits of a row in order, two for each comparison."""


@dataclass(frozen=True)
class TritonProductsKernel(ProgramKernel):
    """Kernel for inner products under sparse normalizers, and for gated products, on GPUs.

    Args:
        interpreted, block: as in `ProgramKernel`.
    """

    name: ClassVar[str] = "triton_products"

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why the programs cannot compute a call."""
        axes, normalizer, score = problem.axes, problem.normalizer, problem.score
        yield from super().limits(problem)
        gated = isinstance(score.form, Gated)
        if not gated and (score.form.lift is None or score.form.inner is not None):
            yield f"{score} is neither an inner product nor a gated product"
        if _kind(normalizer) is None:
            yield f"it supports softmax, sparsemax, 1.5-entmax and top-k of softmax, not {normalizer}"
        if not gated and _kind(normalizer) == (0, 0):
            yield "softmax of inner products runs on PyTorch's operators"
        if isinstance(normalizer, TopK) and normalizer.k > _MAX_TOP:
            yield f"it keeps up to {_MAX_TOP} keys for each query"
        if max(score.lifted_width(axes.query_width, axes.key_width), axes.value_width) > _MAX_WIDTH:
            yield f"it supports vectors up to {_MAX_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        """Describe the tiles and how often the keys are read."""
        block = self._block(problem)
        power, top = _kind(problem.normalizer) or (0, 0)
        passes = "one pass over the keys"
        if power:
            passes = "a pass for the maximum, one for each Newton step of the threshold, and one for the output"
        elif top:
            passes = f"a pass that keeps the {top} largest logits of each query in registers, and one for the output"
        return f"tiles of {block.queries} queries × {block.keys} keys in registers; {passes}"

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, which allocates copies of the inputs and the statistics of each query."""
        axes, times = problem.axes, 3.5 if problem.gradient else 1.0
        rows = axes.batch_size * (axes.q + axes.k)
        width = problem.score.lifted_width(axes.query_width, axes.key_width) + axes.value_width + 4
        numbers = rows * width * (6 if problem.gradient else 3)
        scratch = numbers * problem.itemsize + problem.cast_bytes
        traffic = (problem.input_bytes + numbers * problem.itemsize) * (2 if problem.gradient else 1)
        flop = visible_pairs(problem, 64) * problem.flop_per_pair * (times + self._passes(problem) - 1)
        return Cost(flop, traffic, scratch, 2e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the programs, whose tiles never leave the registers."""
        axes, pairs = problem.axes, visible_pairs(problem, 64, 64)
        width = problem.score.lifted_width(axes.query_width, axes.key_width)
        passes, top = self._passes(problem), isinstance(problem.normalizer, TopK)
        gated, gradient = isinstance(problem.score.form, Gated), problem.gradient
        # Three products of TF32, each at half of the throughput of bfloat16, for one in single precision.
        slowdown = 2 if problem.dtype in ("bfloat16", "float16") else 1
        products = 2 * width * passes + 2 * axes.value_width + (4 * (2 * width + axes.value_width) if gradient else 0)
        each = 12 * passes + (_SORT_OPERATIONS if top else 0) + (30 if gradient else 0)
        return GpuWork(
            matrix=pairs * products * slowdown,
            vector=pairs * each,
            special=pairs * ((1 + (2 if gated else 0)) * (passes + (2 if gradient else 0))),
            traffic=self.cost(problem).traffic,
            launches=30 * (2 if gradient else 1),
        )

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
            gated = isinstance(tensors.score.form, Gated)
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
