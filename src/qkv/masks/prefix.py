"""Prefix: every query sees the first keys; what follows is causal. The mask of a prefix language model.

Source: Raffel et al. (2020), section 3.2.1, https://arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, as_array, dtype_name, is_array, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import KindError
from qkv.masks.base import Coverage, Mask
from qkv.masks.causal import Causal

__all__ = ["Prefix"]


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Key index < length, or key position ≤ query position.

    Args:
        length: of the prefix: an integer, or integers `(*batch,)`.

    Raises:
        KindError: the length is no integer.
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Prefix(2).allowed(Tile.whole(3, 3), np.zeros(()))
        array([[ True,  True, False],
               [ True,  True, False],
               [ True,  True,  True]])
    """

    length: Any = array_field()
    positional = True

    def validate(self) -> None:
        """Integers."""
        if not is_array(self.length) and not isinstance(self.length, int):
            object.__setattr__(self, "length", as_array(self.length))
        if is_array(self.length) and "int" not in dtype_name(self.length):
            raise KindError(f"Prefix was given a length of {self.length.dtype}. Give an integer.")

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """j < length or j ≤ i"""
        length = self.length[..., None, None] if is_array(self.length) else self.length
        return (tile.key_positions(reference)[None, :] < length) | Causal().allowed(tile, reference)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Up to the last query's position, or to the end of the longest prefix."""
        known = to_numpy(self.length) if is_array(self.length) else as_array(self.length)
        if known is None or known.size == 0:
            return 0, tile.k_total
        return 0, min(tile.k_total, max(Causal().key_range(tile)[1], int(known.max())))

    def coverage(self, tile: Tile) -> Coverage:
        """By the causal part, and the shortest and longest prefix."""
        causal = Causal().coverage(tile)
        known = to_numpy(self.length) if is_array(self.length) else as_array(self.length)
        if causal == "all" or known is None or known.size == 0:
            return causal if causal == "all" else "part"
        if tile.cols[1] <= known.min():
            return "all"
        return causal if tile.cols[0] >= known.max() else "part"
