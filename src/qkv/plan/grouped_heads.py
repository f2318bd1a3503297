"""Grouped-query attention, in which several query heads share a key head without copies of keys and values.

    query (*batch, heads, q, width)          ->   (*batch, key_heads, group, q, width)
    key   (*batch, key_heads, k, width)      ->   (*batch, key_heads, 1, k, width)          heads = key_heads · group

The result of the call with two axes of heads has its axes merged again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from qkv.core.arrays import as_array, is_text, namespace
from qkv.core.axes import broadcast_batch
from qkv.core.function_part import function_parts
from qkv.core.map_batch import map_batch
from qkv.core.parts import Part
from qkv.core.typing import Array, ArrayLike, Shaped
from qkv.errors import ShapeError
from qkv.masks import Mask
from qkv.plan.kernel_protocol import Result
from qkv.plan.plan import Plan
from qkv.plan.shared_keys import Sides
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
        batch: batch axes of the call, the last of which are the query heads.
    """

    key_heads: int
    group: int
    batch: Shape

    @classmethod
    def of(cls, query: Shape, key: Shape, value: Shape, text: bool = False) -> HeadGroups:
        """Return the groups of a call, computed from the shapes of query, key and value.

        Raises:
            ShapeError: an array has no axis of heads, key and value differ in the number of heads, this number does
                not divide the number of query heads, or the other batch axes do not broadcast.

        Example:
            >>> HeadGroups.of((1, 8, 5, 4), (1, 2, 9, 4), (1, 2, 9, 4))
            HeadGroups(key_heads=2, group=4, batch=(1, 8))
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
        others = {"query": query[: -core - 1], "key": key[: -core - 1], "value": value[:-3]}
        batch = broadcast_batch(**{f"{name} before its heads": axes for name, axes in others.items()})
        return cls(key_heads, heads // key_heads, (*batch, heads))

    def split_shape(self, shape: Shape, core: int = 2, shared: bool = False) -> Shape:
        """Return a shape with its axis of heads split into two; `shared` states whether it is that of key or value."""
        at = len(shape) - core - 1
        heads = (self.key_heads, 1) if shared else (self.key_heads, self.group)
        return (*shape[:at], *heads, *shape[at + 1 :])

    def split_part(self, part: T) -> T:
        """Return a part with the axis of heads of its arrays split into two, as in the call.

        Arrays without batch axes are unchanged.

        Raises:
            ShapeError: an array has other batch axes than the call.
        """
        others: list[Array] = []

        def split(x: Array, own_axes: int) -> Array:
            if own_axes == 0:
                return x
            shape = tuple(x.shape)
            own, core = shape[: max(0, own_axes)], shape[max(0, own_axes) :]
            if len(own) != len(self.batch) or any([m not in (1, n) for m, n in zip(own, self.batch, strict=True)]):  # noqa: C419
                others.append(x)
                return x
            heads = (1, 1) if own[-1] == 1 else (self.key_heads, self.group)
            return namespace(x).reshape(x, (*own[:-1], *heads, *core))

        found = map_batch(part, split)
        if others:  # state the axes before they are split
            for each in part if isinstance(part, tuple) else (part,):
                if isinstance(each, Part):
                    each.check_shapes(self.batch, {})
        return found

    def merge(self, x: Shaped[Array, "*_split"]) -> Shaped[Array, "*_merged"]:
        """Return a result of the call with its two axes of heads merged into one."""
        at = len(self.batch) - 1
        shape = tuple(x.shape)
        return namespace(x).reshape(x, (*shape[:at], self.key_heads * self.group, *shape[at + 2 :]))


def split_heads(
    query: ArrayLike | Shape, key: ArrayLike | Shape, value: ArrayLike | Shape, parts: T, readouts: tuple[Readout, ...]
) -> tuple[Sides, T, tuple[Readout, ...], HeadGroups | None]:
    """Return the arguments of a call with its axis of heads split into two, and its groups.

    The groups are None, and the axis of heads is not split, if every query head has its own key head, if a single key
    head serves all, if a readout selects heads by index, or if a function of the user gets arrays with the axes of the
    call; for the last two, keys and values are copied for each head.

    Args:
        query: queries `(*batch, heads, q, width)`, or their shape as a tuple.
        key: keys `(*batch, key_heads, k, width)`, or their shape.
        value: values `(*batch, key_heads, k, value_width)`, or their shape.

    Raises:
        ShapeError: the numbers of heads do not match, or an array of a part does not fit the call.
    """
    sides = [x if isinstance(x, tuple) else as_array(x) for x in (query, key, value)]
    shapes = [x if isinstance(x, tuple) else tuple(x.shape) for x in sides]
    text = not isinstance(sides[0], tuple) and is_text(sides[0])
    groups = HeadGroups.of(shapes[0], shapes[1], shapes[2], text)
    if groups.group == 1 or groups.key_heads == 1:
        return (sides[0], sides[1], sides[2]), parts, readouts, None
    cores = (1, 1, 2) if text else (2, 2, 2)
    functions = [not isinstance(each, Mask) or len(each.parameters) > 0 for each in function_parts(parts)]
    if any([readout.head_indices is not None for readout in readouts]) or any(functions):  # noqa: C419 -- torch.compile
        copied = [_copy_heads(x, groups, core) for x, core in zip(sides[1:], cores[1:], strict=True)]
        return (sides[0], copied[0], copied[1]), parts, readouts, None
    fields = (parts.mask,) if isinstance(parts, Spec) else parts if isinstance(parts, tuple) else ()
    for each in fields:
        if isinstance(each, Mask):
            each.check(shapes[0][-cores[0]], shapes[1][-cores[1]])
    split = []
    for x, shape, core, shared in zip(sides, shapes, cores, (False, True, True), strict=True):
        target = groups.split_shape(shape, core, shared)
        split.append(target if isinstance(x, tuple) else _reshape(x, target))
    return (split[0], split[1], split[2]), groups.split_part(parts), groups.split_part(readouts), groups


def run_grouped(
    run: Callable[..., tuple[Result, Plan | None]],
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    parts: tuple[object, ...],
    readouts: tuple[Readout, ...],
    *options: object,
) -> tuple[Result, Plan | None]:
    """Run a call with grouped heads as a call with two axes of heads, and return its result with these axes merged.

    The arguments are those of `split_heads`, after the function `run`, and further arguments `options` of `run`.
    """
    sides, parts, readouts, groups = split_heads(query, key, value, parts, readouts)
    result, plan = run(*sides, parts, readouts, *options)
    if groups is None:
        return result, plan
    merge = groups.merge
    read = [unflatten(tuple([merge(x) for x in flatten(r)]), r) for r in result.readouts]
    return replace(result, output=merge(result.output), readouts=tuple(read)), plan


def _copy_heads(x: ArrayLike, groups: HeadGroups, core: int) -> ArrayLike:
    heads = range(groups.key_heads * groups.group)
    if isinstance(x, tuple):
        return (*x[: len(x) - core - 1], len(heads), *x[len(x) - core :])
    cut = (slice(None),) * core
    copies = [x[(..., slice(n // groups.group, n // groups.group + 1), *cut)] for n in heads]
    return np.concatenate(copies, axis=-core - 1) if is_text(x) else namespace(x).concat(copies, axis=-core - 1)


def _reshape(x: ArrayLike, shape: Shape) -> Array:
    reshaped: Array = x.reshape(shape) if is_text(x) else namespace(x).reshape(x, shape)
    return reshaped
