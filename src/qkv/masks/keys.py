"""Keys: an array says which keys may be attended to, by every query."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, as_array, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import ShapeError
from qkv.masks.base import Coverage, Mask, require_boolean

__all__ = ["Keys"]


@dataclass(frozen=True, eq=False)
class Keys(Mask):
    """A padding mask: True where the key may be attended to.

    Args:
        array: booleans `(*batch, k)`, or `(k,)` for all batch elements.

    Raises:
        KindError: the elements are no booleans.
        ShapeError: it is not as long as the key.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Keys(np.array([True, False])).allowed(Tile.whole(1, 2), np.zeros(()))
        array([[ True, False]])
    """

    array: Array = array_field("k")
    key_only = True

    def validate(self) -> None:
        """Booleans."""
        object.__setattr__(self, "array", require_boolean("Keys", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        """As long as the key."""
        if self.array.shape[-1] not in (1, k):
            raise ShapeError(
                f"Keys has {self.array.shape[-1]} entries (shape {tuple(self.array.shape)}), there are {k} "
                "keys. Its last axis must be k; a mask of shape (*batch, q, k) is Pairs."
            )

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """The array, for every query."""
        return self.array[..., None, :]

    def coverage(self, tile: Tile) -> Coverage:
        """By looking."""
        return coverage_of(self.array[..., slice(*tile.cols)] if self.array.shape[-1] != 1 else self.array)


def coverage_of(array: Array) -> Coverage:
    """Whether all, none or part of the array is True."""
    known = to_numpy(array)
    if known is None:
        return "part"
    return "all" if known.all() else "part" if known.any() else "none"
