"""The readout `Entropy`, which measures how widely the weights of each query are spread.

H = −Σ_j w_j log w_j          in nats; e^H is the effective number of keys
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace
from qkv.core.partial import nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout

__all__ = ["Entropy"]


@dataclass(frozen=True, eq=False)
class Entropy(Readout):
    """Readout that returns the entropy of each query's weights in nats, `(*batch, q)`; 0 for rows without keys.

    Raises:
        RefusedError: the normalizer's weights do not sum to 1.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((4, 1))
        >>> np.exp(qkv.observe(rows[:1], rows, rows, readouts=[Entropy()]).readouts[0])
        array([4.])
    """

    requires = "sums_to_one"
    reduce_op = "add"

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch q"]:
        """Return −Σ w log w over the keys of the tile for each query, with 0 log 0 = 0."""
        xp = namespace(weights)
        return -xp.sum(weights * xp.log(nonzero(weights)), axis=-1)
