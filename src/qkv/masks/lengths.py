"""Lengths: each batch element has so many keys; what follows is padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, as_array, dtype_name, is_array, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import KindError
from qkv.masks.base import Coverage, Mask

__all__ = ["Lengths"]


@dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """Key index < length.

    Args:
        lengths: how many keys are real: integers `(*batch,)`, or one integer.

    Raises:
        KindError: the lengths are no integers.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Lengths(np.array([1, 2])).allowed(Tile.whole(1, 2, (2,)), np.zeros(()))
        array([[[ True, False]],
               [[ True,  True]]])
    """

    lengths: Any = array_field()
    key_only = True

    def validate(self) -> None:
        """Integers."""
        if not is_array(self.lengths) and not isinstance(self.lengths, int):
            object.__setattr__(self, "lengths", as_array(self.lengths))
        if is_array(self.lengths) and "int" not in dtype_name(self.lengths):
            raise KindError(f"Lengths was given {self.lengths.dtype} elements. Give integers, one per batch element.")

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """j < length"""
        lengths = self.lengths[..., None, None] if is_array(self.lengths) else self.lengths
        return tile.key_positions(reference)[None, :] < lengths

    def coverage(self, tile: Tile) -> Coverage:
        """By the shortest and the longest."""
        known = to_numpy(self.lengths) if is_array(self.lengths) else as_array(self.lengths)
        if known is None or known.size == 0:
            return "part"
        return "all" if tile.cols[1] <= known.min() else "none" if tile.cols[0] >= known.max() else "part"
