"""Kernel that computes all logits at once as one array, in memory proportional to q · k.

It supports every call, and is the reference that other kernels are tested against.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

from qkv.core.arrays import ignore_numpy_warnings, library
from qkv.core.equation import BoundCall, dense
from qkv.core.formatting import memory_text
from qkv.core.typing import Array, Shaped, Tensor
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.compiled_jax import compilable, known_finite, run_compiled
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.memory_model import pair_arrays
from qkv.plan.bind import prepare_unconverted
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import LARGE_BYTES, amounts_of_work
from qkv.readouts import Readout
from qkv.scores.forms import Tanh


@dataclass(frozen=True)
class DenseKernel(Kernel):
    """Kernel that computes all logits at once as one array, in every array library.

    It supports derivatives of any order.
    """

    name: ClassVar[str] = "dense"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch", "jax", "tensorflow")
    traceable: ClassVar[bool] = True
    runs_on_gpu: ClassVar[bool] = True

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of logits, weights and mask of all pairs, and with a gradient of the saved arrays."""
        mask = 0.25 if problem.spec.mask is not None and problem.gradient else 0.0
        return problem.axes.pairs * problem.itemsize * (pair_arrays(problem) + mask) + problem.cast_bytes

    def unsuited(self, problem: Problem) -> str | None:
        """Return a sentence if a PyTorch score holds arrays so large that computing them tile by tile is preferred."""
        elements = problem.elements_per_logit
        size = problem.axes.pairs * elements * problem.itemsize
        if problem.library != "torch" or elements == 1 or size < LARGE_BYTES or isinstance(problem.score.form, Tanh):
            return None
        return f"the arrays of its score would have {memory_text(size)}; it is chosen below {memory_text(LARGE_BYTES)}"

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated; masked pairs are computed too."""
        return amounts_of_work(problem, problem.axes.pairs, elements=problem.elements_per_logit)

    def prepare(self, problem: Problem) -> PreparedCall | None:
        """Return a function that runs calls of NumPy arrays."""
        run = partial(_run, readouts=problem.readouts)
        return prepare_unconverted(run, problem) if problem.library == "numpy" else None

    def run(self, call: BoundCall, problem: Problem) -> Result:
        if problem.library == "torch":
            # Autograd would compute these gradients here, but other kernels, which run larger calls, would not.
            refuse_closure_gradients(call, whole=True)
        if problem.device.is_gpu:  # whether the data is finite is not read back, which would make the GPU wait
            call = replace(call, finite=(False, False))
        if problem.library == "jax" and compilable((call.score, call.normalizer, call.mask, *problem.readouts)):
            way = _run_jax if problem.axes.pairs >= _LEAST_PAIRS else _run
            return run_compiled(call, problem, way, known_finite(call))
        return _run(call, problem.readouts)


_LEAST_PAIRS = 2**16
"""Least number of pairs for which JAX compiles a second way for data that is not finite, in up to a second more."""
_CAREFUL_BLOCKS = 16
"""Row blocks in which JAX computes data that is not finite. XLA allocates memory for both ways, and requests memory of
more than 32 MiB from the operating system in every call: an array of all pairs in place of six shortened readouts of
8 × 4 × 256 × 256 pairs from 33 to 18 ms."""


def _run_jax(call: BoundCall, readouts: tuple[Readout, ...]) -> Result:
    """Compute all pairs at once if a compiled function finds, when it runs, that the data is finite, or row blocks."""
    import jax

    from qkv.kernels.jax_loops.kernel import RowBlockLoop, combine_kinds

    rows = max(1, -(-call.tile.q_total // _CAREFUL_BLOCKS))
    if call.finite is not None or any(combine_kinds(readout, call.tile, rows) is None for readout in readouts):
        return _run(call, readouts)

    def run(known: BoundCall) -> tuple[Array, tuple[object, ...]]:
        if not known.finite_value:
            return RowBlockLoop(known, readouts, rows, known.tile.k_total).attend()
        # The gradient reads products, and computes all else again: a branch would store every array for it.
        kept = jax.checkpoint_policies.dots_saveable
        return cast("tuple[Array, tuple[object, ...]]", jax.checkpoint(usual, policy=kept)())

    def usual() -> tuple[Array, tuple[object, ...]]:
        result = _run(replace(call, finite=(True, True)), readouts)
        return result.output, result.readouts

    return Result(*call.by_finiteness(run))


def _run(call: BoundCall, readouts: tuple[Readout, ...]) -> Result:
    def run(call: BoundCall) -> tuple[Array, tuple[object, ...]]:
        result = dense(call)
        read = tuple(
            readout.finalize(readout.read(result.logits, result.weights, call.normalizer, call.tile), call.tile)
            for readout in readouts
        )
        return result.output, read

    with ignore_numpy_warnings(), _no_autocast(call.value):
        return Result(*(call.by_finiteness(run) if library(call.value) == "tensorflow" else run(call)))


def _no_autocast(reference: Shaped[Array, "*_"]) -> AbstractContextManager[object]:
    """Return a context without PyTorch's autocast, because dtypes follow from the arrays of the caller alone."""
    if library(reference) != "torch":
        return nullcontext()
    return no_autocast(cast("Tensor", reference))
