"""Base class `Mask`, and the masks that the operators `&`, `|` and `~` return.

A mask states for each pair of query and key whether the query may attend to the key (True means that it may),
and for each tile whether all, none or some of its pairs are allowed, so that kernels can skip tiles. A mask is always
an object and never a bare array: `AllowedKeys` and `AllowedPairs` wrap an array and name its axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from qkv.core.arrays import as_array, dtype_name, is_array
from qkv.core.checks import wrong_part
from qkv.core.parts import Part, delegates, extremes
from qkv.core.tile import Tile
from qkv.core.typing import Array, ArrayLike, Bool, Num, Shaped
from qkv.errors import KindError, OptionError

__all__ = ["And", "Coverage", "Mask", "Not", "Or", "and_masks", "require_boolean", "require_mask", "restrict_mask"]

Coverage = Literal["all", "none", "part"]


class Mask(Part, ABC):
    """Base class of masks, which state for each pair of query and key whether the query may attend to the key.

    Masks can be combined with `&`, `|` and `~`.

    Attributes:
        positional: whether the mask depends on the positions of queries.
        key_only: whether the mask depends only on the key, so that excluded keys can be dropped for all queries.
        relative: whether the mask depends only on key position − query position, and is equal for all batch elements.
        bound_per_call: whether the mask must be bound to every call, because it may change between calls although it
            holds no arrays.

    Example:
        >>> import numpy as np, qkv
        >>> from qkv import masks
        >>> near = masks.Causal() & ~masks.AllowedKeys(np.array([True, False, False]))  # earlier keys but the first
        >>> weights = qkv.observe(*np.zeros((3, 3, 1)), mask=near, readouts=[qkv.readouts.Dense()]).readouts[0]
        >>> weights.round(1)
        array([[0. , 0. , 0. ],
               [0. , 1. , 0. ],
               [0. , 0.5, 0.5]])
    """

    positional: bool = False
    key_only: bool = False
    relative: bool = False
    bound_per_call: bool = False
    # With None, NumPy hands `array & mask` to `Mask.__rand__`, which raises a `KindError` with advice;
    # otherwise NumPy would apply `&` element by element.
    __array_ufunc__ = None

    @abstractmethod
    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        """Return a boolean array that is True for the pairs of a tile that the mask allows.

        Args:
            tile: the tile, to which the arrays of the mask are already restricted.
            reference: an array of the call, which determines the library and device of the result.

        Returns:
            Booleans that broadcast to `(*batch, q, k)`.
        """

    def coverage(self, tile: Tile) -> Coverage:
        """Return "all" if the mask allows all pairs of the tile, "none" if it allows none, otherwise "part".

        A mask may always return "part"; the other results allow kernels to skip work.
        """
        return "part"

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return a range `(start, stop)` that contains every key that the mask allows for a query of the tile."""
        return 0, tile.k_total

    def causal_offset(self, tile: Tile) -> int | None:
        """Return the position of query 0 if the mask is causal with the same positions in the batch, else None."""
        return None

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The masks that this mask combines with `&`, or a tuple of this mask alone if there are none."""
        return (self,)

    def check(self, q: int, k: int) -> None:
        """Raise a `ShapeError` if the shapes of the mask's arrays do not match `q` queries and `k` keys."""

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
        return self.left.positional or self.right.positional

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        return self.left.key_only and self.right.key_only

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return self.left.relative and self.right.relative

    @property
    def bound_per_call(self) -> bool:  # type: ignore[override]
        return self.left.bound_per_call or self.right.bound_per_call

    def check(self, q: int, k: int) -> None:
        self.left.check(q, k)
        self.right.check(q, k)


@dataclass(frozen=True, eq=False)
class And(_Combined):
    """Mask that allows the pairs of query and key that both `left` and `right` allow."""

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        return (*self.left.conjuncts, *self.right.conjuncts)

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        return self.left.allowed(tile, reference) & self.right.allowed(tile, reference)

    def coverage(self, tile: Tile) -> Coverage:
        covers = (self.left.coverage(tile), self.right.coverage(tile))
        return "none" if "none" in covers else "all" if covers == ("all", "all") else "part"

    def key_range(self, tile: Tile) -> tuple[int, int]:
        left, right = self.left.key_range(tile), self.right.key_range(tile)
        return max(left[0], right[0]), min(left[1], right[1])

    def __str__(self) -> str:
        return f"{self.left} & {self.right}"


@dataclass(frozen=True, eq=False)
class Or(_Combined):
    """Mask that allows the pairs of query and key that `left` or `right` allows."""

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        return self.left.allowed(tile, reference) | self.right.allowed(tile, reference)

    def coverage(self, tile: Tile) -> Coverage:
        covers = (self.left.coverage(tile), self.right.coverage(tile))
        return "all" if "all" in covers else "none" if covers == ("none", "none") else "part"

    def key_range(self, tile: Tile) -> tuple[int, int]:
        left, right = self.left.key_range(tile), self.right.key_range(tile)
        return min(left[0], right[0]), max(left[1], right[1])

    def __str__(self) -> str:
        return f"({self.left} | {self.right})"


@delegates("mask", "positional", "key_only", "relative", "bound_per_call", "check")
@dataclass(frozen=True, eq=False)
class Not(Mask):
    """Mask that allows the pairs of query and key that the inner mask excludes."""

    mask: Mask

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*_shape"]:
        return ~self.mask.allowed(tile, reference)

    def coverage(self, tile: Tile) -> Coverage:
        swapped: dict[Coverage, Coverage] = {"all": "none", "none": "all", "part": "part"}
        return swapped[self.mask.coverage(tile)]

    def __str__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, And) else f"~{self.mask}"


def restrict_mask(mask: Mask | None, tile: Tile) -> tuple[Coverage, Mask | None]:
    """Return the coverage of a tile by the mask, and the mask restricted to the tile if the coverage is "part".

    Otherwise, None is returned in place of the mask.
    """
    coverage: Coverage = "all" if mask is None else mask.coverage(tile)
    if mask is None or coverage != "part":
        return coverage, None
    return coverage, mask.slice(slice(*tile.rows), slice(*tile.cols))


def and_masks(*masks: Mask | None) -> Mask | None:
    """Return a mask that allows the pairs that all of `masks` allow.

    None, as an argument or as the result, stands for a mask that allows all pairs.
    """
    given = [require_mask(mask) for mask in masks if mask is not None]
    return reduce(And, given) if given else None


def require_mask(mask: object) -> Mask:
    """Return `mask`, or raise a `KindError` if it is not a `Mask`.

    Raises:
        KindError: `mask` is not a `Mask`. For an array, the message names the masks that wrap arrays.
    """
    if isinstance(mask, Mask):
        return mask
    if is_array(mask) or isinstance(mask, (list, tuple)):
        shape = getattr(mask, "shape", None)
        given = f"an array of shape {tuple(shape)}" if shape is not None else f"a {type(mask).__name__}"
        raise KindError(
            f"mask must be a Mask, got {given}. Wrap an array of shape (*batch, k) in masks.AllowedKeys, or one of "
            "shape (*batch, q, k) in masks.AllowedPairs, where True means that the query may attend to the key."
        )
    raise wrong_part("mask", "Mask", "masks.Causal()", mask)


def require_boolean(owner: str, array: Shaped[Array, "*_shape"]) -> Bool[Array, "*_shape"]:
    """Return `array`, or raise a `KindError` if its elements are not booleans.

    Raises:
        KindError: the elements are not booleans. Integers and additive masks of floating-point numbers are not
            converted, because libraries differ in which elements exclude a pair.
    """
    if "bool" not in str(array.dtype):
        raise KindError(
            f"the array of {owner} must be boolean, got dtype {dtype_name(array)}. True means that the query may "
            "attend to the key: pass array == 1 for a mask of 0 and 1, or array == 0 for a mask of 0 and −inf that is "
            "added to the logits."
        )
    return array


def require_integers(owner: str, name: str, value: ArrayLike) -> Num[Array, "*_"] | int:
    """Return `value` if it is an int, otherwise convert it to an array; check that it holds integers of at least 0.

    Raises:
        KindError: the elements of the array are not integers.
        OptionError: a number is negative.
    """
    array = value if isinstance(value, int) else as_array(value)
    least = array if isinstance(array, int) else int(min(extremes(array), default=0))
    if least < 0:
        raise OptionError(
            f"{name} of {owner} must be at least 0, got {least}. Pass 0 for a batch element without keys."
        )
    if isinstance(array, int):
        return array
    if "int" not in dtype_name(array):
        raise KindError(
            f"{name} of {owner} must be an integer or an array of integers, got dtype {dtype_name(array)}. Convert "
            "the elements to an integer dtype."
        )
    return array
