"""Blocks: a coarse array says which block of queries may attend to which block of keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import Array, as_array, namespace, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import OptionError, ShapeError
from qkv.masks.base import Coverage, Mask, require_boolean
from qkv.masks.keys import coverage_of

__all__ = ["Blocks"]


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """Query i may attend to key j where `layout[i // size, j // size]` is True.

    Args:
        layout: booleans `(*batch, query_blocks, key_blocks)`.
        size: how many positions a block has; or (queries, keys).

    Raises:
        KindError: the elements are no booleans.
        OptionError: a size that is no whole number of at least 1.
        ShapeError: the blocks do not reach over all queries and keys, or reach further.

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
        """Booleans, and whole sizes."""
        object.__setattr__(self, "layout", require_boolean("Blocks", as_array(self.layout)))
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in self.sizes):
            raise OptionError(f"Blocks was given size={self.size!r}. It must be a whole number of at least 1, or two.")

    @property
    def sizes(self) -> tuple[int, int]:
        """Positions in a block of queries and in a block of keys."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def check(self, q: int, k: int) -> None:
        """As many blocks as there must be."""
        wanted = tuple(-(-n // size) for n, size in zip((q, k), self.sizes, strict=True))
        if tuple(self.layout.shape[-2:]) != wanted:
            raise ShapeError(
                f"Blocks has a layout of shape {tuple(self.layout.shape)} with blocks of {self.sizes}; {q} "
                f"queries and {k} keys make {wanted[0]} by {wanted[1]} blocks. Give the layout that shape."
            )

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """layout[i // size, j // size]"""
        xp = namespace(self.layout)
        rows = tile.query_indices(self.layout) // self.sizes[0]
        cols = tile.key_positions(self.layout) // self.sizes[1]
        return xp.take(xp.take(self.layout, rows, axis=-2), cols, axis=-1)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """From the first block that any of these queries may attend to, to the last."""
        layout, (size_q, size_k) = to_numpy(self.layout), self.sizes
        if layout is None:
            return 0, tile.k_total
        rows = layout[..., tile.rows[0] // size_q : -(-tile.rows[1] // size_q), :]
        found = np.flatnonzero(rows.reshape(-1, rows.shape[-1]).any(axis=0))
        if not found.size:
            return 0, 0
        return int(found[0]) * size_k, min(tile.k_total, (int(found[-1]) + 1) * size_k)

    def coverage(self, tile: Tile) -> Coverage:
        """By the blocks that the tile touches."""
        if to_numpy(self.layout) is None:
            return "part"
        (r0, r1), (c0, c1) = tile.rows, tile.cols
        size_q, size_k = self.sizes
        return coverage_of(self.layout[..., r0 // size_q : -(-r1 // size_q), c0 // size_k : -(-c1 // size_k)])
