"""Causal: a query attends to the keys at its own position and before."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.positions import Align, Positions
from qkv.core.tile import Tile
from qkv.masks.window import BandMask

__all__ = ["Causal"]


@dataclass(frozen=True, eq=False)
class Causal(BandMask):
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
    before = None
    after = 0

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
