"""Padding mask, which is defined by the number of keys of each batch element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import is_tensor, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Num
from qkv.masks.base import Coverage, Mask, require_integers

__all__ = ["Lengths", "length_range", "shorter_than"]


@dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """Padding mask that allows each query to attend to the first `lengths` keys of its batch element.

    Args:
        lengths: number of keys that are not padding, integers `(*batch,)` or one integer.

    Raises:
        KindError: the lengths are not integers.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Lengths(np.array([1, 2])).allowed(Tile.whole(1, 2, (2,)), np.zeros(()))
        array([[[ True, False]],
               [[ True,  True]]])
    """

    lengths: Array | int = array_field()
    key_only = True

    def validate(self) -> None:
        object.__setattr__(self, "lengths", require_integers("Lengths", "lengths", self.lengths))

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        return shorter_than(tile, reference, self.lengths)

    def coverage(self, tile: Tile) -> Coverage:
        known = length_range(self.lengths)
        if known is None:
            return "part"
        return "all" if tile.cols[1] <= known[0] else "none" if tile.cols[0] >= known[1] else "part"


def shorter_than(tile: Tile, reference: Array, lengths: Num[Array, "*batch"] | int) -> Bool[Array, "*batch #q k"]:
    """Return a boolean array that is True for keys of the tile with an index below the length of the batch element."""
    positions = tile.key_positions(reference)
    if isinstance(lengths, int):
        return positions[None, :] < lengths
    # `view` takes half the time of an index.
    return positions < (lengths.view(*lengths.shape, 1, 1) if is_tensor(lengths) else lengths[..., None, None])


def length_range(lengths: Num[Array, "*batch"] | int) -> tuple[int, int] | None:
    """Return the smallest and the largest length, or None if `lengths` is empty or traced."""
    known = np.asarray(lengths) if isinstance(lengths, int) else to_numpy(lengths)
    return None if known is None or known.size == 0 else (int(known.min()), int(known.max()))
