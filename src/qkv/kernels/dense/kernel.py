"""The dense kernel: the equation on whole arrays, in memory q · k. It runs every call and is the oracle of others."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, cast

from qkv.core.arrays import ignore_numpy_warnings, library
from qkv.core.equation import BoundCall, dense
from qkv.core.typing import Array, Tensor
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["DenseKernel"]

_CACHE_BYTES = 4 * 2**20
"""Bytes of arrays that stay in the cache."""
_SORT_FLOP = 2000
"""Cost of sorting a row, in operations per number."""


@dataclass(frozen=True)
class DenseKernel(Kernel):
    """The equation on whole arrays of every library, with derivatives of any order."""

    name: ClassVar[str] = "dense"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch", "jax", "tensorflow")
    traceable: ClassVar[bool] = True

    def cost(self, problem: Problem) -> Cost:
        """Estimate that every array of pairs is written to and read from main memory."""
        elements = problem.elements_per_logit if problem.elements_per_logit > 1 else 0
        # Logits, their exponentials, weights and a mask; with a gradient everything that is saved for it.
        arrays = (4 + elements) * (2 if problem.gradient else 1)
        pair_bytes = problem.axes.pairs * problem.itemsize * arrays
        peak = problem.axes.pairs * problem.itemsize * _peak_arrays(problem, elements) + problem.untiled_bytes
        passes = 3 if problem.gradient else 1
        cached = pair_bytes <= _CACHE_BYTES and problem.library != "numpy"
        traffic = problem.input_bytes + 2 * pair_bytes * passes / (4 if cached else 1)
        flop = problem.axes.pairs * problem.flop_per_pair * passes
        if not problem.normalizer.online:
            flop += problem.axes.pairs * _SORT_FLOP
        return Cost(flop, traffic, peak, 2e-4)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Evaluate the equation, and the readouts on its weights."""
        if problem.library == "torch":
            # Autograd would find these gradients here, but not in the kernels of larger calls.
            refuse_closure_gradients(call)
        with ignore_numpy_warnings(), _no_autocast(call.value):
            result = dense(call)
            readouts = tuple(
                readout.finalize(readout.read(result.logits, result.weights, call.normalizer, call.tile), call.tile)
                for readout in problem.readouts
            )
        return Result(result.output, readouts)


def _peak_arrays(problem: Problem, elements: int) -> int:
    """Return the numbers in memory at once for each pair, as measured by `benchmarks/explain.py`."""
    # The numbers that a score compares exist before and after; backward adds a third copy. Sorting has logits,
    # order, sums and a support in memory at once.
    sorts = not problem.normalizer.online
    if problem.gradient:
        return 8 + 3 * elements + 2 * sorts
    return 4 + 2 * elements + 3 * sorts


def _no_autocast(reference: Array) -> AbstractContextManager[object]:
    """Disable PyTorch's autocast: half precision follows from the caller's dtypes, and accumulates in float32."""
    if library(reference) != "torch":
        return nullcontext()
    import torch

    return torch.autocast(cast("Tensor", reference).device.type, enabled=False)
