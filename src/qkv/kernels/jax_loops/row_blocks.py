"""Loop over row blocks in JAX, for readouts and for normalizers that need all logits of a row at once.

The backward pass recomputes each block, and within a block each tile of logits, so only the inputs are saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np

from qkv.core.equation import BoundCall, apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Shaped
from qkv.kernels.jax_loops.dynamic_tiles import DynamicCall, DynamicTile, Start, slice_axis, slice_part
from qkv.kernels.jax_loops.manual_axes import vary_like
from qkv.readouts import Readout
from qkv.readouts.base import Reduction, flatten, unflatten
from qkv.readouts.cells import pool_cells

__all__ = ["RowBlockLoop", "combine_kinds"]


def combine_kinds(readout: Readout, tile: Tile, rows: int) -> list[str] | None:
    """Return how a loop over row blocks combines each array of a readout, or None if a loop cannot.

    Returns:
        For each array "rows" if each block holds only the elements of its queries, "cells" for a pooled attention map,
        or the operation of the reduction if the arrays of all blocks have the same elements.
    """
    if readout.pooling and readout.head_indices is None:
        return ["cells"]
    q, k = tile.q_total, (0, tile.k_total)
    limits = [(0, min(q, rows)), (min(q, rows), min(q, 2 * rows)), (q - min(q, rows), q)]
    blocks = [block for block in limits if block[0] < block[1]] or limits[:1]
    kinds: list[str] = []
    for reductions in zip(*(readout.reductions(tile.restrict(block, k)) for block in blocks), strict=True):
        first = reductions[0]
        if first.op == "set" and all(
            reduction.index[0] == slice(*block) and reduction.index[1:] == first.index[1:]
            for reduction, block in zip(reductions, blocks, strict=True)
        ):
            kinds.append("rows")
        elif first.op != "set" and all(reduction.index == first.index for reduction in reductions):
            kinds.append(first.op)
        else:
            return None
    return kinds


@dataclass(frozen=True)
class RowBlockLoop:
    """Loop that computes a call in blocks of queries, each with all its keys.

    Attributes:
        call: the call.
        readouts: readouts that `combine_kinds` supports.
        rows: number of queries in a block.
        cols: number of keys in a tile of a block's logits.
    """

    call: BoundCall
    readouts: tuple[Readout, ...]
    rows: int
    cols: int

    def attend(self) -> tuple[Float[Array, "*batch q value_width"], tuple[Any, ...]]:
        """Return the output and the readouts of the call.

        They support derivatives of any order in forward and reverse mode.
        """
        import jax

        dynamic, tile = DynamicCall.of(self.call), self.call.tile
        count, q = max(1, -(-tile.q_total // self.rows)), tile.q_total
        results: list[Any] = []

        def block(number: Start) -> tuple[Array, list[tuple[Array, ...]]]:
            output, read = self._block(dynamic, number)
            results[:] = read  # only the types are used later: the arrays are tracers of the loop
            return output, [flatten(result) for result in read]

        first = tile.restrict((0, min(q, self.rows)), (0, tile.k_total))
        reductions = [reduction for readout in self.readouts for reduction in readout.reductions(first)]
        kinds = [kind for readout in self.readouts for kind in combine_kinds(readout, tile, self.rows) or ()]
        _, shapes = jax.eval_shape(block, np.int32(0))
        # `prevent_cse` is not needed within a loop and would prevent optimizations.
        checkpointed = jax.checkpoint(block, prevent_cse=False)

        def step(carried: list[Array], number: Start) -> tuple[list[Array], list[Array]]:
            output, read = checkpointed(number)
            queue, new, own = iter(carried), [], [output]
            for x, reduction, kind in zip(chain(*read), reductions, kinds, strict=True):
                if kind == "rows":
                    own.append(x)
                elif kind == "cells":
                    new.append(self._add_to_cells(next(queue), x, reduction, number))
                else:
                    new.append(reduction.combine(next(queue), x))
            return new, own

        initial = [
            self._allocate(reduction, x, kind)
            for x, reduction, kind in zip(chain(*shapes), reductions, kinds, strict=True)
            if kind != "rows"
        ]
        initial = vary_like(initial, dynamic.call.query)
        carried, (output, *blocks) = jax.lax.scan(step, initial, np.arange(count, dtype=np.int32))
        queues = iter(carried), iter(blocks)
        arrays = iter(
            _join(next(queues[1]), reduction.shape)
            if kind == "rows"
            else next(queues[0])[(..., *(slice(0, n) for n in reduction.shape))]
            for reduction, kind in zip(reductions, kinds, strict=True)
        )
        wholes = []
        for readout, like in zip(self.readouts, results, strict=True):
            own = tuple(next(arrays) for _ in flatten(like))
            wholes.append(readout.finalize(unflatten(own, like), tile))
        return _join(output, (q, output.shape[-1])), tuple(wholes)

    def _allocate(self, reduction: Reduction, block: Shaped[Array, "*_block"], kind: str) -> Shaped[Array, "*_whole"]:
        """Return the initial array of a reduction. For a pooled map it has additional rows of cells.

        A block may contribute to that many rows.
        """
        import jax.numpy as jnp

        batch, shape = block.shape[: len(block.shape) - len(reduction.shape)], reduction.shape
        if kind == "cells":
            shape = (shape[0] + self._touched_cells(shape[0]), *shape[1:])
        return cast("Array", jnp.full((*batch, *shape), reduction.initial, block.dtype))

    def _touched_cells(self, cells: int) -> int:
        """Return the largest number of rows of a pooled map to which a row block contributes."""
        return min(cells, -(-self.rows * cells // max(1, self.call.tile.q_total)) + 1)

    def _add_to_cells(
        self,
        whole: Float[Array, "*batch q_cells k_cells"],
        pooled: Float[Array, "*batch rows k_cells"],
        reduction: Reduction,
        number: Start,
    ) -> Float[Array, "*batch q_cells k_cells"]:
        """Return a pooled map with the contribution of a row block that is already pooled over the keys."""
        import jax
        import jax.numpy as jnp

        q, cells = self.call.tile.q_total, reduction.shape[0]
        start = jnp.minimum(number * self.rows, q - self.rows)
        rows = start + np.arange(self.rows)
        cell = rows * cells // q
        uncovered = rows >= number * self.rows
        first = cell[0]
        rows_of_cells = []
        for n in range(self._touched_cells(cells)):
            inside = ((cell == first + n) & uncovered)[:, None]
            if reduction.op == "add":
                rows_of_cells.append(jnp.sum(jnp.where(inside, pooled, 0), axis=-2))
                continue
            of_cell = jnp.where(inside, pooled, -jnp.inf)
            # Select by index, so that the gradient of a tie goes to the first of the equal elements.
            index = jnp.argmax(of_cell, axis=-2, keepdims=True)
            rows_of_cells.append(jnp.take_along_axis(of_cell, index, axis=-2)[..., 0, :])
        new, axis = jnp.stack(rows_of_cells, axis=-2), whole.ndim - 2
        old = jax.lax.dynamic_slice_in_dim(whole, first, new.shape[-2], axis)
        updated = jax.lax.dynamic_update_slice_in_dim(whole, reduction.combine(old, new), first, axis)
        return cast("Array", updated)

    def _block(self, dynamic: DynamicCall, number: Start) -> tuple[Float[Array, "*batch rows value_width"], list[Any]]:
        """Return the output and the readouts of the row block with the given number."""
        call, normalizer = dynamic.call, dynamic.call.normalizer
        whole = call.tile
        window = DynamicTile.of((number, 0), (self.rows, whole.k_total), (whole.q_total, whole.k_total))
        tile = dynamic.tile(window)
        logits = self._logits(dynamic, number)
        weights = normalizer.weights(logits, tile)
        dropped = apply_dropout(weights, tile, call.dropout)

        def output(finite: bool) -> Float[Array, "*batch rows value_width"]:
            support = None if finite else normalizer.support(logits, weights)
            return apply_weights(dropped, call.value, support, finite)

        read: list[Any] = []
        for readout in self.readouts:
            if combine_kinds(readout, whole, self.rows) == ["cells"]:
                (reduction,) = readout.reductions(
                    whole.restrict((0, min(self.rows, whole.q_total)), (0, whole.k_total))
                )
                how = "sum" if reduction.op == "add" else "max"
                read.append(pool_cells(weights, -1, tile.cols, reduction.shape[1], whole.k_total, how))
            else:
                read.append(readout.read(logits, weights, normalizer, tile))
        return dynamic.if_finite(output, call.value), read

    def _logits(self, dynamic: DynamicCall, number: Start) -> Float[Array, "*batch rows k"]:
        """Return the logits of a row block, computed in tiles that the backward pass recomputes."""
        import jax
        import jax.numpy as jnp

        call, (q, k) = dynamic.call, (self.call.tile.q_total, self.call.tile.k_total)
        if 0 in (q, k):
            return cast("Array", jnp.zeros((*call.batch, self.rows if q else 0, k), call.dtype))

        def tile(col: Start) -> Float[Array, "*batch rows cols"]:
            window = DynamicTile.of((number, col), (self.rows, self.cols), (q, k))
            query, key = slice_axis(call.query, window.rows, -2), slice_axis(call.key, window.cols, -2)
            return dynamic.logits(window, query, key, slice_part(call.score, window), dynamic.allowed(window))

        count = -(-k // self.cols)
        if count == 1:
            return tile(0)
        tiles = jax.lax.map(jax.checkpoint(tile, prevent_cse=False), np.arange(count, dtype=np.int32))
        return _join(tiles.mT, (k, self.rows)).mT


def _join(blocks: Shaped[Array, " count *_block"], shape: tuple[int, ...]) -> Shaped[Array, "*_whole"]:
    """Return blocks of shape `(*batch, length, …)` joined along the axis whose total length is the first of `shape`.

    The last block overlaps the block before it, and its overlapping part is dropped.
    """
    import jax.numpy as jnp

    count, axis, total = blocks.shape[0], blocks.ndim - len(shape) - 1, shape[0]
    length = blocks.shape[axis + 1]
    if count == 1:
        return blocks[0]
    first = jnp.moveaxis(blocks[:-1], 0, axis)
    first = first.reshape((*first.shape[:axis], (count - 1) * length, *first.shape[axis + 2 :]))
    rest = jnp.take(blocks[-1], np.arange(count * length - total, length), axis=axis)
    return cast("Array", jnp.concatenate([first, rest], axis=axis))
