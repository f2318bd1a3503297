"""Grouped-query attention, in which several query heads share a key head without copies of keys and values.

    query (*batch, heads, q, width)          ->   (*batch, key_heads, group, q, width)
    key   (*batch, key_heads, k, width)      ->   (*batch, key_heads, 1, k, width)          heads = key_heads · group

A few queries whose rows nothing but their vectors tells apart become rows of one head, so that keys are read once:

    query (*batch, heads, q, width)          ->   (*batch, key_heads, group · q, width)

The result has the axes of the query again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from qkv.core.arrays import as_array, is_text, namespace
from qkv.core.function_part import function_parts
from qkv.core.map_batch import map_batch
from qkv.core.parts import Part
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, ArrayLike, Shaped
from qkv.errors import ShapeError
from qkv.masks import Mask
from qkv.plan.kernel_protocol import Result
from qkv.plan.plan import Plan
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.readouts.base import flatten, unflatten

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class HeadGroups:
    """Numbers of heads of a call whose query heads share key heads.

    Attributes:
        key_heads: number of heads of key and value.
        group: number of consecutive query heads that share a key head.
        batch_axes: number of batch axes of the call, including the heads.
        rows: number of queries of a head, if the queries of a group become rows of one head; otherwise 0.
    """

    key_heads: int
    group: int
    batch_axes: int
    rows: int = 0

    @classmethod
    def of(cls, query: Shape, key: Shape, value: Shape, text: bool = False) -> HeadGroups:
        """Return the groups of a call, computed from the shapes of query, key and value.

        Raises:
            ShapeError: an array has no axis of heads, key and value differ in the number of heads, or this number
                does not divide the number of query heads.

        Example:
            >>> HeadGroups.of((1, 8, 5, 4), (1, 2, 9, 4), (1, 2, 9, 4))
            HeadGroups(key_heads=2, group=4, batch_axes=2, rows=0)
        """
        core = 1 if text else 2
        for name, shape, own in (("query", query, core), ("key", key, core), ("value", value, 2)):
            if len(shape) <= own:
                raise ShapeError(
                    f"{name} must have an axis of heads for enable_gqa=True, got shape {shape}. Pass arrays of shape "
                    "(*batch, heads, length, width)."
                )
        heads, key_heads, value_heads = query[-core - 1], key[-core - 1], value[-3]
        if key_heads != value_heads:
            raise ShapeError(
                f"key and value must have the same number of heads for enable_gqa=True, got {key_heads} and "
                f"{value_heads}. Pass one value head per key head."
            )
        if key_heads == 0 or heads % key_heads:
            raise ShapeError(
                f"the number of query heads must be a multiple of the {key_heads} key heads for enable_gqa=True, got "
                f"{heads}. Axis −3 of query, key and value is the axis of heads."
            )
        axes = max(len(query) - core, len(key) - core, len(value) - 2)
        return cls(key_heads, heads // key_heads, axes)

    def split_shape(self, shape: Shape, core: int = 2, shared: bool = False) -> Shape:
        """Return a shape with its axis of heads split into two; `shared` states whether it is that of key or value."""
        at = len(shape) - core - 1
        if self.rows:
            return shape if shared else (*shape[:at], self.key_heads, self.group * self.rows, shape[-1])
        heads = (self.key_heads, 1) if shared else (self.key_heads, self.group)
        return (*shape[:at], *heads, *shape[at + 1 :])

    def split_part(self, part: T) -> T:
        """Return a part with the axis of heads of its arrays split into two, as in the call.

        Arrays without batch axes are unchanged, and so are arrays whose batch axes do not match, for which the call
        raises the error.
        """

        def split(x: Array, own_axes: int) -> Array:
            if own_axes != self.batch_axes or self.rows:
                return x
            shape = tuple(x.shape)
            lead, core = shape[: own_axes - 1], shape[own_axes:]
            if shape[own_axes - 1] == 1:
                return namespace(x).reshape(x, (*lead, 1, 1, *core))
            if shape[own_axes - 1] != self.key_heads * self.group:
                return x
            return namespace(x).reshape(x, (*lead, self.key_heads, self.group, *core))

        return map_batch(part, split)

    def merge(self, x: Shaped[Array, "*_split"]) -> Shaped[Array, "*_merged"]:
        """Return a result of the call with the axis of heads of the query."""
        at = self.batch_axes - 1
        shape = tuple(x.shape)
        if self.rows:
            return namespace(x).reshape(x, (*shape[:at], self.key_heads * self.group, self.rows, shape[-1]))
        return namespace(x).reshape(x, (*shape[:at], self.key_heads * self.group, *shape[at + 2 :]))


def split_heads(
    query: ArrayLike | Shape,
    key: ArrayLike | Shape,
    value: ArrayLike | Shape,
    parts: T,
    readouts: tuple[Readout, ...],
    *,
    whole: bool = True,
) -> tuple[tuple[Any, Any, Any], T, tuple[Readout, ...], HeadGroups | None]:
    """Return the arguments of a call with its axis of heads split into two, and its groups.

    The groups are None, and the axis of heads is not split, if every query head has its own key head, if a single key
    head serves all, if a readout selects heads by index, or if a function of the user gets arrays with the axes of the
    call; for the last two, keys and values are copied for each head.

    Args:
        query: queries `(*batch, heads, q, width)`, or their shape as a tuple.
        key: keys `(*batch, key_heads, k, width)`, or their shape.
        value: values `(*batch, key_heads, k, value_width)`, or their shape.
        whole: whether the arrays have all queries of the call, and their number is known.

    Raises:
        ShapeError: the numbers of heads do not match.
    """
    sides = [x if isinstance(x, tuple) else as_array(x) for x in (query, key, value)]
    shapes = [x if isinstance(x, tuple) else tuple(x.shape) for x in sides]
    text = not isinstance(sides[0], tuple) and is_text(sides[0])
    groups = HeadGroups.of(shapes[0], shapes[1], shapes[2], text)
    functions = [not isinstance(each, Mask) or len(each.parameters) > 0 for each in function_parts(parts)]
    if whole and not (text or readouts or functions) and groups.group > 1:
        q = shapes[0][-2]
        if 0 < groups.group * q <= _FEW_ROWS and _differ_in_vectors_alone(parts):
            groups = replace(groups, rows=q)
    if groups.group == 1 or (groups.key_heads == 1 and not groups.rows):
        return (sides[0], sides[1], sides[2]), parts, readouts, None
    cores = (1, 1, 2) if text else (2, 2, 2)
    if any([readout.head_indices is not None for readout in readouts]) or any(functions):  # noqa: C419 -- torch.compile
        copied = [_copy_heads(x, groups, core) for x, core in zip(sides[1:], cores[1:], strict=True)]
        return (sides[0], copied[0], copied[1]), parts, readouts, None
    split = []
    for x, shape, core, shared in zip(sides, shapes, cores, (False, True, True), strict=True):
        target = groups.split_shape(shape, core, shared)
        split.append(target if isinstance(x, tuple) else _reshape(x, target))
    return (split[0], split[1], split[2]), groups.split_part(parts), groups.split_part(readouts), groups


_FEW_ROWS = 64
"""Largest number of queries of a group that become rows of one head.

One query of 32 heads with 8 key heads takes .6 of the time, 4 queries .7, and 64 queries .95 (one thread, 2,048 keys).
"""


def _differ_in_vectors_alone(parts: object) -> bool:
    """Return whether two queries with the same vector have the same weights, whatever their position and their head."""
    given = [getattr(parts, field.name) for field in fields(parts)] if isinstance(parts, Spec) else parts
    score, normalizer, mask, _, dropout = cast("Iterable[object]", given)
    own = [part for part in (score, normalizer, mask) if isinstance(part, Part)]
    if dropout or any(getattr(part, name, False) for part in own for name in ("positional", "stochastic")):
        return False
    if mask is not None and not getattr(mask, "key_only", False):
        return False
    arrays = [(tuple(x.shape), names) for part in own for x, names in part.array_fields()]
    return all(
        isinstance(names, tuple) and "q" not in names and (len(shape) == len(names) or shape[-len(names) - 1] == 1)
        for shape, names in arrays
    )


def run_grouped(
    run: Callable[..., tuple[Result, Plan | None]],
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    parts: tuple[Any, ...],
    readouts: tuple[Readout, ...],
    *options: Any,
) -> tuple[Result, Plan | None]:
    """Run a call with grouped heads as a call with two axes of heads, and return its result with these axes merged.

    The arguments are those of `split_heads`, after the function `run`, and further arguments `options` of `run`.
    """
    whole = not tracing_mode(*(as_array(x) for x in (query, key, value)))  # a graph may be for any number of queries
    sides, parts, readouts, groups = split_heads(query, key, value, parts, readouts, whole=whole)
    result, plan = run(*sides, parts, readouts, *options)
    if groups is None:
        return result, plan
    merge = groups.merge
    read = [unflatten(tuple([merge(x) for x in flatten(r)]), r) for r in result.readouts]
    return replace(result, output=merge(result.output), readouts=tuple(read)), plan


def _copy_heads(x: Any, groups: HeadGroups, core: int) -> Any:
    heads = range(groups.key_heads * groups.group)
    if isinstance(x, tuple):
        return (*x[: len(x) - core - 1], len(heads), *x[len(x) - core :])
    cut = (slice(None),) * core
    copies = [x[(..., slice(n // groups.group, n // groups.group + 1), *cut)] for n in heads]
    return np.concatenate(copies, axis=-core - 1) if is_text(x) else namespace(x).concat(copies, axis=-core - 1)


def _reshape(x: Any, shape: Shape) -> Array:
    reshaped: Array = x.reshape(shape) if is_text(x) else namespace(x).reshape(x, shape)
    return reshaped
