"""Masks of positions relative to the query: `Causal`, up to its own position, and `Window`, near its own position."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.checks import is_int
from qkv.core.positions import Align, Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool
from qkv.errors import OptionError
from qkv.masks.base import Coverage, Mask

__all__ = ["BandMask", "Causal", "Window"]


class BandMask(Mask):
    """Base class of masks that allow query position − before ≤ key position ≤ query position + after.

    Attributes:
        before, after: number of allowed keys before and after the query's own position; None: all.
        align: alignment of queries and keys; None: the `positions` of the call.
    """

    before: int | None
    after: int | None
    align: Align | None = None
    relative = True

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        """Return a boolean array that is True for the pairs of the tile whose key is in the window of the query.

        The condition is query position − before ≤ key position ≤ query position + after.
        """

        def inside(distance: Array) -> Array:
            out = distance == distance if self.after is None else distance <= self.after
            return out if self.before is None else out & (distance >= -self.before)

        return tile.map_relative_positions(reference, inside, self.align)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return the range from `before` keys before the tile's first query to `after` keys after its last query."""
        span = tile.query_position_range(self.align)
        if span is None:
            return 0, tile.k_total
        start = 0 if self.before is None else max(0, span[0] - self.before)
        stop = tile.k_total if self.after is None else min(tile.k_total, span[1] + self.after + 1)
        return start, stop

    def coverage(self, tile: Tile) -> Coverage:
        span = tile.query_position_range(self.align)
        if span is None:
            return "part"
        first, last = tile.cols[0], tile.cols[1] - 1
        if self.before is not None and last < span[0] - self.before:
            return "none"
        if self.after is not None and first > span[1] + self.after:
            return "none"
        inside_left = self.before is None or first >= span[1] - self.before
        inside_right = self.after is None or last <= span[0] + self.after
        return "all" if inside_left and inside_right else "part"


@dataclass(frozen=True, eq=False)
class Window(BandMask):
    """Sliding window, which allows the pairs with query position − before ≤ key position ≤ query position + after.

    Args:
        before: number of keys before the query's own position; None: all.
        after: number of keys after the query's own position; None: all. `Window(before, 0)` is causal.

    Raises:
        OptionError: a number is negative or not an integer.
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Window(1, 0).allowed(Tile.whole(3, 3), np.zeros(()))
        array([[ True, False, False],
               [ True,  True, False],
               [False,  True,  True]])
    """

    before: int | None
    after: int | None
    positional = True

    def validate(self) -> None:
        for name in ("before", "after"):
            n = getattr(self, name)
            if n is not None and (not is_int(n) or n < 0):
                raise OptionError(f"{name} of Window must be a non-negative integer, or None, got {n!r}. Correct it.")


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
        return self.align is None

    def causal_offset(self, tile: Tile) -> int | None:
        """Return the position of query 0, or None if it is given by an array with one element per batch element."""
        offset = tile.offset(self.align)
        return offset if isinstance(offset, int) else None
