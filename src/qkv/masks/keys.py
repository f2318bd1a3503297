"""Keys: a padding mask given by one boolean per key."""

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
        """Check that the array is boolean."""
        object.__setattr__(self, "array", require_boolean("Keys", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        """Raise a `ShapeError` unless the array has one element per key."""
        if self.array.shape[-1] not in (1, k):
            raise ShapeError(
                f"the last axis of Keys must have length {k}, one element per key, got shape "
                f"{tuple(self.array.shape)}. For a mask of shape (*batch, q, k) use Pairs."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch 1 k"]:
        """Return the boolean array with an axis of length 1 for the queries."""
        return self.array[..., None, :]

    def coverage(self, tile: Tile) -> Coverage:
        """Return the coverage of the elements of the array that belong to the tile's keys."""
        return coverage_of(self.array[..., slice(*tile.cols)] if self.array.shape[-1] != 1 else self.array)


def coverage_of(array: Bool[Array, "*_shape"]) -> Coverage:
    """Return "all", "none" or "part" of the elements of an array that are True; "part" for a traced array."""
    known = to_numpy(array)
    if known is None:
        return "part"
    return "all" if known.all() else "part" if known.any() else "none"
