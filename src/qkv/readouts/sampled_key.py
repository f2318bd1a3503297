"""The readout `SampledKey`, the index of the key that the normalizer `Sample` chose for each query."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace, where, zeros
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout

__all__ = ["SampledKey"]


@dataclass(frozen=True, eq=False)
class SampledKey(Readout):
    """Readout that returns the index of the key that `Sample` chose for each query, `(*batch, q)`.

    The result is −1 for rows without keys.

    Raises:
        RefusedError: the normalizer is not `Sample`.

    Example:
        >>> import numpy as np, qkv
        >>> seen = qkv.observe(np.ones((1, 1)), np.array([[0.0], [90.0]]), np.zeros((2, 1)),
        ...                    normalizer=qkv.normalizers.Sample(), seed=1, readouts=[SampledKey()])
        >>> seen.readouts[0]
        array([1])
    """

    requires = "distribution"
    # A tile without the drawn key gives −1.
    reduce_op = "max"
    initial = -1

    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> Num[Array, "*batch q"]:
        """Return the index of the tile's key with non-zero weight for each query, or −1 if there is none."""
        xp = namespace(weights)
        chosen = weights != 0
        if chosen.shape[-1] == 0:
            return zeros(weights, tuple(weights.shape[:-1]), xp.int32) - 1
        index = xp.argmax(xp.astype(chosen, xp.int32), axis=-1) + tile.cols[0]
        return where(xp.any(chosen, axis=-1), index, -1)
