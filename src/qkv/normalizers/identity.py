"""Identity: the scores are the weights.

w_j = l_j
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Identity"]


@dataclass(frozen=True, eq=False)
class Identity(LinearNormalizer):
    """No normalisation: weights may have any sign and any total, the answer lies in the span of the values.

    Example:
        >>> import numpy as np
        >>> Identity().weights(np.array([[2.0, -1.0, -np.inf]]))
        array([[ 2., -1.,  0.]])
    """

    divides = False
    sums_to_one = False

    def mass(self, logits: Array) -> Array:
        """The logit, 0 where it is −inf."""
        xp = namespace(logits)
        return xp.where(excluded(logits), xp.zeros_like(logits), logits)

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """dw"""
        xp = namespace(logits)
        return xp.where(excluded(logits), xp.zeros_like(weight_gradient), weight_gradient)
