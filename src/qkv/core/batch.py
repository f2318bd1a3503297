"""Functions that select and enumerate the batch elements of arrays.

A batch index has one entry per batch axis of a call: an integer, which removes the axis, or a slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

from qkv.core.arrays import library, namespace
from qkv.core.axes import broadcast_batch
from qkv.core.typing import Array, Shaped

BatchIndex = tuple[int | slice, ...]
AnyArray = TypeVar("AnyArray", bound=Array)


def take_batch(x: Shaped[AnyArray, "*_"], index: BatchIndex, core: int) -> Shaped[AnyArray, "*_"]:
    """Return the batch elements of `x` that a batch index selects, or `x` itself if it has no batch axes.

    Args:
        x: an array whose batch axes broadcast to the batch axes of the call.
        index: one entry per batch axis of the call.
        core: number of axes after the batch axes.

    Example:
        >>> import numpy as np
        >>> take_batch(np.zeros((4, 1, 5, 6)), (slice(2, 4), 1), core=2).shape
        (2, 5, 6)
    """
    own = x.ndim - core
    if own <= 0 or not index:
        return x
    entries = []
    for at, length in zip(index[len(index) - own :], x.shape[:own], strict=True):
        entries.append(at if length != 1 else (0 if isinstance(at, int) else slice(None)))
    return x[tuple(entries)]  # type: ignore[return-value]


def with_equal_batch(
    query: Shaped[Array, "*_"], key: Shaped[Array, "*_"]
) -> tuple[Shaped[Array, "*_"], Shaped[Array, "*_"]]:
    """Return query and key, with the same batch axes where TensorFlow could not broadcast arrays of all their pairs.

    TensorFlow does not support six axes of which each is broadcast in another array than the axis before it.
    """
    shapes = [tuple(x.shape) for x in (query, key)]
    if max(map(len, shapes)) < 5 or library(query) != "tensorflow" or None in (*shapes[0][:-2], *shapes[1][:-2]):
        return query, key
    xp, batch = namespace(query), broadcast_batch(query=shapes[0][:-2], key=shapes[1][:-2])
    return xp.broadcast_to(query, (*batch, *shapes[0][-2:])), xp.broadcast_to(key, (*batch, *shapes[1][-2:]))


def batch_shape(batch: tuple[int, ...], index: BatchIndex) -> tuple[int, ...]:
    """Return the lengths of the batch axes that remain after indexing `batch` with `index`.

    Example:
        >>> batch_shape((4, 8), (3, slice(2, 4)))
        (2,)
    """
    lengths = zip(batch, index, strict=True)
    return tuple(len(range(*at.indices(n))) for n, at in lengths if isinstance(at, slice))


def batch_indices(batch: tuple[int, ...], max_elements: int) -> Iterator[BatchIndex]:
    """Yield batch indices that split a batch into groups of at most `max_elements` elements.

    Each group has at least one element.

    Example:
        >>> list(batch_indices((2, 3), 1))[:2]
        [(0, 0), (0, 1)]
        >>> list(batch_indices((2, 3), 4))
        [(0, slice(0, 3, None)), (1, slice(0, 3, None))]
    """
    if not batch or 0 in batch:
        yield tuple(slice(0, n) for n in batch)
        return
    inner = math.prod(batch[1:])
    if max_elements >= inner > 0 or len(batch) == 1:
        step = max(1, max_elements // max(1, inner))
        rest = tuple(slice(0, n) for n in batch[1:])
        if step == 1 and inner == 1:
            yield from ((n, *(0 for _ in rest)) for n in range(batch[0]))
            return
        for start in range(0, batch[0], step):
            # A single element as an integer, which removes the axis, so that plain matrix products apply.
            stop = min(start + step, batch[0])
            yield (start if stop - start == 1 else slice(start, stop), *rest)
        return
    for n in range(batch[0]):
        for rest_index in batch_indices(batch[1:], max_elements):
            yield (n, *rest_index)
