"""The number of last keys that a mask allows for the last query of a sequence, for every number of keys."""

from __future__ import annotations

from functools import lru_cache

from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.masks import Mask

__all__ = ["ALL_KEYS", "last_keys"]

ALL_KEYS = 2**40
"""Number of keys for which a mask is asked which of them it allows. No sequence is longer."""


def last_keys(mask: Mask | None) -> int | None:
    """Return the number of last keys that a mask allows for the last query, or None if it is no such number.

    The result for a mask that allows all keys is `ALL_KEYS`. It is known only for masks without arrays that depend on
    nothing but the distance between query and key, and therefore holds for every number of keys.

    Example:
        >>> from qkv.masks import Causal, Window
        >>> last_keys(Window(3, 0)), last_keys(Causal()) == ALL_KEYS, last_keys(~Causal())
        (4, True, None)
    """
    if mask is None:
        return ALL_KEYS
    return _probe(mask) if mask.relative else None


@lru_cache(maxsize=256)
def _probe(mask: Mask) -> int | None:
    if mask.arrays():
        return None
    tile = Tile.whole(1, ALL_KEYS, (), Positions(align="end"))
    start, stop = mask.key_range(tile)
    inside = stop == ALL_KEYS and mask.coverage(tile.restrict(tile.rows, (start, stop))) == "all"
    return stop - start if inside else None
