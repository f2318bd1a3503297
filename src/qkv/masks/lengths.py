"""Masks of the first keys of each batch element: `Lengths`, and the causal mask with a visible prefix, `Prefix`.

Source: Raffel et al. (2020), section 3.2.1, https://arxiv.org/abs/1910.10683, for the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import is_tensor, to_numpy
from qkv.core.parts import array_field, delegates
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Num
from qkv.masks.base import Coverage, Mask, require_integers
from qkv.masks.window import Causal

__all__ = ["Lengths", "Prefix"]


@dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """Padding mask that allows each query to attend to the first `lengths` keys of its batch element.

    Args:
        lengths: number of keys that are not padding, integers `(*batch,)` or one integer; all keys if it is larger.

    Raises:
        KindError: the lengths are not integers.
        OptionError: a length is negative.

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

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return the range from key 0 to the end of the longest batch element."""
        known = length_range(self.lengths)
        return 0, tile.k_total if known is None else max(0, min(tile.k_total, known[1]))

    def coverage(self, tile: Tile) -> Coverage:
        known = length_range(self.lengths)
        if known is None:
            return "part"
        return "all" if tile.cols[1] <= known[0] else "none" if tile.cols[0] >= known[1] else "part"


_ANY = Lengths(np.zeros((), np.int64))


def unchecked_lengths(lengths: Array | int) -> Lengths:
    """Return the mask of lengths that were checked before, or of negative ones in an array, which allow no key.

    A check may take as long as the mask.
    """
    return Lengths(lengths) if isinstance(lengths, int) else _ANY.replace_arrays([lengths])


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


@delegates("either", "coverage")
@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Causal mask that additionally allows every query to attend to the first `length` keys.

    Args:
        length: number of keys in the prefix, an integer or integers `(*batch,)`.

    Raises:
        KindError: the length is not an integer.
        OptionError: a length is negative.
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

    @property
    def either(self) -> Mask:
        """The union of both masks that allow a pair."""
        return unchecked_lengths(self.length) | Causal()

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        return self.either.allowed(tile, reference)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return the range from key 0 to the last query or to the end of the longest prefix, whichever is later."""
        return 0, max(Causal().key_range(tile)[1], unchecked_lengths(self.length).key_range(tile)[1])
