"""The normalizer `Identity`, which returns the logits as weights.

w_j = l_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import where
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Identity"]


@dataclass(frozen=True, eq=False)
class Identity(LinearNormalizer):
    """Normalizer that returns the logits as weights, which may be negative and need not sum to 1.

    Example:
        >>> import numpy as np
        >>> Identity().weights(np.array([[2.0, -1.0, -np.inf]]))
        array([[ 2., -1.,  0.]])
    """

    divides = False
    sums_to_one = False
    linear: ClassVar[bool] = True

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return where(excluded(logits), 0.0, logits)

    def logit_gradient(
        self,
        logits: Float[Array, "*batch q k"],
        weights: Float[Array, "*batch q k"],
        weight_gradient: Float[Array, "*batch q k"],
        row_dot: Float[Array, "*batch q 1"],
        summary: Summary,
        tile: Tile,
    ) -> Float[Array, "*batch q k"]:
        return where(excluded(logits), 0.0, weight_gradient)
