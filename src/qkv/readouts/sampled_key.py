"""Sampled key: the index of the key that was drawn for each query."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace, where, zeros
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice

__all__ = ["SampledKey"]


@dataclass(frozen=True, eq=False)
class SampledKey(Readout):
    """Return the index of the key that `Sample` drew, `(*batch, q)`; −1 for rows without keys.

    Raises:
        RefusedError: the normalizer does not draw a key.

    Example:
        >>> import numpy as np, qkv
        >>> seen = qkv.observe(np.ones((1, 1)), np.array([[0.0], [90.0]]), np.zeros((2, 1)),
        ...                    normalizer=qkv.normalizers.Sample(), seed=1, readouts=[SampledKey()])
        >>> seen.readouts[0]
        array([1])
    """

    def refuse(self, normalizer: Normalizer) -> str | None:
        """Refuse normalizers that do not draw a key."""
        return refuse_without_draw("SampledKey", normalizer)

    def read(
        self,
        logits: Float[Array, "*batch q k"],
        weights: Float[Array, "*batch q k"],
        normalizer: Normalizer,
        tile: Tile,
    ) -> Array:
        """Return the index of the key with non-zero weight."""
        xp = namespace(weights)
        chosen = weights != 0
        if chosen.shape[-1] == 0:
            return zeros(weights, tuple(weights.shape[:-1]), xp.int32) - 1
        index = xp.argmax(xp.astype(chosen, xp.int32), axis=-1) + tile.cols[0]
        return where(xp.any(chosen, axis=-1), index, -1)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Take the maximum over tiles; tiles without the drawn key give −1."""
        return (Reduction((tile.q_total,), query_slice(tile), across_keys(tile, "max"), -1),)


def refuse_without_draw(name: str, normalizer: Normalizer) -> str | None:
    """Return the reason for refusing a normalizer that does not draw a key, or None."""
    if normalizer.distribution is not None:
        return None
    return f"{name} needs the normalizer Sample, which draws a key, and the normalizer is {normalizer}."
