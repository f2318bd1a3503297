"""The normalizer `Sum`, which divides non-negative scores by their sum.

w_j = s_j / Σ_i s_i
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import namespace, statically_known_true, stop_gradient, where
from qkv.core.partial import nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float
from qkv.errors import NegativeScoreError
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Sum"]


@dataclass(frozen=True, eq=False)
class Sum(LinearNormalizer):
    """Normalizer that divides the scores of each row by their sum, for counts, similarities or matches.

    The values of keys with score 0 have no effect. If all scores of a row are 0, all its weights are 0.

    Raises:
        NegativeScoreError: a score is negative. Under `jax.jit` no error is raised, and the row becomes NaN.

    Example:
        >>> import numpy as np
        >>> Sum().weights(np.array([[0.9, 0.1, 0.0], [0.0, 0.0, 0.0]]))
        array([[0.9, 0.1, 0. ],
               [0. , 0. , 0. ]])
    """

    linear: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the scores with 0 in place of −inf, and raise a `NegativeScoreError` if a score is negative.

        For traced arrays, negative scores become NaN instead.
        """
        xp = namespace(logits)
        mass = where(excluded(logits), 0.0, logits)
        negative = mass < 0
        if statically_known_true(xp.any(negative)):
            smallest = float(xp.min(stop_gradient(mass)))
            raise NegativeScoreError(
                f"scores must be non-negative for Sum, got {smallest:.4g}. Use Softmax for scores that may be negative."
            )
        return where(negative, math.nan, mass)

    def support(
        self, logits: Float[Array, "*batch q k"], weights: Float[Array, "*batch q k"]
    ) -> Bool[Array, "*batch q k"]:
        return weights != 0

    def logit_gradient(
        self,
        logits: Float[Array, "*batch q k"],
        weights: Float[Array, "*batch q k"],
        weight_gradient: Float[Array, "*batch q k"],
        row_dot: Float[Array, "*batch q 1"],
        summary: Summary,
        tile: Tile,
    ) -> Float[Array, "*batch q k"]:
        """Return the gradient with respect to the scores, (g − Σ w g) / Σ s, with weights w and scores s.

        g is the gradient with respect to the weights. Excluded keys get 0.
        """
        total = summary[0]
        gradient = (weight_gradient - row_dot) / nonzero(total)
        return where(excluded(logits) | (total == 0), 0.0, gradient)
