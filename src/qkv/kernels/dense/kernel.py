"""The dense kernel: the equation on whole arrays, in memory q · k. It runs every call and is the oracle of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, ignore_numpy_warnings, library
from qkv.core.equation import BoundCall, dense
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["DenseKernel"]

_CACHE = 4 * 2**20
_SORT = 2000
"""What it takes to sort a row, for each of its numbers."""


@dataclass(frozen=True)
class DenseKernel(Kernel):
    """Runs `core.equation` on whole arrays; every library; derivatives of any order."""

    name: ClassVar[str] = "dense"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch", "jax", "tensorflow")
    traceable: ClassVar[bool] = True

    def refuse(self, problem: Problem) -> str | None:
        """Nothing but foreign arrays."""
        return self.refuse_library(problem)

    def cost(self, problem: Problem) -> Cost:
        """Every array of pairs is written and read in main memory."""
        elements = problem.elements_per_logit if problem.elements_per_logit > 1 else 0
        # Written: logits, their exponentials, weights, a mask; with a gradient all that is kept for it.
        written = (4 + elements) * (2 if problem.gradient else 1)
        pairs = problem.axes.pairs * problem.itemsize * written
        peak = problem.axes.pairs * problem.itemsize * self._alive(problem, elements) + problem.untiled_bytes
        times = 3 if problem.gradient else 1
        # What fits the cache stays there.
        cached = pairs <= _CACHE and problem.library != "numpy"
        traffic = problem.input_bytes + 2 * pairs * times / (4 if cached else 1)
        flop = problem.axes.pairs * problem.flop_per_pair * times
        if not problem.normalizer.online:
            flop += problem.axes.pairs * _SORT
        return Cost(flop, traffic, peak, 2e-4)

    def _alive(self, problem: Problem, elements: int) -> int:
        """Numbers in memory at once for each pair, as measured in `benchmarks/explain.py`."""
        # What a score compares is there as it came and as it went; backward makes a third of it. Sorting
        # keeps logits, order, sums and a support beside each other.
        sorts = not problem.normalizer.online
        if problem.gradient:
            return 8 + 3 * elements + 2 * sorts
        return 4 + 2 * elements + 3 * sorts

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """The oracle, and readouts of its weights."""
        if problem.library == "torch":
            # Autograd would find it here; larger calls run where it would not: size must not change meaning.
            refuse_closure_gradients(call)
        with ignore_numpy_warnings(), _as_it_is(call.value):
            seen = dense(call)
            readouts = tuple(
                readout.finalize(readout.read(seen.logits, seen.weights, call.normalizer, call.tile), call.tile)
                for readout in problem.readouts
            )
        return Result(seen.output, readouts)


@contextlib.contextmanager
def _as_it_is(reference: Array) -> Iterator[None]:
    """No autocast of PyTorch: half precision is the caller's choice of dtype, and accumulates in float32."""
    if library(reference) != "torch":
        yield
        return
    import torch

    with torch.autocast(reference.device.type, enabled=False):
        yield
