"""Kept plans. What shapes and facts decide is decided once: small calls have no time to ask again.

`PLANS` keeps plans by the facts of the problem; they hold no arrays. `CALLS` keeps whole calls whose parts
hold no arrays either, by what was given: then neither spec nor problem is made again, and nothing is checked
twice.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from qkv.core.arrays import Array, dtype_name
from qkv.core.axes import Axes
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.plan import Plan
from qkv.plan.planner import make_plan, rewrite
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["CALLS", "KEPT", "PLANS", "call_facts", "keep_call", "cached_plan"]

Short = Callable[[Array, Array, Array], Result | None]

KEPT = 256
"""How many plans, and how many calls."""

PLANS: OrderedDict[Hashable, Plan] = OrderedDict()
CALLS: OrderedDict[Hashable, tuple[Plan, Tile | None, Short | None]] = OrderedDict()
"""The plan; the place of calls that need nothing else to be ready; the kernel's shortcut for those."""

_EMPTY = Problem(Spec(), Axes.of((0, 1), (0, 1), (0, 1)))
_BARE: WeakKeyDictionary[Part, Hashable] = WeakKeyDictionary()
"""Signatures of parts without arrays: a part is a value and does not change."""


def cached_plan(problem: Problem, kernels: Sequence[Kernel], pinned: str | Kernel | None) -> Plan:
    """The plan, kept by facts and shapes. A kept plan holds no arrays: those of the call are put in again."""
    signature = (problem.signature(), pinned)
    kept = PLANS.get(signature)
    if kept is None:
        if isinstance(pinned, Kernel):
            plan = make_plan(problem, (pinned,), pinned.name)
        else:
            plan = make_plan(problem, kernels, pinned)
        PLANS[signature] = dataclasses.replace(plan, requested=_EMPTY, problem=_EMPTY)
        if len(PLANS) > KEPT:
            PLANS.popitem(last=False)
        return plan
    rewritten = rewrite(problem)[0] if kept.rewrites else problem
    return dataclasses.replace(kept, requested=problem, problem=rewritten)


def call_facts(query: Array, key: Array, value: Array, requested: tuple[Any, ...]) -> Hashable:
    """All that a call without arrays in its parts depends on, but its data; None for other calls.

    Args:
        query, key, value: the arrays.
        asked: score, normalizer, mask, positions, dropout, as they were given.
    """
    if not isinstance(requested[4], (int, float)):
        return None
    signatures: list[Hashable] = []
    for part in requested[:4]:
        if part is None:
            signatures.append(None)
            continue
        if not isinstance(part, Part):
            return None
        try:
            signature = _BARE.get(part)
            if signature is None:
                if part.arrays():
                    return None
                signature = _BARE[part] = part.signature()
        except TypeError:  # a part of the user's own that compares by its fields, and cannot be hashed
            return None
        signatures.append(signature)
    torch = sys.modules.get("torch")
    gradient = None
    if torch is not None and torch.is_grad_enabled():
        gradient = [x.requires_grad if isinstance(x, torch.Tensor) else False for x in (query, key, value)]
    return (
        *signatures, type(requested[4]), requested[4], gradient is not None and any(gradient),
        type(query), type(key), type(value), query.shape, key.shape, value.shape,
        query.dtype, key.dtype, value.dtype,
    )  # fmt: skip


def keep_call(facts: Hashable, plan: Plan, query: Array, key: Array, value: Array) -> None:
    """Remember the plan of a call; and its place, where its arrays are ready as they come."""
    problem = plan.problem
    ready = (
        not problem.axes.text
        and query.dtype == key.dtype == value.dtype
        and dtype_name(value) in ("float32", "float64")
        and not (problem.spec.dropout or problem.normalizer.stochastic)
    )
    CALLS[facts] = (plan, problem.tile, plan.kernel.shortcut(problem)) if ready else (plan, None, None)
    if len(CALLS) > KEPT:
        CALLS.popitem(last=False)
