"""Base class of normalizers whose output is a weighted sum, optionally divided by the sum of the weights."""

from __future__ import annotations

from abc import abstractmethod

from qkv.core.arrays import namespace, where
from qkv.core.equation import apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.online_softmax import WeightedSums, nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.normalizers.base import Normalizer, Summary

__all__ = ["LinearNormalizer"]


class LinearNormalizer(Normalizer):
    """Base class of normalizers with weights mass(l) / Σ mass(l), or mass(l) if `divides` is False."""

    divides: bool = True

    @abstractmethod
    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the unnormalized weight of each key, 0 for excluded keys."""

    def weights(self, logits: Float[Array, "*batch q k"], tile: Tile | None = None) -> Float[Array, "*batch q k"]:
        """Return mass / Σ mass for each key, or 0 if the sum is 0."""
        mass = self.mass(self.prepare(logits))
        return _share(mass, namespace(mass).sum(mass, axis=-1, keepdims=True)) if self.divides else mass

    def accumulate(
        self,
        logits: Float[Array, "*batch q k"],
        value: Float[Array, "*#batch k value_width"],
        tile: Tile,
        dropout: float,
        finite: bool,
    ) -> WeightedSums:
        """Return the sum of the unnormalized weights and the weighted sum of the values of the tile."""
        mass = self.mass(logits)
        weighted = apply_weights(apply_dropout(mass, tile, dropout), value, self.support(logits, mass), finite)
        return WeightedSums(namespace(mass).sum(mass, axis=-1, keepdims=True), weighted)

    def finalize(self, partial: WeightedSums, tile: Tile, dropout: float) -> tuple[Array, Summary]:
        """Return the output, weighted / total, and the total as the summary if `divides` is True."""
        if not self.divides:
            return partial.weighted, ()
        return _share(partial.weighted, partial.total), (partial.total,)

    def tile_weights(
        self, logits: Float[Array, "*batch q k"], summary: Summary, tile: Tile
    ) -> Float[Array, "*batch q k"]:
        """Return the mass of each key of the tile, divided by the total if `divides` is True."""
        return _share(self.mass(logits), summary[0]) if self.divides else self.mass(logits)


def _share(part: Array, total: Array) -> Array:
    # Filling with 0, besides the division by 1, makes the gradient of a row without keys 0 too.
    return where(total == 0, 0.0, part / nonzero(total))
