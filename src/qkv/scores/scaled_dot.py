"""Scaled dot product: how far each query points along each key, in units that do not grow with the width.

    logit(q, k) = <q, k> / sqrt(width)

Source: Vaswani et al. (2017), Attention Is All You Need, section 3.2.1,
https://arxiv.org/abs/1706.03762. Their d_k is our width.
"""

import math
from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.core.tile import Tile
from qkv.scores.base import InnerProductScore

__all__ = ["ScaledDot"]


@dataclass(frozen=True, eq=False)
class ScaledDot(InnerProductScore):
    """Inner product of query and key over the square root of their width.

    Unit-variance inputs get unit-variance logits at every width. Luong's dot score is `Dot`; this with a
    learned map before it is `Projected(ScaledDot(), …)`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.

    Example:
        >>> import numpy as np
        >>> ScaledDot()(np.array([[2.0, 0.0, 0.0, 0.0]]), np.eye(4))
        array([[1., 0., 0., 0.]])
    """

    lifts_itself = True

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Fact: exact. The scale goes to the query, the smaller side in most databases."""
        # Divide before the product: in float16 the raw inner product can overflow.
        return query / math.sqrt(max(1, query.shape[-1])), key

    def factors(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array, float]:
        """Fact: the scale is one number, for the kernel to multiply by; nothing is copied."""
        return query, key, 1 / math.sqrt(max(1, query.shape[-1]))
