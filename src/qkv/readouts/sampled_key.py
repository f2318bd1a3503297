"""Sampled key: which key was drawn for each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, namespace, zeros
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice

__all__ = ["SampledKey"]


@dataclass(frozen=True, eq=False)
class SampledKey(Readout):
    """Index of the key that `Sample` drew, `(*batch, q)`; −1 where no key is left.

    Raises:
        RefusedError: the normalizer draws no single key.

    Example:
        >>> import numpy as np, qkv
        >>> seen = qkv.observe(np.ones((1, 1)), np.array([[0.0], [90.0]]), np.zeros((2, 1)),
        ...                    normalizer=qkv.normalizers.Sample(), seed=1, readouts=[SampledKey()])
        >>> seen.readouts[0]
        array([1])
    """

    def refuse(self, normalizer: Any) -> str | None:
        """Only a draw has one."""
        return refuse_without_draw("SampledKey", normalizer)

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """The key of weight 1."""
        xp = namespace(weights)
        chosen = weights != 0
        if chosen.shape[-1] == 0:
            return zeros(weights, tuple(weights.shape[:-1]), xp.int32) - 1
        index = xp.argmax(xp.astype(chosen, xp.int32), axis=-1) + tile.cols[0]
        return xp.where(xp.any(chosen, axis=-1), index, xp.zeros_like(index) - 1)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """A number for each query; tiles without the key show −1."""
        return (Reduction((tile.q_total,), query_slice(tile), across_keys(tile, "max"), -1),)


def refuse_without_draw(name: str, normalizer: Any) -> str | None:
    """The sentence for a normalizer that draws no single key."""
    if normalizer.stochastic and hasattr(normalizer, "softmax"):
        return None
    return f"{name} is about the key that Sample draws; {normalizer} draws none."
