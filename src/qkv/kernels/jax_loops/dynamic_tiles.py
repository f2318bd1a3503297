"""Tiles of a compiled loop: their size is known when the loop is compiled, their position when it runs.

The last tile of an axis is as long as the others, so that nothing is padded or copied: it starts earlier, and what
an earlier tile already covers is excluded from it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float
from qkv.masks.base import Mask
from qkv.scores.base import Score

__all__ = [
    "DynamicCall",
    "DynamicTile",
    "Start",
    "UnprojectedSides",
    "add_to_slice",
    "axis_names",
    "slice_array",
    "slice_axis",
    "slice_part",
]

Start = Array | int | np.integer
"""A position along an axis: a number of Python, or of a compiled loop."""
Window = tuple[Start, int]
"""First entry along an axis and number of entries."""
Axes = tuple[str, ...] | None
AnyPart = TypeVar("AnyPart", bound=Part)
Result = TypeVar("Result")


@dataclass(frozen=True)
class DynamicTile:
    """Position and size of a tile.

    Attributes:
        rows: first query and number of queries.
        cols: first key and number of keys.
        uncovered: first query and first key that no earlier tile covers.
    """

    rows: Window
    cols: Window
    uncovered: tuple[Start, Start]

    @classmethod
    def of(cls, number: tuple[Start, Start], sides: tuple[int, int], lengths: tuple[int, int]) -> DynamicTile:
        """Return the tile with this number along each axis.

        Args:
            number: number of the tile along queries and keys.
            sides: queries and keys of a tile.
            lengths: queries and keys of the call.
        """
        import jax.numpy as jnp

        uncovered = (number[0] * sides[0], number[1] * sides[1])
        starts = [jnp.minimum(at, n - side) for at, n, side in zip(uncovered, lengths, sides, strict=True)]
        return cls((starts[0], sides[0]), (starts[1], sides[1]), uncovered)


class UnprojectedSides(NamedTuple):
    """Query and key as given, without gradients, and which of their rows are not finite."""

    query: Array
    key: Array
    nonfinite_query: Array
    nonfinite_key: Array


@dataclass(frozen=True)
class DynamicCall:
    """A call whose tiles are computed in a compiled loop.

    Attributes:
        call: the call on its score's projections.
        unprojected: query and key as given; None where they are finite or nothing is masked.
    """

    call: BoundCall
    unprojected: UnprojectedSides | None

    @classmethod
    def of(cls, call: BoundCall) -> DynamicCall:
        """Project each side once; non-finite rows are projected as zeros where something is masked."""
        import jax
        import jax.numpy as jnp

        unprojected = None
        query, key = call.query, call.key
        if not (call.mask is None or call.finite_sides):
            nonfinite = [~jnp.all(jnp.isfinite(x), axis=-1) for x in (query, key)]
            unprojected = UnprojectedSides(jax.lax.stop_gradient(query), jax.lax.stop_gradient(key), *nonfinite)
            query, key = zero_nonfinite(query), zero_nonfinite(key)
        return cls(call.with_projections(*call.score.project(query, key, call.tile)), unprojected)

    def tile(self, window: DynamicTile) -> Tile:
        """Return the tile of the call at a dynamic position."""
        return replace(
            self.call.tile,
            rows=(0, window.rows[1]),
            cols=(0, window.cols[1]),
            dynamic_start=(window.rows[0], window.cols[0]),
        )

    def allowed(self, window: DynamicTile) -> Bool[Array, " ..."]:
        """Return which pairs of the tile the mask allows and no earlier tile covers, broadcasting to the tile."""
        import jax.numpy as jnp

        call, tile = self.call, self.tile(window)
        rows, cols = tile.query_indices(call.value)[:, None], tile.key_positions(call.value)
        uncovered: Array = (rows >= window.uncovered[0]) & (cols >= window.uncovered[1])
        if call.mask is None:
            return uncovered
        mask: Mask = slice_part(call.mask, window)
        return typing.cast("Array", jnp.logical_and(uncovered, mask.allowed(tile, call.value)))

    def logits(
        self, window: DynamicTile, query: Array, key: Array, score: Score, allowed: Bool[Array, " ..."]
    ) -> Float[Array, "*batch q k"]:
        """Return the logits of a tile, −inf where a pair is not allowed.

        Args:
            window: position of the tile.
            query: projected queries of the tile.
            key: projected keys of the tile.
            score: score cut to the tile.
            allowed: returned by `allowed`.
        """
        import jax
        import jax.numpy as jnp

        call, tile = self.call, self.tile(window)
        shape = (*call.batch, window.rows[1], window.cols[1])
        logits = jnp.broadcast_to(cast(score.projected_logits(query, key, tile), call.dtype), shape)
        if self.unprojected is not None:
            raw = self.unprojected
            nonfinite_query = slice_axis(raw.nonfinite_query, window.rows, -1)[..., :, None]
            nonfinite_key = slice_axis(raw.nonfinite_key, window.cols, -1)[..., None, :]
            raw_query, raw_key = slice_axis(raw.query, window.rows, -2), slice_axis(raw.key, window.cols, -2)
            constant = score.map_arrays(jax.lax.stop_gradient)

            def with_nonfinite(logits: Array) -> Array:
                raw_logits = cast(constant.logits(raw_query, raw_key, tile), call.dtype)
                return typing.cast("Array", jnp.where(nonfinite_query | nonfinite_key, raw_logits, logits))

            # As `core.guard.guarded_logits`; the second computation runs only where it is needed.
            some = jnp.any(nonfinite_query) | jnp.any(nonfinite_key)
            logits = jax.lax.cond(some, with_nonfinite, lambda logits: logits, logits)
        return typing.cast("Array", jnp.where(allowed, logits, -jnp.inf))

    def if_finite(self, function: Callable[[bool], Result], value: Array) -> Result:
        """Return `function(finite)`; the loop checks whether these values are finite unless that is known."""
        import jax
        import jax.numpy as jnp

        if self.call.finite_value:
            return function(True)
        finite = jnp.all(jnp.isfinite(value))
        return typing.cast("Result", jax.lax.cond(finite, lambda: function(True), lambda: function(False)))


def slice_axis(x: Array, window: Window, axis: int) -> Array:
    """Return some entries along an axis; an axis of length 1 is shared and stays."""
    import jax

    if x.shape[axis] == 1:
        return x
    return typing.cast("Array", jax.lax.dynamic_slice_in_dim(x, window[0], window[1], axis % x.ndim))


def slice_array(array: Array, names: Axes, window: DynamicTile) -> Array:
    """Return an array for a tile, cut along its axes named "q" and "k"."""
    for back, name in enumerate(reversed(names or ()), start=1):
        if name in ("q", "k"):
            array = slice_axis(array, window.rows if name == "q" else window.cols, -back)
    return array


def slice_part(part: AnyPart, window: DynamicTile) -> AnyPart:
    """Return the part for a tile: `Part.slice` at a dynamic position."""
    return part._map(lambda array, names: slice_array(array, names, window))


def add_to_slice(whole: Array, more: Array, names: Axes, window: DynamicTile) -> Array:
    """Return the array with the contribution of a tile added: the inverse of `slice_array`."""
    import jax

    starts: list[Start] = [np.int32(0)] * whole.ndim
    for back, name in enumerate(reversed(names or ()), start=1):
        if name in ("q", "k") and whole.shape[-back] != 1:
            starts[-back] = window.rows[0] if name == "q" else window.cols[0]
    if whole.shape == more.shape:
        return whole + more
    old = jax.lax.dynamic_slice(whole, starts, more.shape)
    return typing.cast("Array", jax.lax.dynamic_update_slice(whole, old + more, starts))


def axis_names(part: Part) -> list[Axes]:
    """Return the names of the axes of each array of a part, in the order of `arrays()`."""
    return [names for _, names in part._walk()]
