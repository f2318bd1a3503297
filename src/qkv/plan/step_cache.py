"""Cache of plans of decoding steps, that is, of calls with few queries whose number of keys grows from call to call.

A plan is made for the largest of a range of numbers of keys, at most a quarter more than the smallest, and is valid for
all of them: what a kernel supports and the memory that it needs do not get worse with fewer keys. Parts that hold an
array per key have no such plan.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import cast

from qkv.core.axes import Axes
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.errors import RefusedError
from qkv.plan.cache import CachedPlan, SpecFields, cached_plan, hollow_problem, step_signature
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem

__all__ = ["STEPS", "step_plan"]


@dataclass(frozen=True)
class _Step:
    """Plan of the steps with a similar number of keys.

    Attributes:
        cached: the plan, for the largest of these numbers of keys.
        problem: the planned problem, whose arrays are zeros.
    """

    cached: CachedPlan
    problem: Problem


STEPS: OrderedDict[Hashable, _Step | None] = OrderedDict()
"""Cached plans by the signature of a step, the oldest first; None after the first call of a signature."""

_MAX_PLANS = 256
"""Largest number of plans in the cache. The oldest plan is dropped first."""
_MAX_QUERIES = 16
"""Largest number of queries of a step: more queries are seldom those of a decoding loop."""
_MIN_KEYS = 8
"""Number of keys from which plans are shared."""


def step_plan(
    signature: Hashable,
    holds_arrays: bool,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    fields: SpecFields,
    plan: Callable[[Array, Array, Array], Plan],
) -> CachedPlan | None:
    """Return the plan of a decoding step that another step with a similar number of keys shares, or None.

    The plan is made at the second such step, so that a single call costs no more than without this cache.

    Args:
        signature: signature of the call, as `call_signature` returns it.
        holds_arrays: whether parts of the call hold arrays, as `call_signature` returns it.
        fields: score, normalizer, mask, positions and dropout.
        plan: function that plans a call of query, key and value with the other arguments of this call.
    """
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(x, torch.Tensor) and x.ndim >= 2 for x in (query, key, value)):
        return None
    q, k = query.shape[-2], key.shape[-2]
    if not (isinstance(q, int) and isinstance(k, int)):  # lengths of jagged tensors are symbols
        return None
    if q > _MAX_QUERIES or k < _MIN_KEYS or value.shape[-2] != k:
        return None
    longest = _longest(k)
    step = step_signature(signature, longest, key.shape, value.shape)
    if step not in STEPS:
        STEPS[step] = None
        if len(STEPS) > _MAX_PLANS:
            STEPS.popitem(last=False)
        return None
    found = STEPS[step]
    if found is None:
        if not _same_for_all_lengths(fields):
            return None
        sides = query, *(_repeat_row(x, longest) for x in (key, value))
        try:
            made = plan(*sides)
        except RefusedError:  # fewer keys may fit the memory budget
            return None
        found = STEPS[step] = _Step(cached_plan(made, holds_arrays, *sides), hollow_problem(made.problem))
    return _with_keys(found, query, key, value)


def _repeat_row(x: Num[Array, "*batch k width"], rows: int) -> Num[Array, "*batch rows width"]:
    """Return the first row of a tensor, repeated without taking memory."""
    tensor = cast("Tensor", x)
    return tensor[..., :1, :].expand(*tensor.shape[:-2], rows, tensor.shape[-1])


def _longest(k: int) -> int:
    """Return the largest number of keys of the range that contains `k`.

    Example:
        >>> [_longest(k) for k in (8, 9, 10, 16, 19, 32, 100, 2048)]
        [9, 9, 11, 19, 19, 39, 111, 2559]
    """
    step = 1 << (k.bit_length() - 3)
    return k // step * step + step - 1


def _same_for_all_lengths(fields: SpecFields) -> bool:
    """Return whether the parts of a call mean the same for every number of keys."""
    *parts, mask, positions, _ = fields
    if (mask is not None and not mask.key_only) or (positions is not None and positions.align != "end"):
        return False
    tensor = sys.modules["torch"].Tensor
    array_fields = [field for part in (*parts, mask) if part is not None for field in part.array_fields()]
    return all(isinstance(x, tensor) and names is not None and not {"q", "k"} & set(names) for x, names in array_fields)


def _with_keys(
    step: _Step,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
) -> CachedPlan | None:
    """Return a plan for another number of keys, or None if its normalizer has a simpler form for so few keys."""
    axes = Axes.of(query.shape, key.shape, value.shape)
    normalizer, cached = step.problem.normalizer, step.cached
    if normalizer.simplify(axes.k) is not normalizer:
        return None
    plan = cached.plan
    plan = replace(plan, requested=replace(plan.requested, axes=axes), problem=replace(plan.problem, axes=axes))
    prepared = plan.kernel.prepare(replace(step.problem, axes=axes)) if cached.bound else None
    return replace(cached, plan=plan, prepared=prepared)
