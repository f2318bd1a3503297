"""What sparse projections share: weights max(0, z − τ)^p whose threshold τ makes them add up to 1.

The threshold is found exactly by sorting, without gradient; two Newton steps from there, with gradient, make
the first and second derivatives right without differentiating the sort.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from qkv.core.arrays import Array, cast, namespace, row_max, stop_gradient
from qkv.core.tile import Tile
from qkv.normalizers.base import Normalizer, excluded

__all__ = ["SparseNormalizer"]


BOUND_GROUPS = 128
"""So many groups, at least, are looked at for a bound of the threshold."""
BOUND_STEPS = 3
"""Newton steps for a first bound of the threshold; fewer give a lower one."""


class SparseNormalizer(Normalizer):
    """max(0, z − τ)^p with z = l · scale."""

    online = False
    shift_invariant = True
    symmetric: ClassVar[bool] = True
    power: int
    scale: float

    @abstractmethod
    def threshold(self, z: Array) -> Array:
        """τ of each row, `(*batch, q, 1)`; the largest z of each row is 0 and none is below −2."""

    def weights(self, logits: Array, tile: Tile | None = None) -> Array:
        """max(0, z − τ)^p"""
        xp = namespace(logits)
        if logits.shape[-1] == 0:
            return logits
        out = excluded(logits)
        maximum = row_max(logits)
        shift = xp.where(maximum == -xp.inf, xp.zeros_like(maximum), maximum)
        # Below −2 nothing is ever in the support (τ ≥ −1), so excluded keys are put there: no inf in the
        # algebra.
        z = xp.where(
            out,
            xp.zeros_like(logits) - 2,
            (xp.where(out, xp.zeros_like(logits), logits) - shift) * self.scale,
        )
        z = xp.where(z < -2, xp.zeros_like(z) - 2, z)
        tau = stop_gradient(self.threshold(stop_gradient(z)))
        for _ in range(2):
            above = xp.where(z > tau, z - tau, xp.zeros_like(z))
            excess = xp.sum(above**self.power, axis=-1, keepdims=True) - 1
            slope = xp.sum(
                xp.where(z > tau, self.power * above ** (self.power - 1), xp.zeros_like(z)),
                axis=-1,
                keepdims=True,
            )
            tau = tau + excess / xp.where(slope == 0, xp.ones_like(slope), slope)
        weights = xp.where(z > tau, z - tau, xp.zeros_like(z)) ** self.power
        # A comparison with NaN is False and would make 0 of it: NaN that is read shows, and so does inf
        # − inf.
        weights = xp.where(xp.any(xp.isnan(z), axis=-1, keepdims=True), xp.zeros_like(weights) + xp.nan, weights)
        return xp.where(out, xp.zeros_like(weights), weights)

    def threshold_bound(self, largest: Array) -> Array:
        """From τ of the largest keys of the groups: τ of all keys is not below it."""
        xp = namespace(largest)
        while (half := largest.shape[-1] // 2) >= BOUND_GROUPS:
            # Groups of two groups: the floor falls a little, and is found in half the time.
            largest = xp.maximum(largest[..., :half], largest[..., half : 2 * half])
        maximum = row_max(largest)
        z = (largest - maximum) * self.scale
        tau = xp.zeros_like(maximum) - 1
        for _ in range(BOUND_STEPS):
            # Newton's steps on ‖max(0, z − τ)‖_p, which is convex: none passes the root.
            above = z - tau
            above = xp.where(above > 0, above, 0.0)
            total = xp.sum(above, axis=-1, keepdims=True)
            if self.power == 1:
                tau = tau + (total - 1) / xp.sum(cast(above > 0, z.dtype), axis=-1, keepdims=True)
            else:
                norm = xp.sum(above**self.power, axis=-1, keepdims=True) ** (1 / self.power)
                tau = tau + (norm - 1) * norm / total
        # τ was rounded, and so will be the logits minus the largest of them. A row without keys has NaN.
        slack = 16 * xp.finfo(largest.dtype).eps * (1 + xp.abs(maximum))
        return tau / self.scale + maximum - slack

    def support(self, logits: Array, weights: Array) -> Array:
        """The support."""
        return weights != 0
