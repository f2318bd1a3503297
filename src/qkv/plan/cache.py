"""Cache of plans by the signature of a call, so that repeated calls are not planned again."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

from qkv.core.arrays import dtype_name, requires_gradient
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.typing import Array, Num, Shaped
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.kernel_protocol import PreparedCall
from qkv.plan.plan import Plan
from qkv.plan.planner import rewrite
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.scores import Score

__all__ = ["PLANS", "SpecFields", "call_signature", "store_plan"]

SpecFields: TypeAlias = tuple[Score | None, Normalizer | None, Mask | None, Positions | None, float]
"""Score, normalizer, mask, positions and dropout, as passed by the caller."""

_MAX_PLANS = 256
"""Largest number of plans in the cache. The oldest plan is dropped first."""


@dataclass(frozen=True)
class _CachedPlan:
    """Plan in the cache, without the arrays of the call for which it was made.

    Attributes:
        plan: the plan. If parts of the call hold arrays, its problems have no parts.
        holds_arrays: whether parts of the call hold arrays.
        prepared: function that runs the call on other query, key and value of the same signature; None if such a call
            has to be bound first.
    """

    plan: Plan
    holds_arrays: bool
    prepared: PreparedCall | None

    def with_parts(self, spec: Spec, readouts: tuple[Readout, ...]) -> Plan:
        """Return the plan for parts that hold other arrays; their signature must be that of the planned call."""
        requested = dataclasses.replace(self.plan.requested, spec=spec, readouts=readouts)
        rewritten = rewrite(requested)[0] if self.plan.rewrites else requested
        return dataclasses.replace(self.plan, requested=requested, problem=rewritten)


PLANS: OrderedDict[Hashable, _CachedPlan] = OrderedDict()
"""Cached plans by call signature, the oldest first."""

_SIGNATURES: WeakKeyDictionary[Part, Hashable] = WeakKeyDictionary()
"""Cached signatures of parts without arrays, which are immutable."""


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
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        readouts: the readouts.
        *options: further values on which the plan depends.

    Returns:
        The signature and a flag, or None if the type of an argument is wrong.
    """
    dropout = fields[4]
    if not isinstance(dropout, (int, float)):
        return None
    signatures: list[Hashable] = []
    arrays = [query, key, value]
    holds_arrays = False
    for part in (*fields[:4], *readouts) if readouts else fields[:4]:
        if part is None:
            signatures.append(None)
            continue
        if not isinstance(part, Part):
            return None
        try:
            signature, hashable = _SIGNATURES.get(part), True
        except TypeError:  # a part defined by a user may have fields that cannot be hashed
            signature, hashable = None, False
        if signature is None:
            held = part.arrays()
            signature = part.signature()
            if held:
                holds_arrays = True
                arrays += held
            elif hashable:
                _SIGNATURES[part] = signature
        signatures.append(signature)
    torch = sys.modules.get("torch")
    gradient = False
    if holds_arrays:
        gradient = any(requires_gradient(x) for x in arrays)
    elif torch is not None and torch.is_grad_enabled():  # the types of arrays tell tracers of JAX from its arrays
        tensor = torch.Tensor
        for x in arrays:  # `any` with a generator takes twice as long
            gradient = gradient or (isinstance(x, tensor) and bool(x.requires_grad))
    signature = (
        *signatures, type(dropout), dropout, gradient, options,
        type(query), type(key), type(value), query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype,
    )  # fmt: skip
    return signature, holds_arrays


def store_plan(
    signature: Hashable,
    holds_arrays: bool,
    plan: Plan,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
) -> None:
    """Store the plan of a call in the cache, and drop the oldest plan if the cache is full.

    Args:
        signature: signature of the call.
        holds_arrays: whether parts of the call hold arrays.
        plan: the plan.
        query: queries of the call.
        key: keys of the call.
        value: values of the call.
    """
    if holds_arrays:
        empty = dataclasses.replace(plan.requested, spec=Spec(), readouts=())
        cached = _CachedPlan(dataclasses.replace(plan, requested=empty, problem=empty), True, None)
    else:
        cached = _CachedPlan(plan, False, _prepare(plan, query, key, value))
    PLANS[signature] = cached
    if len(PLANS) > _MAX_PLANS:
        PLANS.popitem(last=False)


def _prepare(
    plan: Plan, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], value: Num[Array, "*#batch k value_width"]
) -> PreparedCall | None:
    """Return a function that runs a planned call, or None if each such call must be bound first.

    Calls must be bound if they are of text, if their arrays must be cast, if they use random numbers, or if their mask
    must be bound to every call.
    """
    problem, mask = plan.problem, plan.problem.spec.mask
    ready = (
        not problem.axes.text
        and (mask is None or not mask.bound_per_call)
        and query.dtype == key.dtype == value.dtype
        and dtype_name(value) in ("float32", "float64")
        and not (problem.spec.dropout or problem.normalizer.stochastic)
    )
    return plan.kernel.prepare(problem) if ready else None
