"""Function that splits a mask into a mask of keys and the offset of a causal mask."""

from __future__ import annotations

from functools import reduce

from qkv.core.tile import Tile
from qkv.masks.base import Mask


def split_mask(mask: Mask | None, tile: Tile) -> tuple[Mask | None, int | None, bool]:
    """Split a mask into a mask of keys and the offset of a causal mask, and return whether the split is exact.

    Returns:
        The mask of keys or None, the offset of the causal mask or None, and whether the conjunction of both is
        equivalent to the mask.
    """
    if mask is None:
        return None, None, True
    if mask.key_only:
        return mask, None, True
    keys = [part for part in mask.conjuncts if part.key_only]
    offsets = [part.causal_offset(tile) for part in mask.conjuncts if not part.key_only]
    if len(set(offsets)) != 1 or offsets[0] is None:
        return None, None, False
    return reduce(lambda left, right: left & right, keys) if keys else None, offsets[0], True
