"""Mask of a prefix language model, which is causal except that every query may attend to the whole prefix.

Source: Raffel et al. (2020), section 3.2.1, https://arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool
from qkv.masks.base import Coverage, Mask, require_integers
from qkv.masks.causal import Causal
from qkv.masks.lengths import length_range, shorter_than

__all__ = ["Prefix"]


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Causal mask that additionally allows every query to attend to the first `length` keys.

    Args:
        length: number of keys in the prefix, an integer or integers `(*batch,)`.

    Raises:
        KindError: the length is not an integer.
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Prefix(2).allowed(Tile.whole(3, 3), np.zeros(()))
        array([[ True,  True, False],
               [ True,  True, False],
               [ True,  True,  True]])
    """

    length: Array | int = array_field()
    positional = True

    def validate(self) -> None:
        object.__setattr__(self, "length", require_integers("Prefix", "length", self.length))

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        return shorter_than(tile, reference, self.length) | Causal().allowed(tile, reference)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return the range from key 0 to the last query or to the end of the longest prefix, whichever is later."""
        known = length_range(self.length)
        if known is None:
            return 0, tile.k_total
        return 0, min(tile.k_total, max(Causal().key_range(tile)[1], known[1]))

    def coverage(self, tile: Tile) -> Coverage:
        """Return the coverage of the tile, computed from that of `Causal` and the shortest and longest prefix."""
        causal, known = Causal().coverage(tile), length_range(self.length)
        if causal == "all" or known is None:
            return causal if causal == "all" else "part"
        if tile.cols[1] <= known[0]:
            return "all"
        return causal if tile.cols[0] >= known[1] else "part"
