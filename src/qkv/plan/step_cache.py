"""Cache of plans of decoding steps, that is, of calls with few queries whose number of keys grows from call to call.

A plan is made for the largest of a range of numbers of keys, at most a quarter more than the smallest, and is valid for
all of them: what a kernel supports and the memory that it needs do not get worse with fewer keys. Parts that hold an
array per key have no such plan. The position of a single query under a causal mask is replaced by the number of keys
that it attends to (`without_position`).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import cast

from qkv.core.arrays import is_tensor
from qkv.core.axes import Axes
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.errors import RefusedError
from qkv.masks import Causal, Lengths
from qkv.masks.lengths import unchecked_lengths
from qkv.plan.cache import CachedPlan, SpecFields, cached_plan, hollow_problem
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem


@dataclass(frozen=True)
class _Step:
    """Plan of the steps with a similar number of keys.

    Attributes:
        cached: the plan, for the largest of these numbers of keys.
        problem: the planned problem, with constant arrays.
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
    step = _step_signature(signature, longest, key.shape, value.shape)
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
        found = STEPS[step] = _Step(
            replace(cached_plan(made, holds_arrays, *sides), longest=True), hollow_problem(made.problem)
        )
    cached, normalizer = found.cached, found.problem.normalizer
    if normalizer.simplify(k) is not normalizer:  # it has a simpler form for so few keys
        return None
    spec = found.problem.spec
    if spec.mask is None and not spec.positional and cached.plan.kernel.prepares_all_lengths:
        return cached
    exact = with_keys(cached, query, key, value)
    axes = exact.plan.requested.axes
    prepared = exact.plan.kernel.prepare(replace(found.problem, axes=axes)) if cached.bound else None
    return replace(exact, prepared=prepared)


def with_keys(
    cached: CachedPlan, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], value: Num[Array, "*#batch k value_width"]
) -> CachedPlan:
    """Return the plan of a call with more keys for the number of keys of this call, with the same prepared function."""
    axes, plan = Axes.of(query.shape, key.shape, value.shape), cached.plan
    plan = replace(plan, requested=replace(plan.requested, axes=axes), problem=replace(plan.problem, axes=axes))
    return replace(cached, plan=plan, longest=False)


def without_position(
    query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], value: Num[Array, "*#batch k value_width"], fields: SpecFields
) -> tuple[Array, Array, SpecFields]:
    """Return key, value and fields of an equal call of one query whose plan does not depend on its position.

    Keys that a causal mask or a length excludes are left out if their number is an integer; otherwise the mask becomes
    one of lengths. Other calls are returned unchanged.

    Args:
        fields: score, normalizer, mask, positions and dropout.
    """
    score, normalizer, mask, positions, dropout = fields
    unchanged = key, value, fields
    if type(mask) not in (Causal, Lengths) or dropout or not is_tensor(query):
        return unchanged
    if query.ndim < 2 or query.shape[-2] != 1 or not (is_tensor(key) and is_tensor(value) and key.is_cpu):
        return unchanged
    if min(key.ndim, value.ndim) < 2:
        return unchanged
    k = key.shape[-2]
    if not isinstance(k, int) or value.shape[-2] != k:
        return unchanged
    if score is not None and (score.positional or score.arrays()):
        return unchanged
    if normalizer is not None and (normalizer.stochastic or normalizer.arrays()):
        return unchanged
    if isinstance(mask, Lengths):
        count = mask.lengths
    else:
        assert isinstance(mask, Causal)
        align = mask.align or (None if positions is None else positions.align)
        start = None if positions is None or mask.align else positions.query_start
        if align == "end":
            count = k
        elif start is None:
            return unchanged
        elif isinstance(start, int):
            count = start + 1
        else:
            return key, value, (score, normalizer, unchecked_lengths(start + 1), None, dropout)
    if not isinstance(count, int) or count < 1:
        return unchanged
    if count < k:
        key, value = key[..., :count, :], value[..., :count, :]
    return key, value, (score, normalizer, None, None, dropout)


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


def _step_signature(
    signature: Hashable, keys: int, key_shape: tuple[int, ...], value_shape: tuple[int, ...]
) -> Hashable:
    """Return the signature of a call with its number of keys replaced.

    Args:
        signature: signature of the call, as `call_signature` returns it.
        keys: number of keys to put in place of that of the call.
    """
    *parts, _, _, query_dtype, key_dtype, value_dtype = cast("tuple[Hashable, ...]", signature)
    shapes = [(*shape[:-2], keys, shape[-1]) for shape in (key_shape, value_shape)]
    return (*parts, *shapes, query_dtype, key_dtype, value_dtype)
