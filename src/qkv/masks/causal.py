"""Causal: a query attends to the keys at its own position and before."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.positions import Align, Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool
from qkv.masks.base import Coverage, Mask

__all__ = ["Causal"]


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Allow the pairs with key position ≤ query position.

    Args:
        align: how this mask aligns queries with keys if their lengths differ, "start" or "end"; None for the
            call's `positions`.

    Raises:
        PositionError: query and key differ in length and no alignment is given.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Causal(align="end").allowed(Tile.whole(2, 3), np.zeros(()))
        array([[ True,  True, False],
               [ True,  True,  True]])
    """

    align: Align | None = None
    relative = True

    def validate(self) -> None:
        """Check that the alignment is known."""
        if self.align is not None:
            Positions(align=self.align)

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """True unless the mask has its own alignment."""
        return self.align is None

    def causal_offset(self, tile: Tile) -> int | None:
        """Return the position of query 0 if it is the same for the whole batch."""
        offset = tile.offset(self.align)
        return offset if isinstance(offset, int) else None

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        """Return `j <= i`."""
        return tile.map_relative_positions(reference, lambda distance: distance <= 0, self.align)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return the keys up to the last query's position."""
        span = tile.query_position_range(self.align)
        return 0, tile.k_total if span is None else min(tile.k_total, span[1] + 1)

    def coverage(self, tile: Tile) -> Coverage:
        """Return "all" up to the first query's position and "none" after the last."""
        span = tile.query_position_range(self.align)
        if span is None:
            return "part"
        return "all" if tile.cols[1] - 1 <= span[0] else "none" if tile.cols[0] > span[1] else "part"
