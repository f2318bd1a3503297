"""What sparse projections share: weights max(0, z − τ)^p whose threshold τ makes them add up to 1.

The threshold is found exactly by sorting, without gradient; two Newton steps from there, with gradient, make
the first and second derivatives right without differentiating the sort.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from qkv.core.arrays import Array, namespace, row_max, stop_gradient
from qkv.core.positions import Place
from qkv.normalizers.base import Normalizer, Passes, excluded

__all__ = ["SparseNormalizer"]


class SparseNormalizer(Normalizer):
    """max(0, z − τ)^p with z = l · scale."""

    passes: Passes = "strip"
    shift_invariant = True
    even: ClassVar[bool] = True
    power: int
    scale: float

    @abstractmethod
    def threshold(self, z: Array) -> Array:
        """τ of each row, `(*batch, q, 1)`; the largest z of each row is 0 and none is below −2."""

    def weights(self, logits: Array, place: Place | None = None) -> Array:
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
        weights = xp.where(
            xp.any(xp.isnan(z), axis=-1, keepdims=True), xp.zeros_like(weights) + xp.nan, weights
        )
        return xp.where(out, xp.zeros_like(weights), weights)

    def takes_part(self, logits: Array, weights: Array) -> Array:
        """The support."""
        return weights != 0
