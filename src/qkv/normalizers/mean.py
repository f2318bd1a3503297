"""Mean: the same weight for every key.

w_j = 1 / m          m = number of keys that are not excluded
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, cast, namespace
from qkv.core.tile import Tile
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Mean"]


@dataclass(frozen=True, eq=False)
class Mean(LinearNormalizer):
    """Average pooling: the output is the mean of the values (mission A8).

    Example:
        >>> import numpy as np
        >>> Mean().weights(np.array([[5.0, -1.0, -np.inf]]))
        array([[0.5, 0.5, 0. ]])
    """

    shift_invariant = True
    symmetric: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False

    def mass(self, logits: Array) -> Array:
        """1 for each key."""
        return cast(~excluded(logits), logits.dtype)

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """0: the logits are not looked at."""
        return namespace(logits).zeros_like(logits)
