"""Sum: non-negative scores, divided by their sum.

w_j = s_j / Σ_i s_i
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, namespace, statically_known_true
from qkv.core.tile import Tile
from qkv.errors import NegativeScoreError
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Sum"]


@dataclass(frozen=True, eq=False)
class Sum(LinearNormalizer):
    """Shares of the total, for scores that are counts, similarities or matches.

    A score of 0 takes no part: its value is not read. A row whose scores are all 0 has weights 0.

    Raises:
        NegativeScoreError: a score is negative (under `jax.jit`, where that cannot be raised, its row is
            NaN).

    Example:
        >>> import numpy as np
        >>> Sum().weights(np.array([[0.9, 0.1, 0.0], [0.0, 0.0, 0.0]]))
        array([[0.9, 0.1, 0. ],
               [0. , 0. , 0. ]])
    """

    def mass(self, logits: Array) -> Array:
        """The score itself."""
        xp = namespace(logits)
        out = excluded(logits)
        mass = xp.where(out, xp.zeros_like(logits), logits)
        negative = mass < 0
        if statically_known_true(xp.any(negative)):
            raise NegativeScoreError(
                f"Sum was given a negative score, {float(xp.min(mass)):.4g}. It takes scores ≥ 0 (matches, "
                f"similarities, counts); normalise logits with Softmax."
            )
        return xp.where(negative, xp.zeros_like(mass) + xp.nan, mass)

    def support(self, logits: Array, weights: Array) -> Array:
        """Keys whose score is not 0."""
        return weights != 0

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """(dw − Σ w dw) / total"""
        xp = namespace(logits)
        out = excluded(logits) | (summary[0] == 0)
        gradient = (weight_gradient - row_dot) / xp.where(summary[0] == 0, xp.ones_like(summary[0]), summary[0])
        return xp.where(out, xp.zeros_like(gradient), gradient)
