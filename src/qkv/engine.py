"""The engine: the four verbs. It joins a plan, a kernel and the arrays, and is the one public door to them.

attend    run, and give the output
observe   run, and give the output, what was read from the weights, and the plan
explain   give the plan; nothing is computed
prepare   give a function with the plan fixed
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.arrays import Array, as_array, dtype_name, is_text, library, requires_gradient, result_dtype
from qkv.core.axes import Axes
from qkv.core.equation import make_ready
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.errors import KindError, OptionError, RefusedError, ShapeError
from qkv.kernels import KERNELS
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan import Kernel, Plan, Problem, Spec, make_plan
from qkv.plan.cost import memory_bytes
from qkv.plan.planner import rewrite
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
        seed: of all draws. None: from torch's generator; NumPy and JAX must be given one.
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
    spec = Spec(score, normalizer, mask, positions, dropout)
    return _run(query, key, value, spec, (), seed, kernel, memory).output


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
    spec = Spec(score, normalizer, mask, positions, dropout)
    return _run(query, key, value, spec, tuple(readouts), seed, kernel, memory)


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
        streamed
    """
    spec = Spec(score, normalizer, mask, positions, dropout)
    if all(isinstance(x, tuple) and all(isinstance(n, int) for n in x) for x in (query, key, value)):
        assert spec.score is not None
        axes = Axes.of(query, key, value, text=spec.score.takes == "text")
        problem = Problem(spec, axes, library, dtype, gradient, tuple(readouts), memory_bytes(memory))
    else:
        query, key, value = (as_array(x) for x in (query, key, value))
        problem = _problem(query, key, value, spec, tuple(readouts), memory)
    _check(problem)
    return _plan(problem, kernel)


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
        axes = self.plan.asked.axes
        got = tuple(tuple(x.shape) for x in (query, key, value))
        if got != (axes.query, axes.key, axes.value):
            raise ShapeError(
                f"the plan was prepared for shapes {axes.query}, {axes.key}, {axes.value}; the arrays have "
                f"{got[0]}, {got[1]}, {got[2]}. Prepare another plan, or call qkv.attend."
            )
        if library(query, key, value) != self.plan.asked.library:
            raise KindError(
                f"the plan was prepared for {self.plan.asked.library}, the arrays are of "
                f"{library(query, key, value)}."
            )
        return _execute(query, key, value, self.plan, seed)


def _run(
    query: Any,
    key: Any,
    value: Any,
    spec: Spec,
    readouts: tuple[Readout, ...],
    seed: int | None,
    kernel: str | Kernel | None,
    memory: int | str,
) -> Observation:
    query, key, value = (as_array(x) for x in (query, key, value))
    problem = _problem(query, key, value, spec, readouts, memory)
    _check(problem)
    return _execute(query, key, value, _plan(problem, kernel), seed)


def _problem(
    query: Array, key: Array, value: Array, spec: Spec, readouts: tuple[Readout, ...], memory: int | str
) -> Problem:
    kind = library(query, key, value)
    texts = (is_text(query), is_text(key))
    assert spec.score is not None
    spec.score.check_kind(*texts)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if (is_text(x) and name == "value") or "complex" in dtype_name(x):
            raise KindError(f"{name} has {dtype_name(x)} elements. It must be real numbers.")
    axes = Axes.of(query.shape, key.shape, value.shape, texts[0])
    numbers = (value,) if texts[0] else (query, key, value)
    dtype = str(result_dtype(*numbers)).removeprefix("torch.")
    parts: list[Part] = [part for part in (spec.score, spec.normalizer) if part is not None]
    held = [array for part in parts for array in part.arrays()]
    gradient = any(requires_gradient(x) for x in (*numbers, *held))
    return Problem(spec, axes, kind, dtype, gradient, readouts, memory_bytes(memory))


def _check(problem: Problem) -> None:
    axes, spec = problem.axes, problem.spec
    if not axes.text:
        problem.score.check(axes.query_width, axes.key_width)
    problem.score.check_lengths(axes.q, axes.k)
    if spec.mask is not None:
        spec.mask.check(axes.q, axes.k)
    if spec.positional:
        problem.place.offset()
    for readout in problem.readouts:
        if not isinstance(readout, Readout):
            raise KindError(
                f"{readout!r} is no readout. Give instances from qkv.readouts, such as TopWeights(5)."
            )
        if sentence := readout.refuse(problem.normalizer):
            raise RefusedError(sentence)
        readout.check(axes.q, axes.k)


_PLANS: OrderedDict[Hashable, Plan] = OrderedDict()
_PLANS_KEPT = 256


def _plan(problem: Problem, pinned: str | Kernel | None) -> Plan:
    """The plan, kept by facts and shapes. A kept plan holds no arrays: those of the call are put in again."""
    signature = (problem.signature(), pinned)
    kept = _PLANS.get(signature)
    if kept is None:
        if isinstance(pinned, Kernel):
            plan = make_plan(problem, (pinned,), pinned.name)
        else:
            plan = make_plan(problem, KERNELS, pinned)
        _PLANS[signature] = dataclasses.replace(plan, asked=_EMPTY, problem=_EMPTY)
        if len(_PLANS) > _PLANS_KEPT:
            _PLANS.popitem(last=False)
        return plan
    return dataclasses.replace(kept, asked=problem, problem=rewrite(problem)[0])


_EMPTY = Problem(Spec(), Axes.of((0, 1), (0, 1), (0, 1)))


def _execute(query: Array, key: Array, value: Array, plan: Plan, seed: int | None) -> Observation:
    problem, spec = plan.problem, plan.problem.spec
    ready = make_ready(
        query,
        key,
        value,
        score=problem.score,
        normalizer=problem.normalizer,
        mask=spec.mask,
        positions=spec.positions,
        dropout=spec.dropout,
        seed=_seed(problem, seed),
    )
    result = plan.kernel.run(ready, problem)
    return Observation(result.output, result.readouts, plan.with_taken(result.guards))


def _seed(problem: Problem, seed: int | None) -> int | None:
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise OptionError(f"seed is {seed!r}. It must be a whole number.")
        return int(seed)
    if not (problem.spec.dropout or problem.normalizer.stochastic):
        return None
    if problem.library != "torch":
        what = "dropout" if problem.spec.dropout else str(problem.normalizer)
        raise OptionError(
            f"{what} draws at random, and {problem.library} has no generator of its own. Give seed=…."
        )
    import torch

    return int(torch.randint(2**62, ()).item())
