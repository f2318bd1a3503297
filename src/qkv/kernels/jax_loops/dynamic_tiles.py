"""Tiles of a compiled JAX loop, whose sizes are static and whose positions are computed in the loop.

All tiles have the same size, so that no input is padded or copied. The last tile along an axis therefore overlaps the
tile before it, and its overlapping part is masked.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, KeyArray, PairArray, QueryArray, Shaped
from qkv.masks.base import Mask
from qkv.scores.base import Score

Tree = TypeVar("Tree")


def vary_alike(tree: Tree) -> Tree:
    """Return a pytree in which each array varies over all mesh axes over which any array of the tree varies.

    Outside `jax.shard_map` the tree is returned unchanged.
    """
    import jax

    return _vary(tree, frozenset().union(*(_axes(x) for x in jax.tree.leaves(tree))))


def vary_like(tree: Tree, reference: Shaped[Array, "*_"]) -> Tree:
    """Return a pytree in which each array varies at least over the mesh axes over which `reference` varies."""
    return _vary(tree, _axes(reference))


def _vary(tree: Tree, axes: frozenset[str]) -> Tree:
    if not axes:
        return tree
    import jax

    def vary(x: Array) -> Array:
        missing = tuple(sorted(axes - _axes(x)))
        varied: Array = jax.lax.pcast(x, missing, to="varying") if missing else x
        return varied

    varied: Tree = jax.tree.map(vary, tree)
    return varied


def _axes(x: Shaped[Array, "*_"]) -> frozenset[str]:
    """Return the mesh axes over which an array varies; there are none in versions of JAX without such types."""
    import jax

    if not hasattr(jax, "typeof"):
        return frozenset()
    kind = jax.typeof(x)
    # Before version 0.10 the type had these axes as `vma`.
    axes: frozenset[str] = kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma
    return axes


Start = Array | int | np.integer
"""Position along an axis: a Python number, or an array within a compiled loop."""
Window = tuple[Start, int]
"""Start and length of a range along an axis."""
Axes = tuple[str, ...] | None
AnyPart = TypeVar("AnyPart", bound=Part)
Result = TypeVar("Result")


@dataclass(frozen=True)
class DynamicTile:
    """Tile whose numbers of queries and keys are static and whose position is computed in a compiled loop.

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
        """Return the tile at an index along the query axis and an index along the key axis."""
        import jax.numpy as jnp

        uncovered = (number[0] * sides[0], number[1] * sides[1])
        starts = [jnp.minimum(at, n - side) for at, n, side in zip(uncovered, lengths, sides, strict=True)]
        return cls((starts[0], sides[0]), (starts[1], sides[1]), uncovered)


class _UnprojectedSides(NamedTuple):
    """Query and key before projection, with boolean arrays that are True for rows that are not finite.

    The arrays are detached from their gradients.
    """

    query: Array
    key: Array
    nonfinite_query: Array
    nonfinite_key: Array


@dataclass(frozen=True)
class DynamicCall:
    """Bound call whose tiles are computed in a compiled JAX loop.

    Attributes:
        call: the call, with query and key replaced by their projections.
        unprojected: query and key before projection; None if they are finite or the call has no mask.
    """

    call: BoundCall
    unprojected: _UnprojectedSides | None

    @classmethod
    def of(cls, call: BoundCall) -> DynamicCall:
        """Return the dynamic call of a bound call, after projecting its query and key once.

        If the call has a mask, non-finite rows of query and key are replaced by zeros before they are projected.
        """
        import jax
        import jax.numpy as jnp

        unprojected = None
        query, key = call.query, call.key
        if not (call.mask is None or call.finite_sides):
            nonfinite = [~jnp.all(jnp.isfinite(x), axis=-1) for x in (query, key)]
            unprojected = _UnprojectedSides(jax.lax.stop_gradient(query), jax.lax.stop_gradient(key), *nonfinite)
            query, key = zero_nonfinite(query), zero_nonfinite(key)
        return cls(call.with_projections(*call.score.project(query, key, call.tile)), unprojected)

    def tile(self, window: DynamicTile) -> Tile:
        """Return the `Tile` that corresponds to a `DynamicTile` of this call."""
        return replace(
            self.call.tile,
            rows=(0, window.rows[1]),
            cols=(0, window.cols[1]),
            dynamic_start=(window.rows[0], window.cols[0]),
        )

    def allowed(self, window: DynamicTile) -> Bool[Array, " ..."]:
        """Return a boolean array that is True for the allowed pairs that no earlier tile covers.

        The array broadcasts to the tile.
        """
        import jax.numpy as jnp

        call, tile = self.call, self.tile(window)
        rows, cols = tile.query_indices(call.value)[:, None], tile.key_positions(call.value)
        uncovered: Array = (rows >= window.uncovered[0]) & (cols >= window.uncovered[1])
        if call.mask is None:
            return uncovered
        mask: Mask = slice_part(call.mask, window)
        return typing.cast("Array", jnp.logical_and(uncovered, mask.allowed(tile, call.value)))

    def logits(
        self, window: DynamicTile, query: QueryArray, key: KeyArray, score: Score, allowed: Bool[Array, " ..."]
    ) -> PairArray:
        """Return the logits of a tile, −inf for pairs for which `allowed` is False."""
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

            def with_nonfinite(logits: PairArray) -> PairArray:
                raw_logits = cast(constant.logits(raw_query, raw_key, tile), call.dtype)
                return typing.cast("Array", jnp.where(nonfinite_query | nonfinite_key, raw_logits, logits))

            # Like `core.guard.guarded_logits`, with the rows that are not finite found once for all tiles.
            some = jnp.any(nonfinite_query) | jnp.any(nonfinite_key)
            logits = jax.lax.cond(some, with_nonfinite, lambda logits: logits, logits)
        return typing.cast("Array", jnp.where(allowed, logits, -jnp.inf))


def slice_axis(x: Shaped[Array, "*_whole"], window: Window, axis: int) -> Shaped[Array, "*_slice"]:
    """Return a range of an array along an axis. Return an array of length 1 along the axis unchanged.

    Such an axis broadcasts.
    """
    import jax

    if x.shape[axis] == 1:
        return x
    return typing.cast("Array", jax.lax.dynamic_slice_in_dim(x, window[0], window[1], axis % x.ndim))


def slice_array(array: Shaped[Array, "*_whole"], names: Axes, window: DynamicTile) -> Shaped[Array, "*_slice"]:
    """Return an array restricted to the queries and keys of a tile, along its axes named "q" and "k"."""
    for back, name in enumerate(reversed(names or ()), start=1):
        if name in ("q", "k"):
            array = slice_axis(array, window.rows if name == "q" else window.cols, -back)
    return array


def slice_part(part: AnyPart, window: DynamicTile) -> AnyPart:
    """Return a part with its arrays restricted to a tile, like `Part.slice` but at a dynamic position."""
    return part._map(lambda array, names: slice_array(array, names, window))


def add_to_slice(
    whole: Float[Array, "*shape"], more: Float[Array, "*_slice"], names: Axes, window: DynamicTile
) -> Float[Array, "*shape"]:
    """Return an array with the contribution of a tile added to the range that `slice_array` returns."""
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
    """Return the axis names of each array of a part, in the order of `Part.arrays`."""
    return [names for _, names in part.array_fields()]
