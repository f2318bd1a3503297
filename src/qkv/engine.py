"""The engine: the four verbs. It joins a plan, a kernel and the arrays, and is the one public door to them.

attend    run, and give the output
observe   run, and give the output, what was read from the weights, and the plan
explain   give the plan; nothing is computed
prepare   give a function with the plan fixed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.arrays import Array, as_array, dtype_name, is_array, library
from qkv.core.axes import Axes
from qkv.core.equation import BoundCall, bind_call
from qkv.core.positions import Positions
from qkv.core.tracing import tracing_mode
from qkv.errors import KindError, OptionError, ShapeError
from qkv.kernels import KERNELS
from qkv.kernels.compiled.export import export_plan
from qkv.kernels.compiled.operator import compiled, refuse
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan import Kernel, Plan, Problem, Spec
from qkv.plan.cache import CALLS, cached_plan, call_facts, keep_call
from qkv.plan.checks import check_problem, read_problem
from qkv.plan.cost import memory_bytes
from qkv.plan.kernel_protocol import Result
from qkv.readouts import Readout
from qkv.scores import Score

__all__ = ["Observation", "Prepared", "attend", "explain", "observe", "prepare"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Observation:
    """What `observe` gives.

    Attributes:
        output: `(*batch, q, value_width)`.
        readouts: one result for each readout, in the order asked.
        plan: how it ran, with the guards that were taken.
    """

    output: Array
    readouts: tuple[Any, ...]
    plan: Plan


def attend(
    query: Any,
    key: Any,
    value: Any,
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
    """Weigh the values by how well their keys match each query.

        weights = normalize(score(query, key), mask)          output = weights @ value

    Args:
        query: `(*batch, q, width)`, or text `(*batch, q)`.
        key: `(*batch, k, width)`, or text `(*batch, k)`.
        value: `(*batch, k, value_width)`. Batch axes broadcast; a broadcast axis is never copied.
        score: how query and key are compared; default `ScaledDot()`.
        normalizer: how logits become weights; default: the score's own, for most `Softmax()`.
        mask: which pairs may meet; None: all.
        positions: how query positions relate to key positions; wanted where q ≠ k and something looks at
            them.
        dropout: probability of dropping a weight. More than 0 means training.
        seed: of all draws. None: from torch's generator; NumPy, JAX and TensorFlow must be given one, the
            last two perhaps as an integer array, so that each step of a compiled loop draws anew.
        kernel: name of the kernel that must run it, or a kernel of your own; None: the planner chooses.
        memory: what may be allocated beyond inputs and output, in bytes or as "512 MiB".

    Returns:
        `(*batch, q, value_width)`, in the library and dtype of the inputs. Rows without any key are 0.

    Raises:
        ShapeError: lengths, widths or batch axes do not fit.
        KindError: a bare array as a mask, text under a score for numbers, arrays of several libraries.
        PositionError: q ≠ k, positions matter and are not given.
        RefusedError: no kernel, or not the named one, can run it within the memory.

    Example:
        >>> import numpy as np, qkv
        >>> salary = np.array([[30.0], [40.0], [60.0]])
        >>> gpa = np.array([[3.0], [3.5], [3.9]])
        >>> qkv.attend(np.array([[3.5]]), gpa, salary, score=qkv.scores.Gaussian(0.1))
        array([[40.0066...]])
    """
    asked = score, normalizer, mask, positions, dropout
    return _run(query, key, value, asked, (), seed, kernel, memory)[0].output


def _attend(query: Any, key: Any, value: Any, asked: Any, seed: Any, kernel: Any, memory: Any) -> Array:
    """What a call is run by that `torch.compile` does not look into."""
    return _run(query, key, value, asked, (), seed, kernel, memory)[0].output


def observe(
    query: Any,
    key: Any,
    value: Any,
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
    """As `attend`, and read something from the weights on the way. Reading never changes the output.

    Args:
        query, key, value, score, normalizer, mask, positions, dropout, seed, kernel, memory: as in `attend`.
        readouts: what to read, from `qkv.readouts`.

    Raises:
        RefusedError: a readout makes no sense for the normalizer; otherwise as `attend`.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [1.0]])
        >>> seen = qkv.observe(np.array([[9.0]]), keys, keys, readouts=[qkv.readouts.TopWeights(1)])
        >>> seen.readouts[0].keys
        array([[1]])
    """
    asked = score, normalizer, mask, positions, dropout
    result, plan = _run(query, key, value, asked, tuple(readouts), seed, kernel, memory)
    if plan is None:
        refuse(_UNREAD)
    return Observation(result.output, result.readouts, plan.with_guards_taken(result.guards))


_UNREAD = (
    "torch.compile cannot look into calls that give more than their output. Call qkv.attend there; keep "
    "qkv.observe and prepared plans in a function marked with torch.compiler.disable."
)


def explain(
    query: Any,
    key: Any,
    value: Any,
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
    """The plan of a call. Nothing is computed; shapes are enough.

    Args:
        query, key, value: arrays, or their shapes as tuples.
        library, dtype, gradient: of the call, where only shapes are given.
        readouts, score, normalizer, mask, positions, dropout, kernel, memory: as in `observe`.

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
    return cached_plan(problem, KERNELS, kernel)


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
    """A function of query, key and value with the plan fixed: it is made once and called often.

    Args:
        spec: what is asked.
        shapes: of query, key and value.
        readouts, kernel, memory, library, dtype, gradient: as in `explain`.

    Raises:
        As `attend`.

    Example:
        >>> import numpy as np, qkv
        >>> run = qkv.prepare(qkv.Spec(qkv.scores.Dot()), ((1, 2), (3, 2), (3, 1)), dtype="float64")
        >>> run(np.zeros((1, 2)), np.ones((3, 2)), np.array([[1.0], [2.0], [6.0]])).output
        array([[3.]])
    """
    plan = explain(
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
    return Prepared(plan)


@dataclass(frozen=True)
class Prepared:
    """A plan, ready to be called with arrays of the shapes it was made for."""

    plan: Plan

    def __call__(self, query: Any, key: Any, value: Any, *, seed: int | None = None) -> Observation:
        """Run the plan.

        Raises:
            ShapeError: the arrays have other shapes than the plan.
            KindError: they are of another library.
        """
        query, key, value = (as_array(x) for x in (query, key, value))
        if tracing_mode(query, key, value) == "compile":
            refuse(_UNREAD)
        axes = self.plan.requested.axes
        got = tuple(tuple(x.shape) for x in (query, key, value))
        if got != (axes.query, axes.key, axes.value):
            raise ShapeError(
                f"the plan was prepared for shapes {axes.query}, {axes.key}, {axes.value}; the arrays have "
                f"{got[0]}, {got[1]}, {got[2]}. Prepare another plan, or call qkv.attend."
            )
        if (given := library(query, key, value)) != self.plan.requested.library:
            raise KindError(
                f"arrays must be of the plan's library, {self.plan.requested.library}, got {given}. Prepare another "
                f"plan, or call qkv.attend."
            )
        plan = self.plan
        result = plan.kernel.run(_ready(query, key, value, plan.problem, seed, plan.kernel), plan.problem)
        return Observation(result.output, result.readouts, plan.with_guards_taken(result.guards))


def _run(
    query: Any,
    key: Any,
    value: Any,
    asked: tuple[Any, ...],
    readouts: tuple[Readout, ...],
    seed: int | None,
    kernel: str | Kernel | None,
    memory: int | str,
) -> tuple[Result, Plan | None]:
    """Run what is `asked`: the fields of a spec. No plan yet where `torch.compile` traces the call."""
    query, key, value = as_array(query), as_array(key), as_array(value)
    traced = tracing_mode(query, key, value)
    if traced == "compile":
        return Result(compiled(query, key, value, asked, seed, _attend, kernel, memory)), None
    planned = readouts or seed is not None or traced == "export"
    facts = None if planned else call_facts(query, key, value, asked)
    if facts is not None:
        facts = (facts, traced, kernel, type(memory), memory)
        known = CALLS.get(facts)
        if known is not None:
            plan, tile, short = known
            if short is not None and (result := short(query, key, value)) is not None:
                return result, plan
            problem = plan.problem
            if tile is None:
                call = _ready(query, key, value, problem, seed, plan.kernel)
            else:
                score, normalizer, mask = problem.score, problem.normalizer, problem.spec.mask
                call = BoundCall(query, key, value, score, normalizer, mask, tile, 0.0, value.dtype)
            return plan.kernel.run(call, problem), plan
    problem = read_problem(query, key, value, Spec(*asked), readouts, memory, traced)
    check_problem(problem)
    plan = (export_plan if traced == "export" else cached_plan)(problem, KERNELS, kernel)
    if facts is not None:
        keep_call(facts, plan, query, key, value)
    return plan.kernel.run(_ready(query, key, value, plan.problem, seed, plan.kernel), plan.problem), plan


def _ready(query: Array, key: Array, value: Array, problem: Problem, seed: int | None, kernel: Kernel) -> BoundCall:
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
        seed=_seed(problem, seed),
        cast_tiles=kernel.casts_tiles,
        axes=problem.axes,
    )


def _seed(problem: Problem, seed: Any) -> Any:
    if seed is not None:
        if is_array(seed) and "int" in dtype_name(seed) and tuple(seed.shape) in ((), (2,)):
            # Under `jax.jit` and `tf.function` a step's own seed is an array whose number is not known. Two
            # numbers are its words, the lower first.
            if library(seed) in ("jax", "tensorflow"):
                return (seed[0], seed[1]) if seed.ndim else seed
            low, high = (int(n) for n in seed) if seed.ndim else (int(seed), 0)
            return low + (high << 32)
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise OptionError(f"seed is {seed!r}. It must be a whole number.")
        return int(seed)
    if not (problem.spec.dropout or problem.normalizer.stochastic):
        return None
    if problem.library != "torch":
        what = "dropout" if problem.spec.dropout else str(problem.normalizer)
        raise OptionError(f"{what} draws at random, and {problem.library} has no generator of its own. Give seed=….")
    import torch

    return int(torch.randint(2**62, ()).item())


for _verb in (attend, observe, explain, prepare, Prepared.__call__):
    # How `tf.function` is told to leave a function as it is: AutoGraph would rewrite the whole engine, and
    # warns where it cannot.
    setattr(_verb, "autograph_info__", {})  # noqa: B010
