"""Column sum: how much each key is looked at, by all queries together.

received_j = Σ_i w_ij
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction

__all__ = ["ColumnSum"]


@dataclass(frozen=True, eq=False)
class ColumnSum(Readout):
    """The mass that each key receives, `(*batch, k)`. Where weights add up to 1, it adds up to q.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [9.0]])
        >>> qkv.observe(np.ones((3, 1)), keys, keys, readouts=[ColumnSum()]).readouts[0].round(2)
        array([0., 3.])
    """

    def element_count(self, q: int, k: int) -> int:
        """A number for each key, and those of a strip."""
        return 2 * k

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """Σ over the queries."""
        return namespace(weights).sum(weights, axis=-2)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """A number for each key, summed over queries."""
        return (Reduction((tile.k_total,), (slice(*tile.cols),), "add"),)
