"""The readout `Dense`, which returns all weights."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.tile import Tile
from qkv.core.typing import PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction

__all__ = ["Dense"]


@dataclass(frozen=True, eq=False)
class Dense(Readout):
    """Readout that returns all weights before dropout, `(*batch, q, k)`, in O(q · k) memory.

    Other readouts need less memory.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.array([[0.0], [0.0]])
        >>> qkv.observe(rows, rows, rows, readouts=[Dense()]).readouts[0]
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """

    def element_count(self, q: int, k: int) -> int:
        return q * k

    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> PairArray:
        return weights

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        return (Reduction((tile.q_total, tile.k_total), (slice(*tile.rows), slice(*tile.cols))),)
