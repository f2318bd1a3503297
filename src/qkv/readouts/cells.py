"""Functions that pool an axis of `length` entries into consecutive cells of nearly equal length.

    cell of entry i = ⌊i · cells / length⌋          cells = min(size, length)

Cell c starts at entry ⌈c · length / cells⌉.
"""

from __future__ import annotations

import itertools

import numpy as np

from qkv.core.arrays import asarray_like, library, namespace, requires_gradient, where
from qkv.core.typing import Array, Num

__all__ = ["cell_edges", "cell_lengths", "cell_range", "pool_cells"]


def cell_range(limits: tuple[int, int], cells: int, length: int) -> tuple[int, int]:
    """Return the range `(first, stop)` of the cells that overlap the range `limits` of entries.

    Example:
        >>> cell_range((3, 5), 3, 10)
        (0, 2)
    """
    start, stop = limits
    if start >= stop:
        return 0, 0
    return start * cells // length, (stop - 1) * cells // length + 1


def cell_edges(limits: tuple[int, int], cells: int, length: int) -> list[int]:
    """Return the first entry within `limits` of each cell that overlaps the range `limits`, and the end of the last.

    Example:
        >>> cell_edges((0, 10), 3, 10), cell_edges((3, 5), 3, 10)
        ([0, 4, 7, 10], [3, 4, 5])
    """
    first, last = cell_range(limits, cells, length)
    return [min(max(-(-c * length // max(1, cells)), limits[0]), limits[1]) for c in range(first, last + 1)]


def cell_lengths(cells: int, length: int) -> list[int]:
    """Return the number of entries of each of the `cells` cells of an axis.

    Example:
        >>> cell_lengths(3, 10)
        [4, 3, 3]
    """
    return [stop - start for start, stop in itertools.pairwise(cell_edges((0, length), cells, length))]


def pool_cells(
    x: Num[Array, "*shape"], axis: int, limits: tuple[int, int], cells: int, length: int, how: str
) -> Num[Array, "*_pooled"]:
    """Return the sum or maximum of the entries of each cell that overlaps `limits`, along one axis of `x`.

    The gradient of a maximum goes to the first of several equal elements.

    Args:
        x: the array to pool.
        axis: −1 or −2.
        limits: range of the entries that `x` holds along the axis.
        cells: number of cells of the whole axis.
        length: length of the whole axis.
        how: "sum" or "max".

    Example:
        >>> pool_cells(np.arange(10.0), -1, (0, 10), 3, 10, "sum")
        array([ 6., 15., 24.])
    """
    shape = list(x.shape)
    tile = x.ndim + axis
    edges = np.asarray(cell_edges(limits, cells, length), dtype=np.int64)
    lengths = np.diff(edges)
    if not len(lengths):
        return x[..., :0] if axis == -1 else x[..., :0, :]
    xp, widest = namespace(x), int(lengths.max())
    even = bool((lengths == widest).all())
    if not even:
        # Short cells are padded with their last entry, which leaves maxima unchanged; sums count it once.
        step = np.minimum(np.arange(widest), lengths[:, None] - 1)
        index = (edges[:-1, None] - limits[0] + step).ravel().astype(np.intp)  # 32 bits in Pyodide
        x = xp.take(x, asarray_like(x, index), axis=axis)
    by_cell = xp.reshape(x, (*shape[:tile], len(lengths), widest, *shape[tile + 1 :]))
    if how == "max":
        return _first_largest(by_cell, axis)
    if not even:
        counted = np.arange(widest) < lengths[:, None]
        counted = counted if axis == -1 else counted[..., None]
        by_cell = where(asarray_like(x, counted), by_cell, 0.0)
    return xp.sum(by_cell, axis=axis)


def _first_largest(x: Num[Array, "*shape"], axis: int) -> Num[Array, "*_pooled"]:
    xp = namespace(x)
    if not requires_gradient(x) and library(x) != "jax":
        return xp.max(x, axis=axis)
    index = xp.argmax(x, axis=axis, keepdims=True)
    return xp.squeeze(xp.take_along_axis(x, index, axis=axis), axis=axis)
