"""Dot product: how far each query points along each key.

    logit(q, k) = <q, k>

Source: Luong, Pham, Manning (2015), Effective approaches to attention-based neural machine translation,
section 3.1 ("dot"), https://arxiv.org/abs/1508.04025.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.core.tile import Tile
from qkv.scores.base import InnerProductScore

__all__ = ["Dot"]


@dataclass(frozen=True, eq=False)
class Dot(InnerProductScore):
    """Inner product of query and key.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.

    Example:
        >>> import numpy as np
        >>> Dot()(np.array([[2.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]))
        array([[2., 3.]])
    """

    lifts_itself = True

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Fact: exact, and nothing to do."""
        return query, key
