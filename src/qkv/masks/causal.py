"""Causal mask, in which each query may attend to the keys at positions up to its own."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.positions import Align, Positions
from qkv.core.tile import Tile
from qkv.masks.window import BandMask

__all__ = ["Causal"]


@dataclass(frozen=True, eq=False)
class Causal(BandMask):
    """Causal mask, which allows the pairs with key position ≤ query position.

    Args:
        align: "start" or "end", the alignment of queries and keys if their numbers differ; None: the `positions` of
            the call.

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
        if self.align is not None:
            Positions(align=self.align)

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Whether the mask depends on the `positions` of the call, which is true if `align` is None."""
        return self.align is None

    def causal_offset(self, tile: Tile) -> int | None:
        """Return the position of query 0, or None if it is given by an array with one element per batch element."""
        offset = tile.offset(self.align)
        return offset if isinstance(offset, int) else None
