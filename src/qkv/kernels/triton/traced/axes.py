"""Axes of recorded arrays: which axis of an array runs over queries, keys, batch elements or features.

The label of an axis is a tuple of names: "q" for queries, "k" for keys, "b0", "b1", … for the batch axes of the call,
"f" for features, and "?" for an axis of a parameter whose meaning follows from the arrays that it is combined with.
An axis of length 1 has the empty label, and an axis that was merged from several has all their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qkv.kernels.triton.traced.recording import KEYS, QUERIES, Operation, Recorded, TraceError

__all__ = ["Axes", "Label", "combine", "output_axes"]

Label = tuple[str, ...]
Axes = tuple[Label, ...]
_UNKNOWN: Label = ("?",)


def combine(*axes: Axes, name: str = "") -> Axes:
    """Return the axes of arrays that are broadcast against each other.

    Raises:
        TraceError: an axis of one kind meets an axis of another.
    """
    count = max((len(x) for x in axes), default=0)
    result: list[Label] = [()] * count
    for each in axes:
        for n, label in enumerate(each, count - len(each)):
            mine = result[n]
            if label and all(word == "?" for word in mine):
                result[n] = label
            elif label != mine and any(word != "?" for word in label):
                raise TraceError(f"the operator {name} combines an axis of {_words(mine)} and one of {_words(label)}")
    return tuple(result)


def output_axes(operation: Operation, result: Recorded, known: dict[Recorded, Axes]) -> Axes:
    """Return the axes of a result of an operation.

    Args:
        operation: the operation.
        result: its result.
        known: the axes of all earlier arrays.

    Raises:
        TraceError: the operation mixes axes of different kinds.
    """
    arrays = [x for x in operation.arrays() if x in known]
    name, shape = operation.name, result.shape
    found: Axes | None = None
    if name in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
        found = _viewed(known[arrays[0]], arrays[0].shape, shape, name)
    elif name in ("permute", "transpose", "t", "unsqueeze", "squeeze", "select", "expand", "slice"):
        found = _moved(operation, known[arrays[0]], arrays[0].shape, shape)
    elif name in ("mm", "bmm", "mv", "dot"):
        found = _multiplied(known[arrays[0]], known[arrays[1]], name)
    elif name in ("_cdist_forward", "_euclidean_dist"):
        left, right = known[arrays[0]], known[arrays[1]]
        found = (*combine(left[:-2], right[:-2], name=name), left[-2], right[-2])
    elif len(arrays) and any(len(x.shape) for x in arrays) and _broadcast([x.shape for x in arrays]) == shape:
        found = combine(*(known[x] for x in arrays), name=name)
    elif len(arrays) == 1:
        found = _reduced(known[arrays[0]], arrays[0].shape, shape, operation)
    return _corrected(found, shape)


def _words(label: Label) -> str:
    kinds = {"q": "queries", "k": "keys", "f": "features", "?": "a parameter"}
    return " and ".join(kinds.get(name, "batch elements") for name in label)


def _corrected(found: Axes | None, shape: tuple[int, ...]) -> Axes:
    """Return axes in which those of length 1, or of the length of queries or keys, have their own label."""
    labels = list(found) if found is not None and len(found) == len(shape) else [_UNKNOWN] * len(shape)
    for n, length in enumerate(shape):
        if length == 1:
            labels[n] = ()
        elif length in (QUERIES, KEYS):
            labels[n] = ("q",) if length == QUERIES else ("k",)
        elif not labels[n]:
            labels[n] = _UNKNOWN
    return tuple(labels)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    count = max(map(len, shapes))
    padded = [(1,) * (count - len(x)) + x for x in shapes]
    result = tuple(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))
    fits = all(n in (1, m) for x in padded for n, m in zip(x, result, strict=True))
    return result if fits else None


def _viewed(axes: Axes, old: tuple[int, ...], new: tuple[int, ...], name: str) -> Axes:
    """Return the axes after a change of shape, where groups of axes have equal products."""
    result: list[Label] = []
    mine = [(label, n) for label, n in zip(axes, old, strict=True) if n != 1]
    wanted = [n for n in new if n != 1]
    while wanted:
        length, taken = wanted.pop(0), [mine.pop(0)] if mine else []
        if not taken:
            raise TraceError(f"the operator {name} changes the shape of an empty array")
        while math.prod(n for _, n in taken) < length and mine:
            taken.append(mine.pop(0))
        product = math.prod(n for _, n in taken)
        if product == length:
            result.append(tuple(word for label, _ in taken for word in label))
            continue
        if len(taken) != 1 or product % length or not _split(taken[0], length, wanted):
            raise TraceError(f"the operator {name} mixes axes of different kinds")
        first, rest = _split(taken[0], length, wanted) or ((), ())
        result.append(first)
        mine.insert(0, (rest, product // length))
    labels = iter(result)
    return tuple(() if n == 1 else next(labels) for n in new)


def _split(axis: tuple[Label, int], length: int, following: Sequence[int]) -> tuple[Label, Label] | None:
    """Return the labels of the two axes into which an axis is split; None if it is not known where its parts end."""
    label, total = axis
    if len(label) == 1 and label[0] in ("f", "?"):
        return label, label
    if len(label) < 2:
        return None
    if len(label) == 2:
        return label[:1], label[1:]
    # As many names as axes remain until the product is reached.
    count, product = 1, length
    for n in following:
        if product == total:
            break
        count, product = count + 1, product * n
    if count == len(label):
        return label[:1], label[1:]
    for name, size in (("q", QUERIES), ("k", KEYS)):
        if length % size == 0 and name in label:
            end = label.index(name) + 1
            return label[:end], label[end:]
        if total // length % size == 0 and name in label:
            start = label.index(name)
            return (label[:start], label[start:]) if start else None
    return None


def _moved(operation: Operation, axes: Axes, old: tuple[int, ...], new: tuple[int, ...]) -> Axes:
    """Return the axes after an operator that moves, adds or removes whole axes."""
    name, rest, count = operation.name, operation.arguments[1:], len(axes)
    if name == "permute":
        return tuple(axes[n] for n in rest[0])
    if name in ("transpose", "t"):
        order = list(range(count))
        first, second = rest if name == "transpose" else (0, 1)
        if count > 1:
            order[first], order[second] = order[second], order[first]
        return tuple(axes[n] for n in order)
    if name == "unsqueeze":
        place = rest[0] % (count + 1)
        return (*axes[:place], (), *axes[place:])
    if name == "select":
        place = rest[0] % count
        return (*axes[:place], *axes[place + 1 :])
    if name == "squeeze":
        dims = range(count) if not rest else [rest[0]] if isinstance(rest[0], int) else rest[0]
        gone = {n % count for n in dims if old[n] == 1}
        return tuple(label for n, label in enumerate(axes) if n not in gone)
    if name == "expand":
        return (*((),) * (len(new) - count), *axes)
    if name == "slice":
        place = (rest[0] if rest else 0) % count
        if old != new and axes[place] not in (("f",), _UNKNOWN):
            raise TraceError("the operator slice takes a part of the queries, keys or batch elements")
    return axes


def _multiplied(left: Axes, right: Axes, name: str) -> Axes:
    """Return the axes of a matrix product."""
    if name == "dot":
        return ()
    if name == "mv":
        return left[:-1]
    rows, columns = left[-2], right[-1]
    return (*combine(left[:-2], right[:-2], name=name), rows, columns)


def _reduced(axes: Axes, old: tuple[int, ...], new: tuple[int, ...], operation: Operation) -> Axes | None:
    """Return the axes after an operator that reduces axes, or removes them."""
    if len(old) == len(new):
        return tuple(
            label if n == m else () if m == 1 else _UNKNOWN for label, n, m in zip(axes, old, new, strict=True)
        )
    dims = next((x for x in operation.arguments[1:] if isinstance(x, (list, tuple))), None)
    if dims is None and len(operation.arguments) > 1 and isinstance(operation.arguments[1], int):
        dims = [operation.arguments[1]]
    if dims is None:
        return None
    gone = {n % len(old) for n in dims}
    kept = tuple(label for n, label in enumerate(axes) if n not in gone)
    return kept if len(kept) == len(new) else None
