"""Pairs: an array says which query may attend to which key."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, as_array
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import ShapeError
from qkv.masks.base import Coverage, Mask, require_boolean
from qkv.masks.keys import coverage_of

__all__ = ["Pairs"]


@dataclass(frozen=True, eq=False)
class Pairs(Mask):
    """True where the query may attend to the key.

    Args:
        array: booleans `(*batch, q, k)`; any of these axes may be 1, so a padding mask `(batch, 1, 1, k)` is
            one.

    Raises:
        KindError: the elements are no booleans.
        ShapeError: it does not fit query and key.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Pairs(np.array([[True, False]])).allowed(Tile.whole(3, 2), np.zeros(()))
        array([[ True, False]])
    """

    array: Array = array_field("q", "k")

    def validate(self) -> None:
        """Booleans."""
        object.__setattr__(self, "array", require_boolean("Pairs", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        """As long as query and key."""
        shape = tuple(self.array.shape)
        if len(shape) < 2 or shape[-2] not in (1, q) or shape[-1] not in (1, k):
            raise ShapeError(
                f"Pairs has shape {shape}, there are {q} queries and {k} keys. Its last two axes must be "
                f"({q}, {k}), or 1; a mask of shape (*batch, k) is Keys."
            )

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """The array."""
        return self.array

    def coverage(self, tile: Tile) -> Coverage:
        """By looking."""
        return coverage_of(self.slice(slice(*tile.rows), slice(*tile.cols)).array)
