"""Dense: the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction, query_slice

__all__ = ["Dense"]


@dataclass(frozen=True, eq=False)
class Dense(Readout):
    """All weights, `(*batch, q, k)`, before dropout. The only readout whose memory is q · k.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.array([[0.0], [0.0]])
        >>> qkv.observe(rows, rows, rows, readouts=[Dense()]).readouts[0]
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """

    def element_count(self, q: int, k: int) -> int:
        """All of them."""
        return q * k

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """The weights."""
        return weights

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Where they stand."""
        return (Reduction((tile.q_total, tile.k_total), (*query_slice(tile), slice(*tile.cols))),)
