"""The largest entries of each row, in order. Ties go to the lowest index; NaN counts as largest."""

from __future__ import annotations

import numpy as np

from qkv.core.arrays import Array, library, namespace

__all__ = ["top_mask", "top_order"]


def top_order(x: Array, count: int) -> Array:
    """Indices of the `count` largest entries along the last axis (fewer where it is shorter), largest first.

    Example:
        >>> top_order(np.array([[1.0, 3.0, 3.0, 2.0, np.nan]]), 3)
        array([[4, 1, 2]])
    """
    xp = namespace(x)
    x = xp.where(xp.isnan(x), xp.zeros_like(x) + xp.inf, x)
    if library(x) == "numpy" and 8 * count < x.shape[-1]:
        return _partitioned(np.asarray(x), count)
    return xp.argsort(x, axis=-1, descending=True, stable=True)[..., :count]


def top_mask(x: Array, count: int) -> Array:
    """Which entries are among the `count` largest of their row, as booleans.

    Example:
        >>> top_mask(np.array([[1.0, 3.0, 3.0, 2.0]]), 1)
        array([[False,  True, False, False]])
    """
    if library(x) == "numpy":
        mask = np.zeros(x.shape, dtype=bool)
        np.put_along_axis(mask, top_order(x, count), True, axis=-1)
        return mask
    return namespace(x).argsort(top_order(x, x.shape[-1]), axis=-1) < count


def _partitioned(x: np.ndarray, count: int) -> np.ndarray:
    """The same without sorting whole rows: a table of a million keys is asked for its ten best."""
    rows = x.reshape(-1, x.shape[-1])
    order = np.empty((len(rows), count), dtype=np.intp)
    for row, out in zip(rows, order, strict=True):
        last = np.partition(row, len(row) - count)[len(row) - count]
        above = np.flatnonzero(row > last)
        equal = np.flatnonzero(row == last)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
        out[:] = chosen[np.argsort(-row[chosen], kind="stable")]
    return order.reshape(*x.shape[:-1], count)
