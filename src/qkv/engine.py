"""The engine: attend, observe, explain and prepare, the public functions that plan and run a call.

attend    run a call and return the output
observe   run a call and return the output, readouts of the weights, and the plan
explain   return the plan of a call without computing anything
prepare   return a function with a fixed plan
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import as_array, library
from qkv.core.axes import Axes
from qkv.core.equation import BoundCall, bind_call
from qkv.core.positions import Positions
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, ArrayLike
from qkv.errors import KindError, ShapeError
from qkv.kernels import KERNELS
from qkv.kernels.compiled.export import export_plan
from qkv.kernels.compiled.operator import compiled_attend, refuse
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan import Kernel, Plan, Problem, Spec, plan_problem
from qkv.plan.cache import PLANS, SpecFields, call_signature, store_plan
from qkv.plan.checks import check_problem, read_problem, read_seed
from qkv.plan.cost import memory_bytes
from qkv.plan.kernel_protocol import Result
from qkv.readouts import Readout
from qkv.scores import Score

__all__ = ["Observation", "Prepared", "attend", "explain", "observe", "prepare"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Observation:
    """The result of `observe`.

    Attributes:
        output: `(*batch, q, value_width)`.
        readouts: one result for each readout, in the order given.
        plan: the plan that ran, with the guards that were taken.
    """

    output: Array
    readouts: tuple[Any, ...]
    plan: Plan


def attend(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    kernel: str | Kernel | None = None,
    memory: int | str = "512 MiB",
) -> Array:
    """Return the values, weighted by how well their keys match each query.

        weights = normalize(score(query, key), mask)          output = weights @ value

    Args:
        query: `(*batch, q, width)`, or text `(*batch, q)`.
        key: `(*batch, k, width)`, or text `(*batch, k)`.
        value: `(*batch, k, value_width)`. Batch axes broadcast; a broadcast axis is never copied.
        score: compares queries with keys; default `ScaledDot()`.
        normalizer: turns logits into weights; default: the score's own, which is `Softmax()` for most scores.
        mask: excludes pairs of queries and keys; None: no pair.
        positions: how query positions relate to key positions; required if q ≠ k and score or mask use positions.
        dropout: probability of dropping a weight; use more than 0 only in training.
        seed: seed of all random draws. None: drawn from PyTorch's generator. NumPy, JAX and TensorFlow need a seed if
            anything is drawn; in JAX and TensorFlow it may be an integer array, so that each step of a compiled loop
            draws anew.
        kernel: name of the kernel that must run the call, or a kernel of your own; None: the planner chooses.
        memory: what may be allocated beyond inputs and output, in bytes or as "512 MiB".

    Returns:
        `(*batch, q, value_width)`, in the library and dtype of the inputs. Rows without any key are 0.

    Raises:
        ShapeError: lengths, widths or batch axes do not match.
        KindError: a mask is a bare array, text meets a score for numbers, or arrays are of several libraries.
        PositionError: positions are required and not given.
        RefusedError: no kernel, or not the named one, can run the call within the memory.

    Example:
        >>> import numpy as np, qkv
        >>> salary = np.array([[30.0], [40.0], [60.0]])
        >>> gpa = np.array([[3.0], [3.5], [3.9]])
        >>> qkv.attend(np.array([[3.5]]), gpa, salary, score=qkv.scores.Gaussian(0.1))
        array([[40.0066...]])
    """
    fields = score, normalizer, mask, positions, dropout
    return _run(query, key, value, fields, (), seed, kernel, memory)[0].output


def _attend_in_operator(
    query: Array,
    key: Array,
    value: Array,
    fields: SpecFields,
    seed: int | None,
    kernel: str | Kernel | None,
    memory: int | str,
) -> Array:
    """Entry point called from the opaque custom operator of `torch.compile`."""
    return _run(query, key, value, fields, (), seed, kernel, memory)[0].output


def observe(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    readouts: Sequence[Readout] = (),
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    kernel: str | Kernel | None = None,
    memory: int | str = "512 MiB",
) -> Observation:
    """Return the output of `attend`, readouts of the weights, and the plan.

    Readouts never change the output.

    Args:
        query: as in `attend`.
        key: as in `attend`.
        value: as in `attend`.
        readouts: what to compute from the weights, from `qkv.readouts`.
        score: as in `attend`.
        normalizer: as in `attend`.
        mask: as in `attend`.
        positions: as in `attend`.
        dropout: as in `attend`.
        seed: as in `attend`.
        kernel: as in `attend`.
        memory: as in `attend`.

    Raises:
        RefusedError: a readout is not defined for the normalizer; otherwise as `attend`.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [1.0]])
        >>> result = qkv.observe(np.array([[9.0]]), keys, keys, readouts=[qkv.readouts.TopWeights(1)])
        >>> result.readouts[0].keys
        array([[1]])
    """
    fields = score, normalizer, mask, positions, dropout
    result, plan = _run(query, key, value, fields, tuple(readouts), seed, kernel, memory)
    if plan is None:
        refuse(_NOT_COMPILED)
    return Observation(result.output, result.readouts, plan.with_guards_taken(result.guards))


_NOT_COMPILED = (
    "torch.compile cannot trace calls that return more than their output. Call qkv.attend there; keep "
    "qkv.observe and prepared plans in a function marked with torch.compiler.disable."
)


def explain(
    query: ArrayLike | Shape,
    key: ArrayLike | Shape,
    value: ArrayLike | Shape,
    *,
    readouts: Sequence[Readout] = (),
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    kernel: str | Kernel | None = None,
    memory: int | str = "512 MiB",
    library: str = "numpy",
    dtype: str = "float32",
    gradient: bool = False,
) -> Plan:
    """Return the plan of a call without computing anything; shapes are enough.

    Args:
        query: an array, or its shape as a tuple.
        key: an array, or its shape.
        value: an array, or its shape.
        readouts: as in `observe`.
        score: as in `observe`.
        normalizer: as in `observe`.
        mask: as in `observe`.
        positions: as in `observe`.
        dropout: as in `observe`.
        kernel: as in `observe`.
        memory: as in `observe`.
        library: library of the arrays, if only shapes are given.
        dtype: name of their dtype, if only shapes are given.
        gradient: whether one of them requires a gradient, if only shapes are given.

    Raises:
        As `attend`.

    Example:
        >>> import qkv
        >>> print(qkv.explain((1, 64), (10_000_000, 64), (10_000_000, 64)).kernel.name)
        numpy_blocks
    """
    spec = Spec(score, normalizer, mask, positions, dropout)
    if all(isinstance(x, tuple) and all(isinstance(n, int) for n in x) for x in (query, key, value)):
        assert spec.score is not None
        axes = Axes.of(query, key, value, text=spec.score.accepts == "text")
        problem = Problem(spec, axes, library, dtype, gradient, tuple(readouts), memory_bytes(memory))
    else:
        query, key, value = (as_array(x) for x in (query, key, value))
        problem = read_problem(query, key, value, spec, tuple(readouts), memory)
    check_problem(problem)
    return plan_problem(problem, KERNELS, kernel)


def prepare(
    spec: Spec,
    shapes: tuple[Shape, Shape, Shape],
    *,
    readouts: Sequence[Readout] = (),
    kernel: str | Kernel | None = None,
    memory: int | str = "512 MiB",
    library: str = "numpy",
    dtype: str = "float32",
    gradient: bool = False,
) -> Prepared:
    """Return a function of query, key and value with a fixed plan, for many calls of the same shapes.

    Args:
        spec: score, normalizer, mask, positions and dropout.
        shapes: shapes of query, key and value.
        readouts: as in `explain`.
        kernel: as in `explain`.
        memory: as in `explain`.
        library: as in `explain`.
        dtype: as in `explain`.
        gradient: as in `explain`.

    Raises:
        As `attend`.

    Example:
        >>> import numpy as np, qkv
        >>> run = qkv.prepare(qkv.Spec(qkv.scores.Dot()), ((1, 2), (3, 2), (3, 1)), dtype="float64")
        >>> run(np.zeros((1, 2)), np.ones((3, 2)), np.array([[1.0], [2.0], [6.0]])).output
        array([[3.]])
    """
    return Prepared(
        explain(
            *shapes,
            readouts=readouts,
            score=spec.score,
            normalizer=spec.normalizer,
            mask=spec.mask,
            positions=spec.positions,
            dropout=spec.dropout,
            kernel=kernel,
            memory=memory,
            library=library,
            dtype=dtype,
            gradient=gradient,
        )
    )


@dataclass(frozen=True)
class Prepared:
    """A function that runs a plan on arrays of the shapes it was planned for.

    Attributes:
        plan: the plan.
    """

    plan: Plan

    def __call__(self, query: ArrayLike, key: ArrayLike, value: ArrayLike, *, seed: int | None = None) -> Observation:
        """Run the plan.

        Args:
            query: as in `attend`.
            key: as in `attend`.
            value: as in `attend`.
            seed: as in `attend`.

        Raises:
            ShapeError: the arrays have other shapes than the plan.
            KindError: the arrays are of another library than the plan.
        """
        query, key, value = (as_array(x) for x in (query, key, value))
        if tracing_mode(query, key, value) == "compile":
            refuse(_NOT_COMPILED)
        plan, axes = self.plan, self.plan.requested.axes
        shapes = tuple(tuple(x.shape) for x in (query, key, value))
        if shapes != (axes.query, axes.key, axes.value):
            raise ShapeError(
                f"arrays must have the plan's shapes {axes.query}, {axes.key}, {axes.value}, got "
                f"{shapes[0]}, {shapes[1]}, {shapes[2]}. Prepare another plan, or call qkv.attend."
            )
        if (given := library(query, key, value)) != plan.requested.library:
            raise KindError(
                f"arrays must be of the plan's library, {plan.requested.library}, got {given}. Prepare another "
                f"plan, or call qkv.attend."
            )
        result = plan.kernel.run(_bind(query, key, value, plan.problem, seed, plan.kernel), plan.problem)
        return Observation(result.output, result.readouts, plan.with_guards_taken(result.guards))


def _run(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    seed: int | None,
    kernel: str | Kernel | None,
    memory: int | str,
) -> tuple[Result, Plan | None]:
    """Plan and run a call; the plan is None while `torch.compile` traces the call."""
    query, key, value = as_array(query), as_array(key), as_array(value)
    traced = tracing_mode(query, key, value)
    if traced == "compile":
        return Result(compiled_attend(query, key, value, fields, seed, _attend_in_operator, kernel, memory)), None
    # A graph is exported once, and may have symbols for lengths.
    found = None
    if traced != "export":
        found = call_signature(query, key, value, fields, readouts, traced, kernel, memory, type(memory).__name__)
    cached = None if found is None else PLANS.get(found[0])
    if cached is not None and not cached.holds_arrays:
        plan = cached.plan
        if cached.prepared is not None and seed is None:
            return cached.prepared(query, key, value), plan
    else:
        problem = read_problem(query, key, value, Spec(*fields), readouts, memory, traced)
        check_problem(problem)
        if cached is not None:
            plan = cached.with_problem(problem)
        else:
            plan = (export_plan if traced == "export" else plan_problem)(problem, KERNELS, kernel)
            if found is not None:
                store_plan(*found, plan, query, key, value)
    return plan.kernel.run(_bind(query, key, value, plan.problem, seed, plan.kernel), plan.problem), plan


def _bind(query: Array, key: Array, value: Array, problem: Problem, seed: int | None, kernel: Kernel) -> BoundCall:
    spec = problem.spec
    return bind_call(
        query,
        key,
        value,
        score=problem.score,
        normalizer=problem.normalizer,
        mask=spec.mask,
        positions=spec.positions,
        dropout=spec.dropout,
        seed=read_seed(problem, seed),
        cast_tiles=kernel.casts_tiles,
        axes=problem.axes,
    )


for _verb in (attend, observe, explain, prepare, Prepared.__call__):
    # Tells `tf.function` to leave the function as it is: AutoGraph would rewrite the whole engine, and warns if it
    # cannot.
    setattr(_verb, "autograph_info__", {})  # noqa: B010
