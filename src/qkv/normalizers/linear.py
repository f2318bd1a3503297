"""What normalizers share whose output is a plain weighted sum, perhaps over a total: they fold by adding."""

from __future__ import annotations

from abc import abstractmethod

from qkv.core.arrays import Array, namespace
from qkv.core.equation import drop
from qkv.core.guard import apply_weights
from qkv.core.online_softmax import WeightedSums
from qkv.core.tile import Tile
from qkv.normalizers.base import Normalizer, Summary

__all__ = ["LinearNormalizer"]


class LinearNormalizer(Normalizer):
    """weights = mass(logits) / Σ mass(logits), or just the mass where `divides` is False."""

    divides: bool = True

    @abstractmethod
    def mass(self, logits: Array) -> Array:
        """What each key brings, 0 where it is excluded."""

    def weights(self, logits: Array, tile: Tile | None = None) -> Array:
        """mass / Σ mass, 0 where that is 0."""
        mass = self.mass(self.prepare(logits))
        return _share(mass, namespace(mass).sum(mass, axis=-1, keepdims=True)) if self.divides else mass

    def accumulate(self, logits: Array, value: Array, tile: Tile, dropout: float, clean: bool) -> WeightedSums:
        """Sums over the tile."""
        mass = self.mass(logits)
        weighted = apply_weights(drop(mass, tile, dropout), value, self.support(logits, mass), clean)
        return WeightedSums(namespace(mass).sum(mass, axis=-1, keepdims=True), weighted)

    def finalize(self, partial: WeightedSums, tile: Tile, dropout: float) -> tuple[Array, Summary]:
        """weighted / total."""
        if not self.divides:
            return partial.weighted, ()
        return _share(partial.weighted, partial.total), (partial.total,)

    def tile_weights(self, logits: Array, summary: Summary, tile: Tile) -> Array:
        """mass / total"""
        return _share(self.mass(logits), summary[0]) if self.divides else self.mass(logits)


def _share(part: Array, total: Array) -> Array:
    xp = namespace(part)
    empty = total == 0
    # Selected, not only divided by 1: a row without a key has gradient 0 too.
    return xp.where(empty, xp.zeros_like(part), part / xp.where(empty, xp.ones_like(total), total))
