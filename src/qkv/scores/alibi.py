"""Attention with linear biases (ALiBi): a penalty linear in the distance of positions, subtracted from a score.

    logit = score(q_i, k_j) − slope · |i − j|

Source: Press, Smith, Lewis (2022), Train short, test long, https://arxiv.org/abs/2108.12409. The paper combines this
score with a causal mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, namespace
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import Score
from qkv.scores.wrapper import PointwiseScore

__all__ = ["ALiBi"]


@dataclass(frozen=True, eq=False)
class ALiBi(PointwiseScore):
    """Score that subtracts slope · |i − j| from an inner score, for a query at position i and a key at position j.

    Args:
        score: the inner score.
        slope: penalty per unit of distance, a number or one number per batch element (heads are a batch axis).

    Raises:
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant
        >>> ALiBi(Constant(), slope=0.5)(np.ones((2, 1)), np.ones((2, 1)))
        array([[ 0. , -0.5],
               [-0.5,  0. ]])
    """

    score: Score
    slope: Array | float = array_field(default=1.0)
    uses_positions: ClassVar[bool] = True

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch q k"]:
        """Return −slope · |i − j| for each pair of a query at position i and a key at position j of a tile."""
        slope, xp = expand_to_pairs(self.slope), namespace(reference)
        # Integer distances: slope · i − slope · j would cancel at long range.
        return tile.map_relative_positions(reference, lambda d: -slope * cast(xp.abs(d), reference.dtype))
