"""What a mask is: which query may attend to which key, for a tile at its place. True means may attend.

A mask also says of a whole tile whether it holds all pairs, none or some, so that whole tiles are skipped.
Masks are objects, never bare arrays: `Keys` and `Pairs` make one of an array, and say which axis is which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from qkv.core.arrays import Array, is_array
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.errors import KindError

__all__ = ["And", "Coverage", "Mask", "Not", "Or", "require_boolean", "require_mask"]

Coverage = Literal["all", "none", "part"]


class Mask(Part, ABC):
    """Which pairs of query and key may meet. Combine with `&`, `|` and `~`.

    Facts, read by the planner:
        positional: it looks at positions.
        key_only: it looks at the key alone, so that keys can be left out once for all queries.
        relative: it looks at nothing but key position − query position, the same for the whole batch.
    """

    positional: bool = False
    key_only: bool = False
    relative: bool = False
    # NumPy leaves `array & mask` to the mask, which says what to do; otherwise it would try element by
    # element.
    __array_ufunc__ = None

    @abstractmethod
    def allowed(self, tile: Tile, reference: Array) -> Array:
        """Booleans that broadcast to the tile's `(*batch, q, k)`, like `reference`. The part is cut."""

    def coverage(self, tile: Tile) -> Coverage:
        """Whether all, none or part of the tile is allowed; "part" is always a correct answer."""
        return "part"

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """First key, and one past the last, that these queries may attend to; never less than that."""
        return 0, tile.k_total

    def causal_offset(self, tile: Tile) -> int | None:
        """Fact: position of query 0, where this is the causal mask and nothing else; None where it is not."""
        return None

    def check(self, q: int, k: int) -> None:
        """Raise a `ShapeError` where arrays of the mask do not fit these lengths."""

    def __and__(self, other: Mask) -> Mask:
        return And(self, require_mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, require_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    __rand__ = __and__
    __ror__ = __or__


@dataclass(frozen=True, eq=False)
class _Combined(Mask):
    left: Mask
    right: Mask

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Fact: either is."""
        return self.left.positional or self.right.positional

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        """Fact: both are."""
        return self.left.key_only and self.right.key_only

    @property
    def relative(self) -> bool:  # type: ignore[override]
        """Fact: both are."""
        return self.left.relative and self.right.relative

    def check(self, q: int, k: int) -> None:
        """Both fit."""
        self.left.check(q, k)
        self.right.check(q, k)


@dataclass(frozen=True, eq=False)
class And(_Combined):
    """Pairs that both masks allow."""

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """left and right"""
        return self.left.allowed(tile, reference) & self.right.allowed(tile, reference)

    def coverage(self, tile: Tile) -> Coverage:
        """None if either is none; all if both are all."""
        covers = (self.left.coverage(tile), self.right.coverage(tile))
        return "none" if "none" in covers else "all" if covers == ("all", "all") else "part"

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """What both reach."""
        left, right = self.left.key_range(tile), self.right.key_range(tile)
        return max(left[0], right[0]), min(left[1], right[1])

    def __str__(self) -> str:
        return f"{self.left} & {self.right}"


@dataclass(frozen=True, eq=False)
class Or(_Combined):
    """Pairs that either mask allows."""

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """left or right"""
        return self.left.allowed(tile, reference) | self.right.allowed(tile, reference)

    def coverage(self, tile: Tile) -> Coverage:
        """All if either is all; none if both are none."""
        covers = (self.left.coverage(tile), self.right.coverage(tile))
        return "all" if "all" in covers else "none" if covers == ("none", "none") else "part"

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """From the first of either to the last of either."""
        left, right = self.left.key_range(tile), self.right.key_range(tile)
        return min(left[0], right[0]), max(left[1], right[1])

    def __str__(self) -> str:
        return f"({self.left} | {self.right})"


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """Pairs that the mask does not allow."""

    mask: Mask

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Fact: as the mask."""
        return self.mask.positional

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        """Fact: as the mask."""
        return self.mask.key_only

    @property
    def relative(self) -> bool:  # type: ignore[override]
        """Fact: as the mask."""
        return self.mask.relative

    def check(self, q: int, k: int) -> None:
        """It fits."""
        self.mask.check(q, k)

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """not mask"""
        return ~self.mask.allowed(tile, reference)

    def coverage(self, tile: Tile) -> Coverage:
        """All and none change places."""
        swapped: dict[Coverage, Coverage] = {"all": "none", "none": "all", "part": "part"}
        return swapped[self.mask.coverage(tile)]

    def __str__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, And) else f"~{self.mask}"


def require_mask(mask: object) -> Mask:
    """`mask` itself, if it is one.

    Raises:
        KindError: it is something else; of a bare array the message says which masks make one of it.
    """
    if isinstance(mask, Mask):
        return mask
    if is_array(mask) or isinstance(mask, (list, tuple)):
        shape = getattr(mask, "shape", None)
        said = f"array of shape {tuple(shape)}" if shape is not None else type(mask).__name__
        raise KindError(
            f"the mask is a bare {said}. Say what its axes are: masks.Keys(array) for (*batch, k), "
            f"masks.Pairs(array) for (*batch, q, k). True means may attend."
        )
    raise KindError(f"the mask is a {type(mask).__name__}. Give one of qkv.masks, such as masks.Causal().")


def require_boolean(owner: str, array: Array) -> Array:
    """The array, if its elements are booleans.

    Raises:
        KindError: they are not; 0/1 integers and additive floats are refused, since their polarity is a
            guess.
    """
    if "bool" not in str(array.dtype):
        raise KindError(
            f"{owner} was given {str(array.dtype).removeprefix('torch.')} elements. Give booleans, True "
            "means may attend: array == 1 for 0/1, array == 0 for an additive mask of 0 and −inf."
        )
    return array
