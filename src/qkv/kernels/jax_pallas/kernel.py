"""Kernel for additive scores in JAX on GPUs and TPUs, by programs written in Pallas, which a call must name.

Whether it is faster than what XLA compiles from the loops (`jax_loops`) is not measured. The planner does therefore not
choose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.kernels.jax_pallas.call import pallas_attention
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["JaxPallasKernel"]

_MAX_UNITS = 128
_MAX_VALUE_WIDTH = 256
_OPERATIONS = 13
"""Operations for each pair and hidden unit, two for each instruction, as in the programs for PyTorch."""


@dataclass(frozen=True)
class JaxPallasKernel(Kernel):
    """Kernel for additive scores under softmax in JAX, forward and in reverse mode.

    Args:
        block: number of queries and keys of a tile, a power of two; None for 64, and for 128 on a TPU.
    """

    name: ClassVar[str] = "pallas"
    libraries: ClassVar[tuple[str, ...]] = ("jax",)
    runs_on_gpu: ClassVar[bool] = True
    block: int | None = None

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why the programs cannot compute a call."""
        axes, score = problem.axes, problem.score
        if score.tanh_vector is None:
            yield f"{score} is not an additive score"
        yield from softmax_limits(problem.normalizer)
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if problem.dtype == "float64":
            yield "it computes in single precision"
        if not split_mask(problem.spec.mask, problem.tile)[2]:
            yield f"the mask {problem.spec.mask} is neither causal nor a mask of keys"
        if 0 in (axes.q, axes.k, axes.query_width, axes.key_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if score.tanh_vector is not None and not 0 < score.tanh_vector.shape[-1] <= _MAX_UNITS:
            yield f"it supports 1 to {_MAX_UNITS} hidden units"
        if axes.value_width > _MAX_VALUE_WIDTH:
            yield f"it supports values up to {_MAX_VALUE_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        """Describe the tiles and the arithmetic."""
        return f"tiles of {self.block or 64} queries and as many keys, two hidden units to a division; speed unmeasured"

    def unsuited(self, problem: Problem) -> str | None:
        """Return why the planner does not choose this kernel."""
        return "whether it is faster than compiled loops is not measured; it is chosen by name alone"

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, which allocates the projections and the statistics of each query."""
        axes, units = problem.axes, problem.elements_per_logit
        times = 3.5 if problem.gradient else 1.0
        numbers = axes.batch_size * (axes.q + axes.k) * (2 * units + axes.value_width) * (2 if problem.gradient else 1)
        scratch = numbers * problem.itemsize + problem.cast_bytes
        flop = visible_pairs(problem, 64) * problem.flop_per_pair * times
        return Cost(flop, problem.input_bytes + 2 * scratch, scratch, 3e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the programs, whose tiles stay in registers or in the memory of a core."""
        pairs, units = visible_pairs(problem, 64, 64), problem.elements_per_logit
        times = 5 if problem.gradient else 1
        return GpuWork(
            matrix=pairs * 2 * problem.axes.value_width * times,
            vector=pairs * units * _OPERATIONS * times,
            special=pairs * (units / 2 + 1) * times,
            traffic=self.cost(problem).traffic,
            launches=20,
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the programs, in JAX's interpreter of Pallas on a CPU."""
        import jax

        platform = "gpu" if problem.device.is_gpu else jax.default_backend()
        backend = {"gpu": "triton", "tpu": "mosaic_tpu"}.get(platform)
        block = self.block or (128 if platform == "tpu" else 64)
        return Result(cast(pallas_attention(call, block, backend), call.out_dtype))
