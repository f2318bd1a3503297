"""Tiles of a compiled loop: how long they are is known when it is compiled, where they stand is not.

The last tile of an axis is as long as the others, so that nothing is padded or copied: it starts earlier, and
what another tile shows already is excluded from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.core.arrays import Array, cast
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.masks import Mask

__all__ = ["DynamicCall", "DynamicTile", "add_piece", "add_rows", "part_at", "piece", "rows_at", "write_rows"]


@dataclass(frozen=True)
class DynamicTile:
    """Where a tile stands.

    Attributes:
        rows, cols: its first query and key, and how many there are of each.
        shown: its first query and key that no other tile shows.
    """

    rows: tuple[Any, int]
    cols: tuple[Any, int]
    shown: tuple[Any, Any]

    @classmethod
    def of(cls, number: tuple[Any, Any], sides: tuple[int, int], lengths: tuple[int, int]) -> DynamicTile:
        """The tile of this number along each axis: numbers of Python, or of a compiled loop."""
        import jax.numpy as jnp

        shown = (number[0] * sides[0], number[1] * sides[1])
        starts = [jnp.minimum(at, n - side) for at, n, side in zip(shown, lengths, sides, strict=True)]
        return cls((starts[0], sides[0]), (starts[1], sides[1]), shown)


@dataclass(frozen=True)
class DynamicCall:
    """A call whose tiles are computed in a compiled loop.

    Attributes:
        call: the call, with the score's sides for query and key where there are any.
        raw: query and key as they came, and which of their rows are not finite; None: all are, or all are
            read.
    """

    call: BoundCall
    raw: tuple[Array, Array, Array, Array] | None

    @classmethod
    def of(cls, call: BoundCall) -> DynamicCall:
        """What each side contributes is computed once, of numbers that are finite where others are masked."""
        import jax
        import jax.numpy as jnp

        raw = None
        query, key = call.query, call.key
        if not (call.mask is None or call.finite_sides):
            bad = [~jnp.all(jnp.isfinite(x), axis=-1) for x in (query, key)]
            raw = (jax.lax.stop_gradient(query), jax.lax.stop_gradient(key), bad[0], bad[1])
            query, key = zero_nonfinite(query), zero_nonfinite(key)
        return cls(call.with_projections(*call.score.project(query, key, call.tile)), raw)

    def tile_of(self, window: DynamicTile) -> Tile:
        """Of a tile."""
        return replace(
            self.call.tile,
            rows=(0, window.rows[1]),
            cols=(0, window.cols[1]),
            dynamic_start=(window.rows[0], window.cols[0]),
        )

    def allowed(self, window: DynamicTile) -> Array:
        """Booleans that broadcast to the tile: the mask, of what no other tile shows."""
        import jax.numpy as jnp

        call, tile = self.call, self.tile_of(window)
        rows, cols = tile.query_indices(call.value)[:, None], tile.key_positions(call.value)
        shown = (rows >= window.shown[0]) & (cols >= window.shown[1])
        if call.mask is None:
            return shown
        mask: Mask = part_at(call.mask, window)
        return jnp.logical_and(shown, mask.allowed(tile, call.value))

    def logits(self, window: DynamicTile, left: Array, right: Array, score: Any, allowed: Array) -> Array:
        """Logits `(*batch, q, k)` of a tile, −inf where it is not allowed; sides and score cut to it."""
        import jax
        import jax.numpy as jnp

        call, tile = self.call, self.tile_of(window)
        shape = (*call.batch, window.rows[1], window.cols[1])
        logits = jnp.broadcast_to(cast(score.projected_logits(left, right, tile), call.dtype), shape)
        if self.raw is not None:
            query, key, bad_query, bad_key = self.raw
            bad_query = piece(bad_query, window.rows, -1)[..., :, None]
            bad_key = piece(bad_key, window.cols, -1)[..., None, :]
            query, key = rows_at(query, window.rows), rows_at(key, window.cols)
            constant = score.map_arrays(jax.lax.stop_gradient)

            def as_they_came(logits: Array) -> Array:
                raw = cast(constant.logits(query, key, tile), call.dtype)
                return jnp.where(bad_query | bad_key, raw, logits)

            # As `core.guard.guarded_logits`; the second computation runs only where it is needed.
            some = jnp.any(bad_query) | jnp.any(bad_key)
            logits = jax.lax.cond(some, as_they_came, lambda logits: logits, logits)
        return jnp.where(allowed, logits, -jnp.inf)

    def with_clean(self, function: Callable[[bool], Any], value: Array) -> Any:
        """`function(clean)`: whether these values are finite is looked up in the loop, unless it is known."""
        import jax
        import jax.numpy as jnp

        if self.call.finite_value:
            return function(True)
        return jax.lax.cond(jnp.all(jnp.isfinite(value)), lambda: function(True), lambda: function(False))


def piece(x: Array, limits: tuple[Any, int], axis: int) -> Array:
    """Some entries along an axis; an axis of length 1 is shared and stays."""
    import jax

    if x.shape[axis] == 1:
        return x
    return jax.lax.dynamic_slice_in_dim(x, limits[0], limits[1], axis % x.ndim)


def rows_at(x: Array, limits: tuple[Any, int]) -> Array:
    """Some of the rows `(*batch, length, width)`, where an axis of length 1 is the whole."""
    import jax

    return jax.lax.dynamic_slice_in_dim(x, limits[0], limits[1], x.ndim - 2)


def write_rows(whole: Array, rows: Array, start: Any, axis: int) -> Array:
    """The whole with these rows in it."""
    import jax

    return jax.lax.dynamic_update_slice_in_dim(whole, rows, start, axis)


def add_rows(whole: Array, rows: Array, start: Any) -> Array:
    """The whole `(*batch, length, width)` with these rows added to it."""
    import jax

    axis = whole.ndim - 2
    old = jax.lax.dynamic_slice_in_dim(whole, start, rows.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(whole, old + rows, start, axis)


def part_at(part: Any, window: DynamicTile) -> Any:
    """The part for a tile: `Part.slice` where the limits are not known in Python."""

    def cut(array: Array, names: tuple[str, ...] | None) -> Array:
        for back, name in enumerate(reversed(names or ()), start=1):
            if name in ("q", "k"):
                array = piece(array, window.rows if name == "q" else window.cols, -back)
        return array

    return part._map(cut)


def add_piece(whole: Array, more: Array, names: tuple[str, ...] | None, window: DynamicTile) -> Array:
    """The array of a part with what a tile adds to it; the inverse of `part_at`."""
    import jax

    starts: list[Any] = [np.int32(0)] * whole.ndim
    for back, name in enumerate(reversed(names or ()), start=1):
        if name in ("q", "k") and whole.shape[-back] != 1:
            starts[-back] = window.rows[0] if name == "q" else window.cols[0]
    if whole.shape == more.shape:
        return whole + more
    old = jax.lax.dynamic_slice(whole, starts, more.shape)
    return jax.lax.dynamic_update_slice(whole, old + more, starts)


def names_of(part: Part) -> list[tuple[str, ...] | None]:
    """The names of the axes of each array of a part, in the order of `arrays()`."""
    return [names for _, names in part._walk()]
