"""Causal: a query sees the keys at its own position and before."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.core.positions import Align, Place, Positions
from qkv.masks.base import Cover, Mask

__all__ = ["Causal"]


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Key position ≤ query position.

    Args:
        align: "start" or "end": how queries stand to keys where their lengths differ, for this mask. None: as
            `positions=` of the call says.

    Raises:
        PositionError: query and key differ in length and neither says how they are aligned.

    Example:
        >>> import numpy as np
        >>> from qkv.core.positions import whole
        >>> Causal(align="end").allowed(whole(2, 3), np.zeros(()))
        array([[ True,  True, False],
               [ True,  True,  True]])
    """

    align: Align | None = None
    relative = True

    def validate(self) -> None:
        """A known alignment."""
        if self.align is not None:
            Positions(align=self.align)

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Fact: yes, unless it brings its own alignment."""
        return self.align is None

    def causal_offset(self, place: Place) -> int | None:
        """Fact: the offset, where it is the same for the whole batch."""
        offset = place.offset(self.align)
        return offset if isinstance(offset, int) else None

    def allowed(self, place: Place, reference: Array) -> Array:
        """j ≤ i"""
        return place.by_distance(reference, lambda distance: distance <= 0, self.align)

    def reach(self, place: Place) -> tuple[int, int]:
        """Up to the last query's position."""
        span = place.query_span(self.align)
        return 0, place.k_total if span is None else min(place.k_total, span[1] + 1)

    def cover(self, place: Place) -> Cover:
        """All up to the first query, none after the last."""
        span = place.query_span(self.align)
        if span is None:
            return "part"
        return "all" if place.cols[1] - 1 <= span[0] else "none" if place.cols[0] > span[1] else "part"
