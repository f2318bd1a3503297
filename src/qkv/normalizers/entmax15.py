"""1.5-entmax: between softmax and sparsemax. Weak keys get exactly 0, the others fade smoothly.

    w_j = max(0, l_j / 2 − τ)²

Source: Peters, Niculae, Martins (2019), Sparse sequence-to-sequence models, https://arxiv.org/abs/1905.05702.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, arange, cast, namespace
from qkv.normalizers.sparse import SparseNormalizer

__all__ = ["Entmax15"]


@dataclass(frozen=True, eq=False)
class Entmax15(SparseNormalizer):
    """Weights that add up to 1, some of them exactly 0.

    Example:
        >>> import numpy as np
        >>> Entmax15().weights(np.array([[1.0, 1.0, -3.0]]))
        array([[0.5, 0.5, 0. ]])
    """

    power = 2
    scale = 0.5

    def threshold(self, z: Array) -> Array:
        """Over the k largest: τ_k = mean − √((1 − Σ(z − mean)²) / k); the last τ_k that is below z_k."""
        xp = namespace(z)
        ordered = xp.sort(z, axis=-1, descending=True)
        count = cast(arange(z, 1, z.shape[-1] + 1), z.dtype)
        mean = xp.cumulative_sum(ordered, axis=-1) / count
        spread = xp.cumulative_sum(ordered * ordered, axis=-1) - count * mean * mean
        inside = (1 - spread) / count
        tau = mean - xp.sqrt(xp.where(inside > 0, inside, xp.zeros_like(inside)))
        size = xp.sum(cast(tau <= ordered, z.dtype), axis=-1, keepdims=True)
        last = count == xp.maximum(size, xp.ones_like(size))
        return xp.sum(xp.where(last, tau, xp.zeros_like(tau)), axis=-1, keepdims=True)
