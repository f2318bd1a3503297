"""Kernel that computes all logits at once as one array, in memory proportional to q · k.

It supports every call, and is the reference that other kernels are tested against.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar, cast

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings, library, statically_known_true
from qkv.core.equation import BoundCall, dense
from qkv.core.formatting import memory_text
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.threefry import seed_words
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, DType, KeyArray, OutputArray, QueryArray, Shaped, Tensor, ValueArray
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.memory_model import pair_arrays
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.plan.bind import prepare_unconverted
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import LARGE_BYTES, amounts_of_work
from qkv.readouts import Readout
from qkv.scores.base import Score
from qkv.scores.forms import Tanh

_Parts = tuple[Score, Normalizer, Mask | None, Positions | None]
_Seed = tuple[Shaped[Array, ""], Shaped[Array, ""]] | None
_Run = Callable[[BoundCall, tuple[Readout, ...]], Result]


@dataclass(frozen=True)
class _StaticCall:
    """Static argument of the compiled function: everything in a call but its arrays."""

    run: _Run
    lengths: tuple[int, int]
    batch: tuple[int, ...]
    dropout: float
    finite: tuple[bool, bool] | None
    out_dtype: DType
    readouts: tuple[Readout, ...] = field(compare=False)
    signatures: tuple[Hashable, ...]
    """Signatures of the readouts, which are compared in place of the readouts because those hold no arrays."""


def compilable(value: object) -> bool:
    """Return whether a part can be compiled: it and the parts in its fields are of qkv and hold no function.

    Example:
        >>> from qkv.scores import Custom, Dot, SumOf
        >>> compilable(SumOf((Dot(), Dot()))), compilable(SumOf((Dot(), Custom(lambda query, key: query @ key.mT))))
        (True, False)
    """
    if isinstance(value, tuple):
        return all(compilable(each) for each in value)
    if not isinstance(value, Part):
        return not callable(value)
    if not type(value).__module__.startswith("qkv."):
        return False
    return all(compilable(getattr(value, each.name)) for each in dataclasses.fields(value))


def run_compiled(
    call: BoundCall,
    problem: Problem,
    run: _Run,
    finite: tuple[bool, bool] | None,
    around: Callable[..., Any] = lambda function, *arguments: function(*arguments),
) -> Result:
    """Run `run(call, readouts)` as a function that is compiled once for each signature of a call.

    Args:
        problem: the problem of the call.
        run: function that computes output and readouts, compared by equality.
        finite: `BoundCall.finite` of the compiled call.
        around: function that is called with the compiled function and its arguments, and returns its result.
    """
    tile = call.tile
    seed = None
    if tile.seed is not None:
        # Arrays, so that the compiled function takes the words of the seed as arguments.
        low, high = (np.uint32(x) if isinstance(x, int) else x for x in seed_words(tile.seed))
        seed = low, high
    static = _StaticCall(
        run,
        (tile.q_total, tile.k_total),
        tile.batch,
        call.dropout,
        finite,
        call.out_dtype,
        tuple(problem.readouts),
        tuple(readout.signature() for readout in problem.readouts),
    )
    parts = call.score, call.normalizer, call.mask, tile.positions
    output, read = around(partial(_functions()[0], static), call.query, call.key, call.value, parts, seed)
    return Result(output, tuple(read))


def _finite(call: BoundCall) -> tuple[bool, bool]:
    """Return whether query and key are known to be finite, and whether value is, by one compiled function.

    Query and key are checked only if there is a mask, because the check has no use otherwise.
    """
    if call.finite is not None:
        return call.finite
    sides = (call.query, call.key) if call.mask is not None else ()
    *of_sides, of_value = _functions()[1]((*sides, call.value))
    return bool(sides) and all(statically_known_true(x) for x in of_sides), statically_known_true(of_value)


@cache
def _functions() -> tuple[Callable[..., tuple[Array, tuple[object, ...]]], Callable[..., tuple[Bool[Array, ""], ...]]]:
    """Return the compiled function of a call, and that which checks arrays; on first use, because JAX is optional."""
    import jax
    import jax.numpy as jnp

    def all_finite(arrays: tuple[Shaped[Array, "*_"], ...]) -> tuple[Bool[Array, ""], ...]:
        return tuple(typing.cast("Array", jnp.all(jnp.isfinite(x))) for x in arrays)

    return jax.jit(_attend, static_argnums=0), jax.jit(all_finite)


def _attend(
    static: _StaticCall, query: QueryArray, key: KeyArray, value: ValueArray, parts: _Parts, seed: _Seed
) -> tuple[OutputArray, tuple[object, ...]]:
    score, normalizer, mask, positions = parts
    tile = Tile.whole(*static.lengths, static.batch, positions, seed=seed)
    call = BoundCall(
        query, key, value, score, normalizer, mask, tile, static.dropout, static.out_dtype, finite=static.finite
    )
    result = static.run(call, static.readouts)
    return result.output, result.readouts


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
            return run_compiled(call, problem, _run, _finite(call))
        return _run(call, problem.readouts)


def _run(call: BoundCall, readouts: tuple[Readout, ...]) -> Result:
    def run(call: BoundCall) -> tuple[Array, tuple[object, ...]]:
        result = dense(call)
        read = tuple(
            readout.finalize(readout.read(result.logits, result.weights, call.normalizer, call.tile), call.tile)
            for readout in readouts
        )
        return result.output, read

    with ignore_numpy_warnings(), _no_autocast(call.value):
        # XLA, which compiles both ways for JAX, reserves memory for both, so that each takes longer.
        return Result(*(call.by_finiteness(run) if library(call.value) == "tensorflow" else run(call)))


def _no_autocast(reference: Shaped[Array, "*_"]) -> AbstractContextManager[object]:
    """Return a context without PyTorch's autocast, because dtypes follow from the arrays of the caller alone."""
    if library(reference) != "torch":
        return nullcontext()
    return no_autocast(cast("Tensor", reference))
