"""Cache of plans by the signature of a call, so that repeated calls are not planned again."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias, cast
from weakref import ref

from qkv.core.arrays import dtype_name, is_floating, namespace, requires_gradient, zeros
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.typing import Array, DType, Num, Shaped, Tensor
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.devices import jax_gpu_of
from qkv.plan.kernel_protocol import PreparedCall, Result
from qkv.plan.plan import Plan
from qkv.plan.planner import rewrite
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.scores import Score

SpecFields: TypeAlias = tuple[Score | None, Normalizer | None, Mask | None, Positions | None, float]
"""Score, normalizer, mask, positions and dropout, as passed by the caller."""

_HALF = ("bfloat16", "float16")
_MAX_PLANS = 256
"""Largest number of plans in the cache. The oldest plan is dropped first."""


@dataclass(frozen=True)
class CachedPlan:
    """Plan in the cache, without the arrays of the call for which it was made.

    Attributes:
        plan: the plan. If parts of the call hold arrays, its problems have no parts.
        holds_arrays: whether parts of the call hold arrays.
        bound: whether query, key, value and all parts can be used as they are, without conversion.
        prepared: function that runs such a call, or one whose query, key and value it converts from half to single
            precision; None if the kernel offers none.
        parts: score, normalizer and mask of the plan; each that holds arrays must be taken from the call.
        takes_arrays: whether score, normalizer and mask are taken from the call.
        longest: whether the plan is that of a call with at least as many keys, which `prepared` also runs.
    """

    plan: Plan
    holds_arrays: bool
    bound: bool
    prepared: PreparedCall | None
    parts: tuple[Score | None, Normalizer | None, Mask | None]
    takes_arrays: tuple[bool, bool, bool]
    longest: bool = False

    def run(
        self,
        query: Shaped[Array, "*_"],
        key: Shaped[Array, "*_"],
        value: Num[Array, "*#batch k value_width"],
        fields: SpecFields,
    ) -> Result | None:
        """Run a call by the prepared function, or return None if there is none or it does not support the data."""
        if self.prepared is None:
            return None
        parts, takes_arrays = self.parts, self.takes_arrays
        score = fields[0] if takes_arrays[0] else parts[0]
        normalizer = fields[1] if takes_arrays[1] else parts[1]
        mask = fields[2] if takes_arrays[2] else parts[2]
        assert score is not None
        assert normalizer is not None
        return self.prepared(query, key, value, score, normalizer, mask)

    def with_parts(self, spec: Spec, readouts: tuple[Readout, ...]) -> Plan:
        """Return the plan for parts that hold other arrays; their signature must be that of the planned call."""
        requested = dataclasses.replace(self.plan.requested, spec=spec, readouts=readouts)
        rewritten = rewrite(requested)[0] if self.plan.rewrites else requested
        rewritten = dataclasses.replace(rewritten, memory=self.plan.problem.memory)
        return dataclasses.replace(self.plan, requested=requested, problem=rewritten)


PLANS: OrderedDict[Hashable, CachedPlan] = OrderedDict()
"""Cached plans by call signature, the oldest first."""


@dataclass(frozen=True)
class _KnownPart:
    """Part that was passed to an earlier call, with its signature.

    Attributes:
        part: weak reference to the part.
        number: number that stands for the signature of the part; equal signatures have equal numbers.
        arrays: arrays of the part.
        kinds: shape and dtype of each array, which code of the caller can change in place.
    """

    part: ref[Part]
    number: int
    arrays: tuple[Shaped[Array, "*_"], ...]
    kinds: tuple[tuple[object, object], ...]

    @property
    def unchanged(self) -> bool:
        """Whether the arrays have the shapes and dtypes that they had when the signature was computed."""
        for x, (shape, dtype) in zip(self.arrays, self.kinds, strict=True):
            if x.shape != shape or x.dtype != dtype:
                return False
        return True


_KNOWN: dict[int, _KnownPart] = {}
"""Immutable parts of earlier calls by their `id`; a part that is no longer used is removed."""

_NUMBERS: dict[Hashable, int] = {}
"""Numbers that stand for signatures of parts, because hashing a number takes less time than hashing a signature."""
_MAX_NUMBERS = 4096
"""Largest number of these signatures."""
_next_number = count()


def call_signature(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Shaped[Array, "*_"],
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    *options: Hashable,
) -> tuple[Hashable, bool] | None:
    """Return the signature of a call, which determines its plan, and whether parts of the call hold arrays.

    Args:
        fields: score, normalizer, mask, positions and dropout.
        *options: further values on which the plan depends.

    Returns:
        The signature and a flag, or None if the type of an argument is wrong.
    """
    dropout = fields[4]
    if not isinstance(dropout, (int, float)):
        return None
    numbers: list[int | None] = []
    arrays: tuple[Shaped[Array, "*_"], ...] = ()
    for part in (*fields[:4], *readouts) if readouts else fields[:4]:
        if part is None:
            numbers.append(None)
            continue
        known = _KNOWN.get(id(part))
        if known is None or known.part() is not part or (known.arrays and not known.unchanged):
            if not isinstance(part, Part):
                return None
            known = _know(part)
        numbers.append(known.number)
        if known.arrays:
            arrays += known.arrays
    torch = sys.modules.get("torch")
    gradient, learned, device = False, False, None
    if torch is not None and isinstance(query, torch.Tensor) and query.is_cuda:
        device = query.device  # a plan depends on the kind of GPU
    elif "jax" in sys.modules:
        device = jax_gpu_of(query)
    if torch is not None and torch.is_grad_enabled():  # the types of arrays tell tracers of JAX from its arrays
        tensor = torch.Tensor
        for x in arrays:  # `any` with a generator takes twice as long
            learned = learned or (isinstance(x, tensor) and bool(x.requires_grad))
        gradient = learned
        for x in (query, key, value):
            gradient = gradient or (isinstance(x, tensor) and bool(x.requires_grad))
    if arrays and not gradient and (torch is None or not isinstance(query, torch.Tensor)):
        gradient = any(requires_gradient(x) for x in (query, key, value, *arrays))
    signature = (
        *numbers, type(dropout), dropout, gradient, learned, device, options,
        type(query), type(key), type(value), query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype,
    )  # fmt: skip
    return signature, bool(arrays)


def _know(part: Part) -> _KnownPart:
    """Compute the signature of a part, and remember it if the part is immutable."""
    signature, arrays = part.signature(), part.arrays()
    number = _NUMBERS.get(signature)
    if number is None:
        if len(_NUMBERS) >= _MAX_NUMBERS:
            _NUMBERS.clear()
        number = _NUMBERS[signature] = next(_next_number)
    key = id(part)
    known = _KnownPart(
        ref(part, lambda _: _KNOWN.pop(key, None)), number, arrays, tuple([(x.shape, x.dtype) for x in arrays])
    )
    if all(_is_immutable(inner) for inner in part.parts()):
        _KNOWN[key] = known
    return known


def _is_immutable(part: Part) -> bool:
    parameters = getattr(type(part), "__dataclass_params__", None)
    return bool(getattr(parameters, "frozen", False))


def store_plan(
    signature: Hashable,
    holds_arrays: bool,
    plan: Plan,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
) -> None:
    """Store the plan of a call in the cache, and drop the oldest plan if the cache is full."""
    PLANS[signature] = cached_plan(plan, holds_arrays, query, key, value)
    if len(PLANS) > _MAX_PLANS:
        PLANS.popitem(last=False)


def cached_plan(
    plan: Plan,
    holds_arrays: bool,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
) -> CachedPlan:
    """Return a plan without the arrays of the call for which it was made."""
    problem = plan.problem
    narrow = dtype_name(value) in _HALF and problem.library == "torch"
    half = narrow and not plan.kernel.keeps_dtype(problem)
    ready = _is_bound(plan, query, key, value, namespace(value).float32 if half else value.dtype)
    hold_arrays = bool(problem.score.arrays()), bool(problem.normalizer.arrays())
    parts: tuple[Score | None, Normalizer | None, Mask | None] = problem.score, problem.normalizer, problem.spec.mask
    takes_arrays = _holds_arrays(parts[0]), _holds_arrays(parts[1]), _holds_arrays(parts[2])
    if holds_arrays:
        parts = tuple(None if takes else part for part, takes in zip(parts, takes_arrays, strict=True))  # type: ignore[assignment]
        problem = hollow_problem(problem) if ready else problem
        empty = dataclasses.replace(plan.requested, spec=Spec(), readouts=())
        hollow = dataclasses.replace(empty, memory=plan.problem.memory)
        plan = dataclasses.replace(plan, requested=empty, problem=hollow)
    if half:
        problem = dataclasses.replace(problem, dtype="float32", rounded_to=problem.dtype)
    prepared = plan.kernel.prepare(problem) if ready else None
    if half and prepared is not None:
        prepared = _in_single_precision(prepared, value.dtype, hold_arrays)
    return CachedPlan(plan, holds_arrays, ready and not narrow, prepared, parts, takes_arrays)


def _in_single_precision(prepared: PreparedCall, dtype: DType, hold_arrays: tuple[bool, bool]) -> PreparedCall:
    """Return a function that converts all arrays of `dtype` to float32, and the output of `prepared` to `dtype`.

    Args:
        prepared: the function for calls in single precision.
        dtype: data type of the calls.
        hold_arrays: whether the score and the normalizer hold arrays.
    """

    def single(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        tensor = cast("Tensor", x)
        return tensor.float() if tensor.dtype == dtype else tensor

    def run(
        query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
    ) -> Result | None:
        sides = cast("tuple[Tensor, Tensor, Tensor]", (query, key, value))
        if hold_arrays[0]:
            score = score.map_arrays(single)
        if hold_arrays[1]:
            normalizer = normalizer.map_arrays(single)
        result = prepared(sides[0].float(), sides[1].float(), sides[2].float(), score, normalizer, mask)
        if result is None:
            return None
        return Result(cast("Tensor", result.output).to(dtype), result.readouts, result.guards)

    return run


def _holds_arrays(part: Part | None) -> bool:
    return part is not None and bool(part.arrays())


def _is_bound(
    plan: Plan,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    dtype: DType,
) -> bool:
    """Return whether calls of a plan need no conversion before they run, except of arrays of half precision to `dtype`.

    They do if they are of text, if arrays of parts must be cast or come from another library, if they use random
    numbers, if their mask must be bound to every call, or if rewrites replaced parts that hold arrays.
    """
    problem, mask = plan.problem, plan.problem.spec.mask
    ready = (
        not problem.axes.text
        and (mask is None or not mask.bound_per_call)
        and query.dtype == key.dtype == value.dtype
        and (
            dtype_name(value) in ("float32", "float64")
            or dtype != value.dtype
            or (plan.kernel.keeps_dtype(problem) and not plan.kernel.casts_tiles)  # `bind_unconverted` casts no tile
        )
        and not (problem.spec.dropout or problem.normalizer.stochastic)
    )
    spec, axes = problem.spec, problem.axes
    if not ready or not plan.requested.spec.arrays():
        return ready
    if problem.library not in ("torch", "numpy") or (spec.positions is not None and spec.positions.arrays()):
        return False
    lengths, given = {"q": axes.q, "k": axes.k}, plan.requested.spec
    for part, target, original in (
        (spec.score, dtype, given.score),
        (spec.normalizer, dtype, given.normalizer),
        (mask, None, given.mask),
    ):
        arrays = () if part is None else part.arrays()
        if part is None or not arrays:
            continue
        if part is not original:  # a rewrite made it of the arrays of another call
            return False
        converted = part.bind(value, axes.batch, target, lengths).arrays()
        for x, y in zip(arrays, converted, strict=True):
            cast_alone = x.dtype == value.dtype != y.dtype == target and x.shape == y.shape  # by `_in_single_precision`
            if x is not y and not cast_alone:
                return False
    return True


def hollow_problem(problem: Problem) -> Problem:
    """Return a problem whose PyTorch or NumPy arrays are constant and take no memory."""
    return dataclasses.replace(problem, spec=problem.spec.map_arrays(_hollow))


def _hollow(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Return ones or, of other than floating-point numbers, zeros like an array, which take no memory."""
    number = zeros(x, (), x.dtype) + 1 if is_floating(x) else zeros(x, (), x.dtype)  # scores divide by bandwidths
    return namespace(x).broadcast_to(number, tuple(x.shape))
