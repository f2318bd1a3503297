"""The readout `PooledMap`, the attention map reduced to a small grid of cells.

mean: sum of the weights of a cell / number of pairs of the cell          max: largest weight of a cell
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qkv.core.arrays import asarray_like
from qkv.core.checks import check_choice
from qkv.core.parts import require_positive_integer
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction
from qkv.readouts.cells import cell_lengths, cell_range, pool_cells

__all__ = ["PooledMap"]


@dataclass(frozen=True, eq=False)
class PooledMap(Readout):
    """Readout that pools the weights to a grid of at most `size` × `size` cells, `(*batch, rows, cols)`.

    Query i is in row ⌊i · rows / q⌋ with rows = min(size, q), key j in column ⌊j · cols / k⌋ with cols =
    min(size, k). Masked pairs have weight 0. The mean shows where the weights are largest on average; the maximum also
    shows single large weights. The gradient of a maximum goes to one weight; among equal weights, the lowest query and
    then the lowest key comes first.

    Args:
        size: number of cells along each axis, at least 1.
        how: the pooling, "mean" or "max".

    Raises:
        OptionError: `size` is not a positive integer, or `how` is neither "mean" nor "max".

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
        require_positive_integer("PooledMap", "size", self.size)
        check_choice("how of PooledMap", self.how, ("mean", "max"))

    @property
    def pooling(self) -> Literal["mean", "max"] | None:  # type: ignore[override]
        """The kind of pooling, "mean" or "max", as stated by `how`."""
        return self.how

    def element_count(self, q: int, k: int) -> int:
        """Return the number of cells for the maximum, and twice this number for the mean, which also stores sums."""
        return (2 if self.how == "mean" else 1) * math.prod(self.sides(q, k))

    def sides(self, q: int, k: int) -> tuple[int, int]:
        """Return the number of rows and the number of columns of the pooled map for `q` queries and `k` keys."""
        return min(self.size, q), min(self.size, k)

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch rows cols"]:
        rows, cols = self.sides(tile.q_total, tile.k_total)
        how = "sum" if self.how == "mean" else "max"
        lanes = pool_cells(weights, -1, tile.cols, cols, tile.k_total, how)
        return pool_cells(lanes, -2, tile.rows, rows, tile.q_total, how)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Return a reduction that adds the cells that overlap the tile, or takes their maximum for `how="max"`."""
        sides = self.sides(tile.q_total, tile.k_total)
        at = (
            slice(*cell_range(tile.rows, sides[0], tile.q_total)),
            slice(*cell_range(tile.cols, sides[1], tile.k_total)),
        )
        if self.how == "max":
            return (Reduction(sides, at, "max", -math.inf, 0.0),)
        return (Reduction(sides, at, "add"),)

    def finalize(self, whole: Float[Array, "*batch rows cols"], tile: Tile) -> Float[Array, "*batch rows cols"]:
        if self.how == "max":
            return whole
        rows, cols = self.sides(tile.q_total, tile.k_total)
        row_lengths, col_lengths = cell_lengths(rows, tile.q_total), cell_lengths(cols, tile.k_total)
        if len({*row_lengths}) == len({*col_lengths}) == 1:
            return whole / (row_lengths[0] * col_lengths[0])
        down, across = (asarray_like(whole, np.asarray(x), whole.dtype) for x in (row_lengths, col_lengths))
        # Dividing by one side at a time avoids an array as large as the map.
        return whole / down[:, None] / across
