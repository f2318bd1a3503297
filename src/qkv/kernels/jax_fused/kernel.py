"""Kernel that calls fused attention from JAX on a GPU, for scaled dot products in half precision under softmax.

It calls `jax.nn.dot_product_attention` with cuDNN where cuDNN supports the widths, and tokamax, where installed, for
other widths. Calls in single precision stay with the compiled loops, because both round products to TF32 or less.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html, and
https://github.com/openxla/tokamax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import ClassVar, Literal

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.kernels.jax_fused.call import fused_attention
from qkv.kernels.jax_loops.kernel import JaxLoopsKernel
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.plan.bind import bind_problem
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.scores import Dot, ScaledDot

__all__ = ["Implementation", "JaxFusedKernel"]

Implementation = Literal["cudnn", "tokamax", "xla"]


@dataclass(frozen=True)
class JaxFusedKernel(Kernel):
    """Kernel that calls JAX's fused attention on GPUs.

    Args:
        implementation: "cudnn", "tokamax", or "xla", which runs everywhere, for tests; None to choose by the problem.
    """

    name: ClassVar[str] = "jax_fused"
    libraries: ClassVar[tuple[str, ...]] = ("jax",)
    runs_on_gpu: ClassVar[bool] = True
    implementation: Implementation | None = None

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why no fused attention can compute a call."""
        axes = problem.axes
        if not (problem.device.is_gpu or self.implementation):
            yield "it runs on GPUs"
        if not isinstance(problem.score, (Dot, ScaledDot)):
            yield f"{problem.score} is not a scaled dot product"
        yield from softmax_limits(problem.normalizer, number=True)
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if not _supports_mask(problem):
            yield f"the mask {problem.spec.mask} is not causal with query 0 at the position of key 0"
        if 0 in (axes.q, axes.k, axes.query_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if problem.dtype == "float64":
            yield "it computes in single precision"
        if self.implementation != "xla":
            if problem.dtype not in ("bfloat16", "float16"):
                yield f"fused attention of JAX is exact enough in half precision alone, not in {problem.dtype}"
            if self.chosen(problem) is None:
                yield f"cuDNN supports vectors up to {_cudnn_width(problem)} wide, and tokamax is not installed"

    def chosen(self, problem: Problem) -> Implementation | None:
        """Return the implementation for a problem, or None if none supports it."""
        if self.implementation is not None:
            return self.implementation
        width = max(problem.axes.query_width, problem.axes.value_width)
        if problem.device.capability >= (8, 0) and width <= _cudnn_width(problem):
            return "cudnn"
        return "tokamax" if find_spec("tokamax") is not None else None

    def describe(self, problem: Problem) -> str:
        """Describe which function is called."""
        chosen = self.chosen(problem)
        if chosen == "tokamax":
            return "tokamax.dot_product_attention"
        return f'jax.nn.dot_product_attention(implementation="{chosen}"); vectors padded to one width, a multiple of 8'

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return what is done with data that is not finite, which is never read back."""
        refused = f"if {self.chosen(problem)} refuses the call: jax_loops"
        if problem.spec.mask is None:
            return (refused,)
        odd = "NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them"
        return (odd, refused)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether arrays stay as they are; XLA's compiler for CPUs refuses some products of bfloat16."""
        return self.implementation != "xla"

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, which copies its inputs to JAX's order of axes."""
        axes, times = problem.axes, 3.5 if problem.gradient else 1.0
        width = max(axes.query_width, axes.value_width)
        copies = axes.batch_size * (2 * axes.q + 2 * axes.k) * width * problem.itemsize * (2 if problem.gradient else 1)
        flop = visible_pairs(problem, 128, 128) * (4 * width + 10) * times
        if self.implementation == "xla":
            copies += axes.pairs * problem.itemsize * 4
        return Cost(flop, problem.input_bytes + 2 * copies, copies, 2e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of fused attention on a GPU."""
        axes, pairs = problem.axes, visible_pairs(problem, 128, 128)
        times = 3.5 if problem.gradient else 1.0
        width = max(axes.query_width, axes.value_width)
        return GpuWork(pairs * 4 * width * times, pairs * 6 * times, pairs * times, self.cost(problem).traffic, 8)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run fused attention, without reading anything back, or compiled loops if the library refuses the call."""
        implementation = self.chosen(problem)
        assert implementation is not None
        try:
            return Result(cast(fused_attention(call, implementation), call.out_dtype))
        except (NotImplementedError, ExceptionGroup) as error:
            loops = JaxLoopsKernel()
            bound = bind_problem(call.query, call.key, call.value, problem, None, loops)
            note = f"{implementation} refused the call ({error}): jax_loops"
            return replace(loops.run(bound, problem), guards=(note,))


def _supports_mask(problem: Problem) -> bool:
    """Return whether a call has no mask, or a causal one that starts at the first key, as JAX's."""
    mask = problem.spec.mask
    return mask is None or (len(mask.conjuncts) == 1 and mask.causal_offset(problem.tile) == 0)


def _cudnn_width(problem: Problem) -> int:
    """Return the largest width of vectors that cuDNN supports."""
    return 256 if problem.device.capability >= (9, 0) else 128
