"""The normalizer `Sparsemax`, the Euclidean projection of each row of logits onto the simplex.

    w = argmin_p ‖p − l‖²,   p ≥ 0, Σ p = 1          w_j = max(0, l_j − τ)

Source: Martins, Astudillo (2016), From softmax to sparsemax, https://arxiv.org/abs/1602.02068.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import arange, cast, namespace, where
from qkv.core.typing import Array, Float
from qkv.normalizers.sparse import SparseNormalizer

__all__ = ["Sparsemax"]


@dataclass(frozen=True, eq=False)
class Sparsemax(SparseNormalizer):
    """Normalizer that computes sparsemax of each row: weights that sum to 1, of which many can be exactly 0.

    Example:
        >>> import numpy as np
        >>> Sparsemax().weights(np.array([[1.0, 0.6, -1.0]]))
        array([[0.7, 0.3, 0. ]])
    """

    power = 1
    scale = 1.0

    def threshold(self, z: Float[Array, "*batch q k"]) -> Float[Array, "*batch q 1"]:
        """Return the threshold τ of each row, (Σ z − 1) / n, with the sum over the n keys of the support."""
        xp = namespace(z)
        ordered = xp.sort(z, axis=-1, descending=True)
        count = cast(arange(z, 1, z.shape[-1] + 1), z.dtype)
        sums = xp.cumulative_sum(ordered, axis=-1)
        size = xp.sum(cast(1 + count * ordered > sums, z.dtype), axis=-1, keepdims=True)
        inside = where(count <= size, ordered, 0.0)
        return (xp.sum(inside, axis=-1, keepdims=True) - 1) / xp.maximum(size, xp.ones_like(size))
