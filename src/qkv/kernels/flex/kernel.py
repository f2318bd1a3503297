"""Kernel for softmax of modified inner products on GPUs, which calls PyTorch's compiled FlexAttention.

It supports soft caps, ALiBi, biases, relative positions, and masks such as windows, documents and prefixes.

Source: Dong et al. (2024), Flex Attention, https://arxiv.org/abs/2412.05496, and
https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.kernels.flex.modifications import modifications_of, supports_mask
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.scores import Dot, ScaledDot, Softcap

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["FlexKernel"]

_BLOCK = 128
"""Number of queries, and of keys, of a block of a block mask."""
_FIRST_RELEASE = (2, 9)
"""First release of PyTorch whose FlexAttention returns the log-sum-exp by `AuxRequest`."""


@dataclass(frozen=True)
class FlexKernel(Kernel):
    """Kernel that calls FlexAttention on lifted queries and keys.

    Args:
        eager: whether FlexAttention runs without a compiler on tensors of any device, for tests.
    """

    name: ClassVar[str] = "flex"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    runs_on_gpu: ClassVar[bool] = True
    eager: bool = False

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why FlexAttention cannot compute a call, or not with the same result."""
        from qkv.kernels.fused.layout import layout_of

        axes = problem.axes
        inner, modifications = modifications_of(problem.score)
        if not (problem.device.is_gpu or self.eager):
            yield "it runs on GPUs"
        if inner.lift_kind is None or inner.inner is not None:
            yield f"{problem.score} is not an inner product with a soft cap, positions or biases"
        if inner.lift_kind != "exact" and any(isinstance(each, Softcap) for each in modifications):
            yield f"{inner} is an inner product only up to a term of the query, which a soft cap changes"
        yield from softmax_limits(problem.normalizer, number=True)
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if problem.dtype == "float64" and not self.eager:
            yield "it computes in single precision"
        if not supports_mask(problem.spec.mask):
            yield f"the mask {problem.spec.mask} cannot be translated to a function of indices"
        if 0 in (axes.q, axes.k, axes.query_width, axes.key_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if max(inner.lifted_width(axes.query_width, axes.key_width), axes.value_width) > 256:
            yield "it supports vectors up to 256 wide"
        if layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2]) is None:
            yield "the batch axes cannot be mapped to two without a copy"
        if not _has_flex():
            yield f"PyTorch is older than {_FIRST_RELEASE[0]}.{_FIRST_RELEASE[1]}"

    def describe(self, problem: Problem) -> str:
        """Describe the modifications and the block mask."""
        inner, modifications = modifications_of(problem.score)
        notes = ["compiled FlexAttention", inner.lift_description()]
        if modifications:
            notes.append(" and ".join(type(each).__name__ for each in modifications) + " applied to each logit")
        if problem.spec.mask is not None:
            notes.append(f"block mask of {_BLOCK} × {_BLOCK} pairs")
        return "; ".join(note for note in notes if note)

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return what happens to data that is not finite, which is never read back."""
        if problem.spec.mask is None:
            return ()
        return ("NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them",)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift: FlexAttention accumulates in single precision."""
        return isinstance(modifications_of(problem.score)[0], (Dot, ScaledDot))

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call: copies of lifted or padded inputs, the output and the block mask."""
        axes = problem.axes
        pairs = visible_pairs(problem, _BLOCK, _BLOCK)
        width = max(16, modifications_of(problem.score)[0].lifted_width(axes.query_width, axes.key_width))
        rows = axes.batch_size * (axes.q + axes.k)
        copies = (2 * rows * (width + axes.value_width)) * problem.itemsize
        if problem.spec.mask is not None:
            # Four lists of blocks, and their transposes, in 4 bytes for each block.
            copies += axes.batch_size * -(-axes.q // _BLOCK) * -(-axes.k // _BLOCK) * 4 * 4
        times = 2 if problem.gradient else 1
        flop = pairs * (problem.flop_per_pair + 2 * width) * (3.5 if problem.gradient else 1)
        return Cost(flop, (problem.input_bytes + copies) * times, copies * times + 2**20, 3e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the compiled kernel, of the lift and of the block mask."""
        axes = problem.axes
        inner, modifications = modifications_of(problem.score)
        pairs, times = visible_pairs(problem, _BLOCK, _BLOCK), 3.5 if problem.gradient else 1.0
        width = max(inner.lifted_width(axes.query_width, axes.key_width), axes.value_width)
        changes = 6 + 8 * len(modifications) + (4 if problem.spec.mask is not None else 0)
        caps = sum(isinstance(each, Softcap) for each in modifications)
        launches = 15 + (0 if inner.is_scaled_dot else 8) + (25 if problem.spec.mask is not None else 0)
        return GpuWork(
            matrix=pairs * 4 * width * times,
            vector=pairs * changes * times,
            special=pairs * (1 + 2 * caps) * times,
            traffic=self.cost(problem).traffic,
            launches=launches,
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run FlexAttention, without reading anything back."""
        from qkv.kernels.flex.call import flex_attend

        output = flex_attend(cast("TorchCall", call), compiled=not self.eager)
        return Result(arrays.cast(output, call.out_dtype))


def _has_flex() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) >= _FIRST_RELEASE
