"""Masks that are boolean arrays: `AllowedKeys`, `AllowedPairs`, and `Blocks` with one element per pair of blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import as_array, namespace, to_numpy
from qkv.core.checks import is_int
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool
from qkv.errors import OptionError, ShapeError
from qkv.masks.base import Coverage, Mask, require_boolean

__all__ = ["AllowedKeys", "AllowedPairs", "Blocks"]


@dataclass(frozen=True, eq=False)
class AllowedKeys(Mask):
    """Padding mask that allows, for every query, the keys for which a boolean array is True.

    Args:
        array: booleans `(*batch, k)`, or `(k,)` for the whole batch.

    Raises:
        KindError: the elements are not booleans.
        ShapeError: the length of the last axis differs from the number of keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> AllowedKeys(np.array([True, False])).allowed(Tile.whole(1, 2), np.zeros(()))
        array([[ True, False]])
    """

    array: Array = array_field("k")
    key_only = True

    def validate(self) -> None:
        object.__setattr__(self, "array", require_boolean("AllowedKeys", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        if self.array.shape[-1] not in (1, k):
            raise ShapeError(
                f"the array of AllowedKeys must have shape (*batch, {k}), with one element per key, got shape "
                f"{tuple(self.array.shape)}. For an array of shape (*batch, q, k), use AllowedPairs."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch 1 k"]:
        return self.array[..., None, :]

    def coverage(self, tile: Tile) -> Coverage:
        return coverage_of(self.array[..., slice(*tile.cols)] if self.array.shape[-1] != 1 else self.array)


def coverage_of(array: Bool[Array, "*_shape"]) -> Coverage:
    """Return "all" if all elements of a boolean array are True, "none" if none is, otherwise "part".

    For a traced array the result is "part".
    """
    known = to_numpy(array)
    if known is None:
        return "part"
    return "all" if known.all() else "part" if known.any() else "none"


@dataclass(frozen=True, eq=False)
class AllowedPairs(Mask):
    """Mask that allows the pairs of query and key for which a boolean array is True.

    Args:
        array: booleans `(*batch, q, k)`; any axis may have length 1, as in a padding mask `(batch, 1, 1, k)`.

    Raises:
        KindError: the elements are not booleans.
        ShapeError: one of the last two axes has neither length 1 nor the number of queries or keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> AllowedPairs(np.array([[True, False]])).allowed(Tile.whole(3, 2), np.zeros(()))
        array([[ True, False]])
    """

    array: Array = array_field("q", "k")

    def validate(self) -> None:
        object.__setattr__(self, "array", require_boolean("AllowedPairs", as_array(self.array)))

    def check(self, q: int, k: int) -> None:
        shape = tuple(self.array.shape)
        if len(shape) < 2 or shape[-2] not in (1, q) or shape[-1] not in (1, k):
            raise ShapeError(
                f"the array of AllowedPairs must have shape (*batch, {q}, {k}), where an axis may also have length 1, "
                f"got shape {shape}. For an array of shape (*batch, k), use AllowedKeys."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        return self.array

    def coverage(self, tile: Tile) -> Coverage:
        return coverage_of(self.slice(slice(*tile.rows), slice(*tile.cols)).array)


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """Block-sparse mask that allows query i to attend to key j if `layout[i // size, j // size]` is True.

    Args:
        layout: booleans `(*batch, query_blocks, key_blocks)`.
        size: number of queries and keys in a block, or a pair (number of queries, number of keys).

    Raises:
        KindError: the elements of `layout` are not booleans.
        OptionError: a size is not a positive integer.
        ShapeError: the number of blocks does not match the number of queries and keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Blocks(np.array([[True, False], [True, True]]), 2).allowed(Tile.whole(3, 3), np.zeros(()))
        array([[ True,  True, False],
               [ True,  True, False],
               [ True,  True,  True]])
    """

    layout: Array = array_field("query_blocks", "key_blocks")
    size: int | tuple[int, int] = 64

    def validate(self) -> None:
        object.__setattr__(self, "layout", require_boolean("Blocks", as_array(self.layout)))
        if len(self.sizes) != 2 or not all(is_int(n) and n >= 1 for n in self.sizes):
            raise OptionError(
                f"size of Blocks must be an integer of at least 1 or a tuple of two such integers, got {self.size!r}. "
                "Pass, for example, 64 or (64, 32)."
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of queries and the number of keys in a block."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def check(self, q: int, k: int) -> None:
        expected = tuple(-(-n // size) for n, size in zip((q, k), self.sizes, strict=True))
        if tuple(self.layout.shape[-2:]) != expected:
            raise ShapeError(
                f"layout of Blocks must have shape (*batch, {expected[0]}, {expected[1]}) for {q} queries and {k} keys "
                f"in blocks of size {self.sizes}, got shape {tuple(self.layout.shape)}. "
                "Pass one element for each pair of blocks."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        xp = namespace(self.layout)
        rows = tile.query_indices(self.layout) // self.sizes[0]
        cols = tile.key_positions(self.layout) // self.sizes[1]
        return xp.take(xp.take(self.layout, rows, axis=-2), cols, axis=-1)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return the keys from the first to the last block that any query of the tile may attend to, as a range."""
        layout, (size_q, size_k) = to_numpy(self.layout), self.sizes
        if layout is None or layout.size == 0:
            return 0, tile.k_total
        rows = layout[..., tile.rows[0] // size_q : -(-tile.rows[1] // size_q), :]
        blocks = np.flatnonzero(rows.any(axis=tuple(range(rows.ndim - 1))))
        if not blocks.size:
            return 0, 0
        return int(blocks[0]) * size_k, min(tile.k_total, (int(blocks[-1]) + 1) * size_k)

    def coverage(self, tile: Tile) -> Coverage:
        if to_numpy(self.layout) is None:
            return "part"
        (r0, r1), (c0, c1) = tile.rows, tile.cols
        size_q, size_k = self.sizes
        return coverage_of(self.layout[..., r0 // size_q : -(-r1 // size_q), c0 // size_k : -(-c1 // size_k)])
