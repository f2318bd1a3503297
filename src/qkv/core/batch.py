"""Batch elements one by one or some at a time: the same index for arrays, parts and places.

An index names one entry for each batch axis of a call: an integer, which takes the axis away, or a slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from qkv.core.arrays import Array

__all__ = ["BatchIndex", "batch_indices", "batch_shape", "take_batch"]

BatchIndex = tuple[int | slice, ...]


def take_batch(x: Array, index: BatchIndex, core: int) -> Array:
    """The batch elements at `index` of an array with `core` axes after its batch axes.

    An axis of length 1 is shared by all, and an array with fewer axes has none of the first.

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
    return x[tuple(entries)]


def batch_shape(batch: tuple[int, ...], index: BatchIndex) -> tuple[int, ...]:
    """The batch axes that remain.

    Example:
        >>> batch_shape((4, 8), (3, slice(2, 4)))
        (2,)
    """
    lengths = zip(batch, index, strict=True)
    return tuple(len(range(*at.indices(n))) for n, at in lengths if isinstance(at, slice))


def batch_indices(batch: tuple[int, ...], most: int) -> Iterator[BatchIndex]:
    """Indices that together cover the batch, each of at most `most` elements (one at least).

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
    if most >= inner > 0 or len(batch) == 1:
        step = max(1, most // max(1, inner))
        rest = tuple(slice(0, n) for n in batch[1:])
        if step == 1 and inner == 1:
            yield from ((n, *(0 for _ in rest)) for n in range(batch[0]))
            return
        for start in range(0, batch[0], step):
            # One alone, as an integer: its axis is gone, and plain matrix products do.
            stop = min(start + step, batch[0])
            yield (start if stop - start == 1 else slice(start, stop), *rest)
        return
    for n in range(batch[0]):
        for rest_index in batch_indices(batch[1:], most):
            yield (n, *rest_index)
