"""The normalizer `Entmax15`, a sparse alternative to softmax in which small logits get weights of exactly 0.

    w_j = max(0, l_j / 2 − τ)²

Source: Peters, Niculae, Martins (2019), Sparse sequence-to-sequence models, https://arxiv.org/abs/1905.05702.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import arange, cast, namespace, where
from qkv.core.typing import Array, Float
from qkv.normalizers.sparse import SparseNormalizer

__all__ = ["Entmax15"]


@dataclass(frozen=True, eq=False)
class Entmax15(SparseNormalizer):
    """Normalizer that computes 1.5-entmax of each row: weights that sum to 1, of which many can be exactly 0.

    Example:
        >>> import numpy as np
        >>> Entmax15().weights(np.array([[1.0, 1.0, -3.0]]))
        array([[0.5, 0.5, 0. ]])
    """

    power = 2
    scale = 0.5

    def threshold(self, z: Float[Array, "*batch q k"]) -> Float[Array, "*batch q 1"]:
        """Return the threshold τ_k of each row, for the largest k at which τ_k is at most the k-th largest z.

        τ_k = mean − √((1 − Σ(z − mean)²) / k), where the mean and the sum are over the k largest z.
        """
        xp = namespace(z)
        ordered = xp.sort(z, axis=-1, descending=True)
        count = cast(arange(z, 1, z.shape[-1] + 1), z.dtype)
        mean = xp.cumulative_sum(ordered, axis=-1) / count
        spread = xp.cumulative_sum(ordered * ordered, axis=-1) - count * mean * mean
        inside = (1 - spread) / count
        tau = mean - xp.sqrt(where(inside > 0, inside, 0.0))
        size = xp.sum(cast(tau <= ordered, z.dtype), axis=-1, keepdims=True)
        last = count == xp.maximum(size, xp.ones_like(size))
        return xp.sum(where(last, tau, 0.0), axis=-1, keepdims=True)
