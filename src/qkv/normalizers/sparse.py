"""Base class of sparse normalizers, with weights max(0, z − τ)^p and the threshold τ at which they sum to 1.

The threshold is computed exactly by sorting, without a gradient. Two Newton steps that start at the threshold are
recorded for the gradient and give the first and second derivatives without differentiating the sort.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from qkv.core.arrays import cast, namespace, row_max, stop_gradient, where
from qkv.core.partial import finite_shift, nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float
from qkv.normalizers.base import Normalizer, excluded

__all__ = ["SparseNormalizer"]


_BOUND_GROUPS = 128
"""Minimum number of groups of keys from which a bound of the threshold is computed."""
_BOUND_STEPS = 3
"""Number of Newton steps for the lower bound of the threshold; every number of steps gives a valid bound."""


class SparseNormalizer(Normalizer):
    """Base class of normalizers with weights max(0, z − τ)^p that sum to 1, where z is the logit times `scale`.

    p is `power`, and τ is the threshold at which the weights of the row sum to 1.
    """

    online = False
    shift_invariant = True
    symmetric: ClassVar[bool] = True
    has_threshold_bound: ClassVar[bool] = True
    power: int
    scale: float

    @abstractmethod
    def threshold(self, z: Float[Array, "*batch q k"]) -> Float[Array, "*batch q 1"]:
        """Return the threshold τ of each row, `(*batch, q, 1)`.

        The elements of `z` are at least −2, and the largest of each row that has keys is 0.
        """

    def weights(self, logits: Float[Array, "*batch q k"], tile: Tile | None = None) -> Float[Array, "*batch q k"]:
        """Return the weights max(0, z − τ)^p of whole rows of logits."""
        if logits.shape[-1] == 0:
            return logits
        xp, out = namespace(logits), excluded(logits)
        z = (where(out, 0.0, logits) - finite_shift(row_max(logits))) * self.scale
        # No key below −2 is in the support (τ ≥ −1), so excluded keys are set to −2, which avoids inf.
        z = where(out | (z < -2), -2.0, z)
        tau = stop_gradient(self.threshold(stop_gradient(z)))
        for _ in range(2):
            inside = z > tau
            above = where(inside, z - tau, 0.0)
            excess = xp.sum(above**self.power, axis=-1, keepdims=True) - 1
            slopes = where(inside, self.power * above ** (self.power - 1), 0.0)
            tau = tau + excess / nonzero(xp.sum(slopes, axis=-1, keepdims=True))
        weights = where(z > tau, z - tau, 0.0) ** self.power
        # A comparison with NaN is False and would turn it into 0; rows with NaN, or with inf − inf, become NaN.
        weights = where(xp.any(xp.isnan(z), axis=-1, keepdims=True), math.nan, weights)
        return where(out, 0.0, weights)

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> Float[Array, "*batch q 1"]:
        xp = namespace(largest)
        while (half := largest.shape[-1] // 2) >= _BOUND_GROUPS:
            # Merging pairs of groups lowers the bound a little and halves the time.
            largest = xp.maximum(largest[..., :half], largest[..., half : 2 * half])
        maximum = row_max(largest)
        z = (largest - maximum) * self.scale
        tau = xp.zeros_like(maximum) - 1
        for _ in range(_BOUND_STEPS):
            # Newton steps on ‖max(0, z − τ)‖_p, which is convex, so that no step overshoots the root.
            above = where(z > tau, z - tau, 0.0)
            total = xp.sum(above, axis=-1, keepdims=True)
            if self.power == 1:
                tau = tau + (total - 1) / xp.sum(cast(above > 0, z.dtype), axis=-1, keepdims=True)
            else:
                norm = xp.sum(above**self.power, axis=-1, keepdims=True) ** (1 / self.power)
                tau = tau + (norm - 1) * norm / total
        # The slack covers the rounding of τ and of the shifted logits. A row without keys gets NaN.
        slack: Array = 16 * xp.finfo(largest.dtype).eps * (1 + xp.abs(maximum))
        return tau / self.scale + maximum - slack

    def support(
        self, logits: Float[Array, "*batch q k"], weights: Float[Array, "*batch q k"]
    ) -> Bool[Array, "*batch q k"]:
        return weights != 0
