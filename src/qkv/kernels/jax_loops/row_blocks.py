"""Whole rows of some queries at a time, in JAX: for normalizers that see or order them, and for readouts.

Each strip is computed again in backward, and within it each tile of logits, so what is kept is the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.arrays import Array
from qkv.core.equation import BoundCall, drop
from qkv.core.guard import apply_weights
from qkv.core.tile import Tile
from qkv.kernels.jax_loops.dynamic_tiles import DynamicCall, DynamicTile, part_at, rows_at
from qkv.readouts import Readout
from qkv.readouts.base import Reduction, flatten, unflatten
from qkv.readouts.cells import pool_cells

__all__ = ["RowBlockLoop", "kinds_of"]


def kinds_of(readout: Readout, tile: Tile, rows: int) -> list[str] | None:
    """How each array of what strips show is put together in a loop; None where it cannot be.

    "rows": each strip shows its own queries; "blocks": the cells of a map, see `readouts.base`; otherwise
    what each strip shows is of the same place, and meets as its field says.
    """
    if readout.pooling and readout.head_indices is None:
        return ["blocks"]
    q, k = tile.q_total, (0, tile.k_total)
    limits = [(0, min(q, rows)), (min(q, rows), min(q, 2 * rows)), (q - min(q, rows), q)]
    strips = [at for at in limits if at[0] < at[1]] or limits[:1]
    kinds = []
    for fields in zip(*(readout.reductions(tile.restrict(at, k)) for at in strips), strict=True):
        first = fields[0]
        if first.op == "set" and all(
            field.index[0] == slice(*at) and field.index[1:] == first.index[1:]
            for field, at in zip(fields, strips, strict=True)
        ):
            kinds.append("rows")
        elif first.op != "set" and all(field.index == first.index for field in fields):
            kinds.append(first.op)
        else:
            return None
    return kinds


@dataclass(frozen=True)
class RowBlockLoop:
    """A call, some queries at a time.

    Attributes:
        call: the call.
        readouts: what is read, of kinds that a loop can put together.
        rows: queries in a strip.
        cols: keys in a tile of its logits.
    """

    call: BoundCall
    readouts: tuple[Readout, ...]
    rows: int
    cols: int

    def attend(self) -> tuple[Array, tuple[Any, ...]]:
        """Output and readouts; differentiable, any number of times and in both modes."""
        import jax

        moving, tile = DynamicCall.of(self.call), self.call.tile
        count, q = max(1, -(-tile.q_total // self.rows)), tile.q_total
        results: list[Any] = []

        def strip(number: Any) -> tuple[Array, list[tuple[Array, ...]]]:
            output, found = self._strip(moving, number)
            results[:] = found  # what they are called; their arrays are of the loop
            return output, [flatten(result) for result in found]

        first = tile.restrict((0, min(q, self.rows)), (0, tile.k_total))
        fields = [field for readout in self.readouts for field in readout.reductions(first)]
        kinds = [kind for readout in self.readouts for kind in kinds_of(readout, tile, self.rows) or ()]
        _, shapes = jax.eval_shape(strip, np.int32(0))
        # Within a loop nothing is merged with the first computation, which this would prevent.
        again = jax.checkpoint(strip, prevent_cse=False)

        def step(met: list[Array], number: Any) -> Any:
            output, found = again(number)
            queue, new, shown = iter(met), [], [output]
            for x, field, kind in zip(_all(found), fields, kinds, strict=True):
                if kind == "rows":
                    shown.append(x)
                elif kind == "blocks":
                    new.append(self._in_cells(next(queue), x, field, number))
                else:
                    new.append(field.combine(next(queue), x))
            return new, shown

        rooms = [
            self._room(field, x, kind)
            for x, field, kind in zip(_all(shapes), fields, kinds, strict=True)
            if kind != "rows"
        ]
        met, (output, *pieces) = jax.lax.scan(step, rooms, np.arange(count, dtype=np.int32))
        queues = iter(met), iter(pieces)
        arrays = iter(
            _joined(next(queues[1]), field.shape) if kind == "rows" else _cut(next(queues[0]), field)
            for field, kind in zip(fields, kinds, strict=True)
        )
        wholes = []
        for readout, like in zip(self.readouts, results, strict=True):
            mine = tuple(next(arrays) for _ in flatten(like))
            wholes.append(readout.finalize(unflatten(mine, like), tile))
        return _joined(output, (q, output.shape[-1])), tuple(wholes)

    def _room(self, field: Reduction, piece: Any, kind: str) -> Array:
        """Where pieces meet; of cells there is room for as many more as a strip may touch."""
        import jax.numpy as jnp

        batch = piece.shape[: len(piece.shape) - len(field.shape)]
        shape = (field.shape[0] + self._touched(field.shape[0]), *field.shape[1:]) if kind == "blocks" else field.shape
        return jnp.full((*batch, *shape), field.initial, piece.dtype)

    def _touched(self, cells: int) -> int:
        """How many rows of cells a strip touches at most."""
        return min(cells, -(-self.rows * cells // max(1, self.call.tile.q_total)) + 1)

    def _in_cells(self, room: Array, lanes: Array, field: Reduction, number: Any) -> Array:
        """The room with a strip in it, of which the keys are pooled already: its queries, cell by cell."""
        import jax
        import jax.numpy as jnp

        q, cells = self.call.tile.q_total, field.shape[0]
        start = jnp.minimum(number * self.rows, q - self.rows)
        rows = start + np.arange(self.rows)
        cell = rows * cells // q
        shown = rows >= number * self.rows
        first = cell[0]
        pieces = []
        for n in range(self._touched(cells)):
            here = ((cell == first + n) & shown)[:, None]
            if field.op == "add":
                pieces.append(jnp.sum(jnp.where(here, lanes, 0), axis=-2))
                continue
            of_cell = jnp.where(here, lanes, -jnp.inf)
            # By index, so that the gradient goes to the first of equals.
            index = jnp.argmax(of_cell, axis=-2, keepdims=True)
            pieces.append(jnp.take_along_axis(of_cell, index, axis=-2)[..., 0, :])
        piece = jnp.stack(pieces, axis=-2)
        old = jax.lax.dynamic_slice_in_dim(room, first, piece.shape[-2], room.ndim - 2)
        return jax.lax.dynamic_update_slice_in_dim(room, field.combine(old, piece), first, room.ndim - 2)

    def _strip(self, moving: DynamicCall, number: Any) -> tuple[Array, list[Any]]:
        """Output and what the readouts show of the strip with this number."""
        call, normalizer = moving.call, moving.call.normalizer
        tile = call.tile
        window = DynamicTile.of((number, 0), (self.rows, tile.k_total), (tile.q_total, tile.k_total))
        here = moving.tile_of(window)
        logits = self._logits(moving, number)
        weights = normalizer.weights(logits, here)
        dropped = drop(weights, here, call.dropout)

        def weighed(clean: bool) -> Array:
            support = None if clean else normalizer.support(logits, weights)
            return apply_weights(dropped, call.value, support, clean)

        read: list[Any] = []
        for readout in self.readouts:
            if kinds_of(readout, tile, self.rows) == ["blocks"]:
                (field,) = readout.reductions(tile.restrict((0, min(self.rows, tile.q_total)), (0, tile.k_total)))
                how = "sum" if field.op == "add" else "max"
                read.append(pool_cells(weights, -1, here.cols, field.shape[1], tile.k_total, how))
            else:
                read.append(readout.read(logits, weights, normalizer, here))
        return moving.with_clean(weighed, call.value), read

    def _logits(self, moving: DynamicCall, number: Any) -> Array:
        """Whole rows of logits, from tiles that are computed again in backward."""
        import jax
        import jax.numpy as jnp

        call, (q, k) = moving.call, (self.call.tile.q_total, self.call.tile.k_total)
        if 0 in (q, k):
            return jnp.zeros((*call.batch, self.rows if q else 0, k), call.dtype)

        def one(col: Any) -> Array:
            window = DynamicTile.of((number, col), (self.rows, self.cols), (q, k))
            left, right = rows_at(call.query, window.rows), rows_at(call.key, window.cols)
            return moving.logits(window, left, right, part_at(call.score, window), moving.allowed(window))

        count = -(-k // self.cols)
        if count == 1:
            return one(0)
        tiles = jax.lax.map(jax.checkpoint(one, prevent_cse=False), np.arange(count, dtype=np.int32))
        return jnp.swapaxes(_joined(jnp.swapaxes(tiles, -1, -2), (k, self.rows)), -1, -2)


def _all(groups: Any) -> list[Any]:
    return [x for group in groups for x in group]


def _cut(x: Array, field: Reduction) -> Array:
    """As much of a room as the result has."""
    return x[(..., *(slice(0, n) for n in field.shape))]


def _joined(pieces: Array, shape: tuple[int, ...]) -> Array:
    """Pieces `(count, *batch, length, …)` along one axis of the length that `shape` begins with.

    The last piece is as long as the others: what the one before it shows is left out of it.
    """
    import jax.numpy as jnp

    count, axis, total = pieces.shape[0], pieces.ndim - len(shape) - 1, shape[0]
    length = pieces.shape[axis + 1]
    if count == 1:
        return pieces[0]
    first = jnp.moveaxis(pieces[:-1], 0, axis)
    first = first.reshape((*first.shape[:axis], (count - 1) * length, *first.shape[axis + 2 :]))
    rest = jnp.take(pieces[-1], np.arange(count * length - total, length), axis=axis)
    return jnp.concatenate([first, rest], axis=axis)
