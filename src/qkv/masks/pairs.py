"""Mask that is defined by a boolean array with one element for each pair of query and key."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import as_array
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool
from qkv.errors import ShapeError
from qkv.masks.base import Coverage, Mask, require_boolean
from qkv.masks.keys import coverage_of

__all__ = ["Pairs"]


@dataclass(frozen=True, eq=False)
class Pairs(Mask):
    """Mask that allows the pairs of query and key for which a boolean array is True.

    Args:
        array: booleans `(*batch, q, k)`; any axis may have length 1, as in a padding mask `(batch, 1, 1, k)`.

    Raises:
        KindError: the elements are not booleans.
        ShapeError: one of the last two axes has neither length 1 nor the number of queries or keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Pairs(np.array([[True, False]])).allowed(Tile.whole(3, 2), np.zeros(()))
        array([[ True, False]])
    """

    array: Array = array_field("q", "k")

    def validate(self) -> None:
        object.__setattr__(self, "array", require_boolean("Pairs", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        """Raise a `ShapeError` unless the last two axes of the array have lengths `q` and `k`, or 1."""
        shape = tuple(self.array.shape)
        if len(shape) < 2 or shape[-2] not in (1, q) or shape[-1] not in (1, k):
            raise ShapeError(
                f"the array of Pairs must have shape (*batch, {q}, {k}), where an axis may also have length 1, got "
                f"shape {shape}. For an array of shape (*batch, k), use Keys."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        return self.array

    def coverage(self, tile: Tile) -> Coverage:
        """Return "all" if the mask allows all pairs of the tile, "none" if it allows none, otherwise "part".

        For a traced array the result is "part".
        """
        return coverage_of(self.slice(slice(*tile.rows), slice(*tile.cols)).array)
