"""The readout `ColumnSum`, the sum of the weights of each key over all queries.

received_j = Σ_i w_ij
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction

__all__ = ["ColumnSum"]


@dataclass(frozen=True, eq=False)
class ColumnSum(Readout):
    """Readout that returns the sum of the weights of each key over all queries, `(*batch, k)`.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [9.0]])
        >>> qkv.observe(np.ones((3, 1)), keys, keys, readouts=[ColumnSum()]).readouts[0].round(2)
        array([0., 3.])
    """

    def element_count(self, q: int, k: int) -> int:
        """Return 2 k, because a sum per key is stored for the whole call and for a row block."""
        return 2 * k

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch k"]:
        return namespace(weights).sum(weights, axis=-2)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        return (Reduction((tile.k_total,), (slice(*tile.cols),), "add"),)
