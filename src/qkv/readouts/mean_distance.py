"""Mean distance: how far from itself each query looks.

d_i = Σ_j w_ij |p_i − p_j|          p: positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, cast, namespace
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice

__all__ = ["MeanDistance"]


@dataclass(frozen=True, eq=False)
class MeanDistance(Readout):
    """The weighted mean distance of each query to its keys, `(*batch, q)`; 0 where no key is left.

    Key j stands at position j; where queries stand, the call's `positions` say.

    Raises:
        RefusedError: the normalizer's weights do not add up to 1: a mean needs that.
        PositionError: q ≠ k and no positions are given.

    Source: Vig, Belinkov (2019), Analyzing the structure of attention in a transformer language model,
    https://arxiv.org/abs/1906.04284.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((3, 1))
        >>> qkv.observe(rows, rows, rows, readouts=[MeanDistance()]).readouts[0].round(2)
        array([1.  , 0.67, 1.  ])
    """

    def refuse(self, normalizer: Any) -> str | None:
        """Weights that add up to something else have no mean."""
        if normalizer.sums_to_one:
            return None
        return f"MeanDistance wants weights that add up to 1; those of {normalizer} do not."

    def check(self, tile: Tile) -> None:
        """It is known where queries stand."""
        tile.offset()

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """Σ w |p_i − p_j|"""
        xp = namespace(weights)
        between = xp.abs(tile.query_positions(weights) - tile.key_positions(weights))
        return xp.sum(weights * cast(between, weights.dtype), axis=-1)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """A number for each query, summed over keys."""
        return (Reduction((tile.q_total,), query_slice(tile), across_keys(tile, "add")),)
