"""Pooled map: the whole picture of the weights, in as many cells as one can look at.

mean: Σ of the weights of a cell / (its rows · its columns)          max: the largest of them
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qkv.core.arrays import Array, asarray_like
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.readouts.base import Readout, Reduction
from qkv.readouts.cells import cell_count, cell_lengths, cell_range, pool_cells

__all__ = ["PooledMap"]


@dataclass(frozen=True, eq=False)
class PooledMap(Readout):
    """The map of all weights pooled to at most `size` × `size` cells, `(*batch, rows, cols)`.

    Query i is in row ⌊i · rows / q⌋ with rows = min(size, q), key j in column ⌊j · cols / k⌋ with cols =
    min(size, k): so where there are no more queries than `size`, each has a row. A pair that is masked counts
    with weight 0. Means show where the mass is, maxima show lone keys, which means hide: ask for both where a
    picture is wanted. The gradient of a maximum goes to the lowest query, then the lowest key, of equals.

    Args:
        size: cells along each side, at least 1.
        how: "mean" or "max".

    Raises:
        OptionError: size is no whole number of at least 1, or `how` is something else.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.log(np.array([[4.0], [4.0], [1.0], [1.0]]))
        >>> maps = [PooledMap(2), PooledMap(2, "max")]
        >>> mean, largest = qkv.observe(np.ones((4, 1)), keys, keys, readouts=maps).readouts
        >>> mean.round(12)
        array([[0.4, 0.1],
               [0.4, 0.1]])
    """

    size: int
    how: Literal["mean", "max"] = "mean"

    def validate(self) -> None:
        """A whole number of at least 1, and one of two words."""
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise OptionError(f"PooledMap was given size={self.size!r}. It must be a whole number of at least 1.")
        if self.how not in ("mean", "max"):
            raise OptionError(f'PooledMap was given how={self.how!r}. It must be "mean" or "max".')

    @property
    def pooling(self) -> Literal["mean", "max"] | None:  # type: ignore[override]
        """Fact: it is that of cells."""
        return self.how

    def element_count(self, q: int, k: int) -> int:
        """The map; of means, their sums before."""
        return (2 if self.how == "mean" else 1) * math.prod(self.sides(q, k))

    def sides(self, q: int, k: int) -> tuple[int, int]:
        """Rows and columns of the map."""
        return cell_count(self.size, q), cell_count(self.size, k)

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """Sum or largest of each cell that the tile touches."""
        rows, cols = self.sides(tile.q_total, tile.k_total)
        how = "sum" if self.how == "mean" else "max"
        lanes = pool_cells(weights, -1, tile.cols, cols, tile.k_total, how)
        return pool_cells(lanes, -2, tile.rows, rows, tile.q_total, how)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """The cells that the tile touches."""
        sides = self.sides(tile.q_total, tile.k_total)
        at = (
            slice(*cell_range(tile.rows, sides[0], tile.q_total)),
            slice(*cell_range(tile.cols, sides[1], tile.k_total)),
        )
        if self.how == "max":
            return (Reduction(sides, at, "max", -math.inf, 0.0),)
        return (Reduction(sides, at, "add"),)

    def finalize(self, whole: Array, tile: Tile) -> Array:
        """Sums divided by the pairs of a cell."""
        if self.how == "max":
            return whole
        rows, cols = self.sides(tile.q_total, tile.k_total)
        of_rows, of_cols = cell_lengths(rows, tile.q_total), cell_lengths(cols, tile.k_total)
        if len({*of_rows}) == len({*of_cols}) == 1:
            return whole / (of_rows[0] * of_cols[0])
        down, across = (asarray_like(whole, np.asarray(of), whole.dtype) for of in (of_rows, of_cols))
        # One side after the other: an array of all cells would be as large as the map.
        return whole / down[:, None] / across
