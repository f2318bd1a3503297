"""Sparsemax: the point of the simplex that is nearest to the logits. Weak keys get exactly 0.

    w = argmin_p ‖p − l‖²,   p ≥ 0, Σ p = 1          w_j = max(0, l_j − τ)

Source: Martins, Astudillo (2016), From softmax to sparsemax, https://arxiv.org/abs/1602.02068.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, arange, cast, namespace
from qkv.normalizers.sparse import SparseNormalizer

__all__ = ["Sparsemax"]


@dataclass(frozen=True, eq=False)
class Sparsemax(SparseNormalizer):
    """Weights that add up to 1, many of them exactly 0.

    Example:
        >>> import numpy as np
        >>> Sparsemax().weights(np.array([[1.0, 0.6, -1.0]]))
        array([[0.7, 0.3, 0. ]])
    """

    power = 1
    scale = 1.0

    def threshold(self, z: Array) -> Array:
        """τ = (Σ of the support − 1) / its size"""
        xp = namespace(z)
        ordered = xp.sort(z, axis=-1, descending=True)
        count = cast(arange(z, 1, z.shape[-1] + 1), z.dtype)
        sums = xp.cumulative_sum(ordered, axis=-1)
        size = xp.sum(cast(1 + count * ordered > sums, z.dtype), axis=-1, keepdims=True)
        inside = xp.where(count <= size, ordered, xp.zeros_like(ordered))
        return (xp.sum(inside, axis=-1, keepdims=True) - 1) / xp.maximum(size, xp.ones_like(size))
