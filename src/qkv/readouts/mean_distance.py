"""The readout `MeanDistance`, the weighted mean distance between the positions of each query and its keys.

d_i = Σ_j w_ij |p_i − p_j|          p: positions
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import cast, namespace
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout

__all__ = ["MeanDistance"]


@dataclass(frozen=True, eq=False)
class MeanDistance(Readout):
    """Readout that returns each query's weighted mean distance to the keys, `(*batch, q)`.

    The result is 0 for rows without keys.

    Key j has position j, and the call's `positions` determine the positions of the queries.

    Raises:
        RefusedError: the normalizer's weights do not sum to 1.
        PositionError: the numbers of queries and keys differ and no positions are given.

    Source: Vig, Belinkov (2019), Analyzing the structure of attention in a transformer language model,
    https://arxiv.org/abs/1906.04284.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((3, 1))
        >>> qkv.observe(rows, rows, rows, readouts=[MeanDistance()]).readouts[0].round(2)
        array([1.  , 0.67, 1.  ])
    """

    requires = "sums_to_one"
    reduce_op = "add"

    def check(self, tile: Tile) -> None:
        tile.offset()

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch q"]:
        """Return Σ w |p_i − p_j| over the keys j of the tile for each query i, where p are positions."""
        xp = namespace(weights)
        between = xp.abs(tile.query_positions(weights) - tile.key_positions(weights))
        return xp.sum(weights * cast(between, weights.dtype), axis=-1)
