"""Entropy: how widely each query looks.

H = −Σ_j w_j log w_j          in nats; e^H is the number of keys the answer rests on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice

__all__ = ["Entropy"]


@dataclass(frozen=True, eq=False)
class Entropy(Readout):
    """Entropy of each query's weights, `(*batch, q)`, in nats; 0 where no key is left.

    Raises:
        RefusedError: the normalizer's weights do not add up to 1.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((4, 1))
        >>> np.exp(qkv.observe(rows[:1], rows, rows, readouts=[Entropy()]).readouts[0])
        array([4.])
    """

    def refuse(self, normalizer: Any) -> str | None:
        """Weights that add up to something else have no entropy."""
        if normalizer.sums_to_one:
            return None
        return f"Entropy wants weights that add up to 1; those of {normalizer} do not."

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """−Σ w log w, with 0 log 0 = 0."""
        xp = namespace(weights)
        zero = weights == 0
        return -xp.sum(weights * xp.log(xp.where(zero, xp.ones_like(weights), weights)), axis=-1)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """A number for each query, summed over keys."""
        return (Reduction((tile.q_total,), query_slice(tile), across_keys(tile, "add")),)
