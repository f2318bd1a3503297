"""Padding mask, which is defined by one boolean per key."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import as_array, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool
from qkv.errors import ShapeError
from qkv.masks.base import Coverage, Mask, require_boolean

__all__ = ["Keys"]


@dataclass(frozen=True, eq=False)
class Keys(Mask):
    """Padding mask that allows, for every query, the keys for which a boolean array is True.

    Args:
        array: booleans `(*batch, k)`, or `(k,)` for the whole batch.

    Raises:
        KindError: the elements are not booleans.
        ShapeError: the length of the last axis differs from the number of keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Keys(np.array([True, False])).allowed(Tile.whole(1, 2), np.zeros(()))
        array([[ True, False]])
    """

    array: Array = array_field("k")
    key_only = True

    def validate(self) -> None:
        object.__setattr__(self, "array", require_boolean("Keys", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        if self.array.shape[-1] not in (1, k):
            raise ShapeError(
                f"the array of Keys must have shape (*batch, {k}), with one element per key, got shape "
                f"{tuple(self.array.shape)}. For an array of shape (*batch, q, k), use Pairs."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch 1 k"]:
        """Return the boolean array as `(*batch, 1, k)`, because it is the same for all queries."""
        return self.array[..., None, :]

    def coverage(self, tile: Tile) -> Coverage:
        """Return "all" if the mask allows all keys of the tile, "none" if it allows none, otherwise "part".

        For a traced array the result is "part".
        """
        return coverage_of(self.array[..., slice(*tile.cols)] if self.array.shape[-1] != 1 else self.array)


def coverage_of(array: Bool[Array, "*_shape"]) -> Coverage:
    """Return "all" if all elements of a boolean array are True, "none" if none is, otherwise "part".

    For a traced array the result is "part".
    """
    known = to_numpy(array)
    if known is None:
        return "part"
    return "all" if known.all() else "part" if known.any() else "none"
