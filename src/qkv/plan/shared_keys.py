"""Queries of several batch elements that share their keys, as queries of one element, so that the keys are read once.

    query (*batch, *shared, q, width)        ->   (*batch, n · q, width)                n: product of the shared axes
    key   (*batch, 1, …, 1, k, width)        ->   (*batch, k, width)

The shared axes are the last batch axes, which neither keys nor values have: those of a batch of queries to one table,
or of a group of query heads in grouped-query attention. Nothing may tell such queries apart but their vectors: no
position, no random number, and no array of a score, normalizer or mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import TypeVar, cast

from qkv.core.arrays import namespace
from qkv.core.function_part import function_parts
from qkv.core.map_batch import map_batch
from qkv.core.parts import Part
from qkv.core.typing import Array, ArrayLike, Shaped
from qkv.plan.spec import Spec

Shape = tuple[int, ...]
T = TypeVar("T")
Sides = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Query, key and value, or their shapes."""

_MOST_QUERIES = 64
"""Largest number of queries of a batch element.

One query in each of 64 elements to 20,000 keys takes .03 to .5 of the time, one in each of 4 heads .6, four .7, and 64
queries .95 (PyTorch, one thread).
"""
_KNOWN = ("qkv.scores.", "qkv.normalizers.", "qkv.masks.")
"""Modules of the parts whose logits, weights and pairs depend on no index of a tile unless they say so."""


def join_queries(query: ArrayLike, key: ArrayLike, value: ArrayLike, parts: T) -> tuple[Sides, T, Shape] | None:
    """Return a call with its queries as those of fewer batch elements, and its shared axes; None if there are none.

    Args:
        query: queries `(*batch, q, width)`, or their shape as a tuple.
        key: keys, or their shape.
        value: values, or their shape.
        parts: score, normalizer, mask, positions and dropout, as a tuple or a `Spec`.

    Example:
        >>> sides, _, shared = join_queries((2, 8, 1, 4), (2, 1, 9, 4), (2, 1, 9, 4), Spec())
        >>> sides, shared
        (((2, 8, 4), (2, 9, 4), (2, 9, 4)), (8,))
    """
    own, left, right = [x if isinstance(x, tuple) else x.shape for x in (query, key, value)]
    count = 0
    while (  # `all` with a generator would take as long as the rest of this function for most calls
        count < len(own) - 2
        and (len(left) < count + 3 or left[-count - 3] == 1)
        and (len(right) < count + 3 or right[-count - 3] == 1)
    ):
        count += 1
    if not count:
        return None
    shared = tuple(own[len(own) - 2 - count : -2])
    if not all(isinstance(n, int) for n in (*shared, own[-2])) or math.prod(shared) < 2:
        return None
    if not 0 < own[-2] <= _MOST_QUERIES or not _differ_in_vectors_alone(parts, count):
        return None
    joined = _reshaped(query, (*own[: len(own) - 2 - count], math.prod(shared) * own[-2], own[-1]))
    sides = [
        _reshaped(x, (*shape[: max(0, len(shape) - 2 - count)], *shape[-2:]))
        for x, shape in ((key, left), (value, right))
    ]
    parts = map_batch(parts, lambda x, axes: _reshaped(x, (*x.shape[: axes - count], *x.shape[axes:])) if axes else x)
    return (joined, *sides), parts, shared


def part_queries(output: Shaped[Array, "*batch rows value_width"], shared: Shape) -> Shaped[Array, "*_ q value_width"]:
    """Return the output of a call of `join_queries` with the axes of the original call."""
    *batch, rows, width = output.shape
    return cast("Array", _reshaped(output, (*batch, *shared, rows // math.prod(shared), width)))


def _differ_in_vectors_alone(parts: object, count: int) -> bool:
    """Return whether queries of different elements along the last `count` batch axes differ in nothing but vectors."""
    given = [getattr(parts, field.name) for field in fields(parts)] if isinstance(parts, Spec) else parts
    score, normalizer, mask, positions, dropout = cast("Iterable[object]", given)
    own = [part for part in (score, normalizer, mask) if isinstance(part, Part)]
    if dropout or positions is not None or not (mask is None or getattr(mask, "key_only", False)):
        return False
    if any(getattr(part, name, False) for part in own for name in ("positional", "stochastic")):
        return False
    if getattr(score, "accepts", "") == "text":
        return False
    # Functions may expect the axes of the call, and logits of other classes may depend on the indices of a tile.
    modules = [type(each).__module__ for part in own for each in part.parts()]
    if function_parts(tuple(own)) or not all(name.startswith(_KNOWN) for name in modules):
        return False
    for x, names in [each for part in own for each in part.array_fields()]:
        if not isinstance(names, tuple) or "q" in names:
            return False
        axes = x.ndim - len(names)
        if axes and (axes < count or math.prod(x.shape[axes - count : axes]) != 1):
            return False
    return True


def _reshaped(x: ArrayLike, shape: Shape) -> ArrayLike:
    """Return an array, or the shape of one, with another shape."""
    return shape if isinstance(x, tuple) else namespace(x).reshape(x, shape)
