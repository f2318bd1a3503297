"""Base class of normalizers whose weights are an elementwise function of the logits, optionally divided by its sum."""

from __future__ import annotations

from abc import abstractmethod

from qkv.core.arrays import namespace, where
from qkv.core.equation import apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.partial import PartialResult, WeightedSums, nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.normalizers.base import Normalizer, Summary

__all__ = ["LinearNormalizer"]


class LinearNormalizer(Normalizer):
    """Base class of normalizers with weights `mass(logits)`, divided by their sum in each row if `divides` is True."""

    divides: bool = True

    @abstractmethod
    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the unnormalized weight of each key, which is 0 for excluded keys."""

    def weights(self, logits: Float[Array, "*batch q k"], tile: Tile | None = None) -> Float[Array, "*batch q k"]:
        """Return `mass(logits)`, divided by its sum in each row if `divides` is True; rows with sum 0 get weights 0."""
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
        mass = self.mass(logits)
        weighted = apply_weights(apply_dropout(mass, tile, dropout), value, self.support(logits, mass), finite)
        return WeightedSums(namespace(mass).sum(mass, axis=-1, keepdims=True), weighted)

    def finalize(
        self, partial: PartialResult, tile: Tile, dropout: float
    ) -> tuple[Float[Array, "*batch q value_width"], Summary]:
        """Return the output, and the sum of the unnormalized weights as the summary if `divides` is True.

        The output is the weighted sum of the values, divided by this sum if `divides` is True.
        """
        assert isinstance(partial, WeightedSums)
        if not self.divides:
            return partial.weighted, ()
        return _share(partial.weighted, partial.total), (partial.total,)

    def tile_weights(
        self, logits: Float[Array, "*batch q k"], summary: Summary, tile: Tile
    ) -> Float[Array, "*batch q k"]:
        return _share(self.mass(logits), summary[0]) if self.divides else self.mass(logits)


def _share(part: Float[Array, "*batch q n"], total: Float[Array, "*batch q 1"]) -> Float[Array, "*batch q n"]:
    # Filling with 0, besides the division by 1, makes the gradient of a row without keys 0 too.
    return where(total == 0, 0.0, part / nonzero(total))
