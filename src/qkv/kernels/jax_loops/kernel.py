"""Kernel that computes attention in compiled JAX loops, in memory linear in the numbers of queries and keys.

It supports `jit`, `grad`, `jvp`, `checkpoint`, `vmap` and `shard_map`:

    forward   a compiled loop over tiles of queries and keys, which merges the partial results of each query
    tangent   a loop that computes the tiles again from a few statistics per query, and of which JAX derives backward

Normalizers that need whole rows or select keys, and readouts, run in blocks of whole rows. All other calls
run tile by tile (`tiles.py`).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall, apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, KeyArray, Num, OutputArray, QueryArray, ReadoutResult, Shaped
from qkv.kernels.jax_loops.dynamic_tiles import (
    DynamicCall,
    DynamicTile,
    Start,
    slice_axis,
    slice_part,
    vary_alike,
    vary_like,
)
from qkv.kernels.jax_loops.tiles import attend_tiles
from qkv.kernels.runtime.compiled_jax import known_finite, run_compiled
from qkv.kernels.runtime.tile_sizes import (
    equal_parts,
    partial_elements,
    row_block_arrays,
    row_block_size,
    size_text,
    tile_shape,
)
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work
from qkv.readouts import Readout
from qkv.readouts.base import Reduction, flatten, unflatten
from qkv.readouts.cells import pool_cells

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


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

    def attend(self) -> tuple[OutputArray, tuple[ReadoutResult, ...]]:
        """Return the output and the readouts of the call.

        They support derivatives of any order in forward and reverse mode.
        """
        import jax

        dynamic, tile = DynamicCall.of(self.call), self.call.tile
        count, q = max(1, -(-tile.q_total // self.rows)), tile.q_total
        results: list[ReadoutResult] = []

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
        return typing.cast("Array", jnp.full((*batch, *shape), reduction.initial, block.dtype))

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
        return typing.cast("Array", updated)

    def _block(
        self, dynamic: DynamicCall, number: Start
    ) -> tuple[Float[Array, "*batch rows value_width"], list[ReadoutResult]]:
        """Return the output and the readouts of the row block with the given number."""
        call, normalizer = dynamic.call, dynamic.call.normalizer
        whole = call.tile
        window = DynamicTile.of((number, 0), (self.rows, whole.k_total), (whole.q_total, whole.k_total))
        tile = dynamic.tile(window)
        logits = self._logits(dynamic, number)
        weights = normalizer.weights(logits, tile)
        dropped = apply_dropout(weights, tile, call.dropout)

        output = apply_weights(dropped, call.value, lambda: normalizer.support(logits, weights), call.finite_value)
        read: list[ReadoutResult] = []
        for readout in self.readouts:
            if combine_kinds(readout, whole, self.rows) == ["cells"]:
                (reduction,) = readout.reductions(
                    whole.restrict((0, min(self.rows, whole.q_total)), (0, whole.k_total))
                )
                how = "sum" if reduction.op == "add" else "max"
                read.append(pool_cells(weights, -1, tile.cols, reduction.shape[1], whole.k_total, how))
            else:
                read.append(readout.read(logits, weights, normalizer, tile))
        return output, read

    def _logits(self, dynamic: DynamicCall, number: Start) -> Float[Array, "*batch rows k"]:
        """Return the logits of a row block, computed in tiles that the backward pass recomputes."""
        import jax
        import jax.numpy as jnp

        call, (q, k) = dynamic.call, (self.call.tile.q_total, self.call.tile.k_total)
        if 0 in (q, k):
            return typing.cast("Array", jnp.zeros((*call.batch, self.rows if q else 0, k), call.dtype))

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
    return typing.cast("Array", jnp.concatenate([first, rest], axis=axis))


_Result = TypeVar("_Result")


def with_automatic_axes(
    function: Callable[..., _Result],
    query: QueryArray,
    key: KeyArray,
    value: Num[Array, "*#batch k value_width"],
    *others: object,
) -> _Result:
    """Return `function(query, key, value, *others)`, run with automatic axes if the arrays have explicit ones.

    Of the results, the first is the output; the others are not sharded.
    """
    import jax

    specs = [_explicit_spec(x) for x in (query, key, value)]
    if all(spec is None for spec in specs):
        return function(query, key, value, *others)
    rank = max(x.ndim for x in (query, key, value))
    of_query, of_key, of_value = (
        (None,) * rank if spec is None else (None,) * (rank - x.ndim) + tuple(spec) + (None,) * (x.ndim - len(spec))
        for spec, x in zip(specs, (query, key, value), strict=True)
    )
    used: set[object] = set()
    axes: list[object] = []
    for choices in (*zip(of_query[:-2], of_key[:-2], of_value[:-2], strict=True), of_query[-2:-1], of_value[-1:]):
        found = next((name for name in choices if name is not None), None)
        names = set(found) if isinstance(found, tuple) else {found}
        axes.append(None if names & used else found)
        used |= names - {None}
    spec = jax.sharding.PartitionSpec(*axes)
    automatic: Callable[..., _Result] = jax.sharding.auto_axes(
        function, out_sharding=(spec, jax.sharding.PartitionSpec())
    )
    return automatic(query, key, value, *others)


def _explicit_spec(x: Num[Array, "*_"]) -> PartitionSpec | None:
    """Return how the type of an array says that its axes are sharded over explicit axes, or None if it does not."""
    import jax

    if not hasattr(jax, "typeof") or not hasattr(jax.sharding, "auto_axes"):
        return None
    sharding = getattr(jax.typeof(x), "sharding", None)
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    if sharding is None or jax.sharding.AxisType.Explicit not in kinds:
        return None
    spec: PartitionSpec = sharding.spec
    return spec


BUDGET = 2**20
"""Largest number of elements in any array of a tile."""
ROW_BLOCK_BUDGET = 2**23
"""Largest number of elements in all arrays of a row block together."""
_GPU_TILE_FACTOR = 16
"""Ratio of the elements of a tile on a GPU and on a CPU: 64 MiB in float32, so that launches take little time."""


@dataclass(frozen=True)
class JaxLoopsKernel(Kernel):
    """Kernel that computes attention in compiled JAX loops, for every score, normalizer and mask.

    It supports most readouts.

    It supports derivatives of any order in forward and reverse mode; memory is linear for first derivatives.

    Args:
        budget: largest number of elements in any array of a tile.
        row_block_budget: largest number of elements in all arrays of a row block together.
    """

    name: ClassVar[str] = "jax_loops"
    libraries: ClassVar[tuple[str, ...]] = ("jax",)
    runs_on_gpu: ClassVar[bool] = True
    budget: int = BUDGET
    row_block_budget: int = ROW_BLOCK_BUDGET

    def limits(self, problem: Problem) -> Iterator[str]:
        for readout in problem.readouts:
            if combine_kinds(readout, problem.tile, self._rows(problem)) is None:
                yield f"a compiled loop cannot combine the results of the readout {readout}"

    def describe(self, problem: Problem) -> str:
        if _in_tiles(problem) and not problem.readouts:
            return f"tiles of {size_text(*self._tile(problem))}; backward recomputes the logits"
        blocks = f"row blocks of {size_text(self._rows(problem), problem.axes.k)}"
        return f"tiles, and for the readouts {blocks}" if _in_tiles(problem) else blocks

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of one tile or row block, of the sums and of the projections."""
        axes = problem.axes
        peak = 0.0
        if _in_tiles(problem):
            rows, cols = self._tile(problem)
            peak = axes.batch_size * rows * (cols * _tile_arrays(problem) + partial_elements(problem))
        if not _in_tiles(problem) or problem.readouts:
            rows = self._rows(problem) or 1
            of_score = axes.batch_size * rows * min(axes.k, self._cols(problem, rows)) * problem.elements_per_logit
            peak = max(peak, axes.batch_size * rows * axes.k * (12 if problem.gradient else 5) + 3 * of_score)
        numbers = axes.batch_size * axes.q * problem.normalizer.accumulator_width(axes.value_width)
        # The projections of query and key are in memory even without a gradient.
        numbers += axes.batch_size * axes.q * axes.query_width + axes.batch_size * axes.k * axes.key_width
        if problem.gradient:
            numbers += axes.batch_size * (axes.q + axes.k) * (axes.query_width + axes.value_width)
        return (peak + numbers) * problem.itemsize + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; for readouts and some normalizers row blocks are computed, besides the tiles."""
        axes, passes, tiles, block = problem.axes, 0, 0, 0.0
        if _in_tiles(problem):
            rows, cols = self._tile(problem)
            passes, tiles = 1, -(-axes.q // rows) * -(-axes.k // cols)
        if not _in_tiles(problem) or problem.readouts:
            rows = self._rows(problem) or 1
            passes, tiles, block = passes + 1, tiles + -(-axes.q // rows), axes.batch_size * rows * axes.k
        return amounts_of_work(problem, passes * axes.pairs, tiles, block)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the compiled loop of a call and return the output and the readouts.

        The loop is compiled once per plan, or as part of a function that JAX traces.
        """
        rows = self._rows(problem)
        loops = _Loops(
            self._tile(problem) if _in_tiles(problem) else None,
            replace(self, budget=max(1, self.budget // 16))._tile(problem),
            (rows, self._cols(problem, rows)) if rows else None,
        )
        # On a GPU, reading back whether the data is finite would wait for all earlier operations.
        finite = None if problem.device.is_gpu else known_finite(call)
        result = run_compiled(call, problem, loops, finite, with_automatic_axes)
        return replace(result, output=cast(result.output, call.out_dtype))

    def _tile(self, problem: Problem) -> tuple[int, int]:
        budget = self.budget * (_GPU_TILE_FACTOR if problem.device.is_gpu else 1)
        if problem.axes.pairs * problem.elements_per_logit <= 2 * budget:
            budget *= 2  # a single tile, which needs no loop, rather than several of half the size
        rows, cols = tile_shape(problem, budget, _tile_arrays(problem))
        return equal_parts(problem.axes.q, rows), equal_parts(problem.axes.k, cols)

    def _rows(self, problem: Problem) -> int:
        """Return the number of queries in a row block, or 0 if the call uses no row blocks."""
        if _in_tiles(problem) and not problem.readouts:
            return 0
        return equal_parts(problem.axes.q, row_block_size(problem, self.row_block_budget, row_block_arrays(problem)))

    def _cols(self, problem: Problem, rows: int) -> int:
        """Return the number of keys in a tile of the logits of a row block."""
        pairs = self.budget // max(1, problem.axes.batch_size * rows * problem.elements_per_logit)
        return max(1, min(problem.axes.k, pairs))


def _in_tiles(problem: Problem) -> bool:
    """Return whether a call is computed tile by tile: its normalizer can be accumulated and selects no keys.

    Normalizers that select keys do not, because the backward pass would have to select exactly the same keys again.
    """
    return problem.normalizer.online and not problem.normalizer.selects_keys


def _tile_arrays(problem: Problem) -> int:
    """Return the largest number of arrays of the size of a tile that are in memory at once."""
    return (8 if problem.gradient else 5) + (3 if problem.gradient else 2) * problem.elements_per_logit


@dataclass(frozen=True)
class _Loops:
    """Function that computes a call in loops.

    Attributes:
        tile_shape: queries and keys of a tile; None if no tiles are computed.
        nonfinite_tile: those for data that a compiled function finds not to be finite, few as XLA allocates memory
            for both ways.
        row_block: queries of a row block and keys of a tile of its logits; None if no row blocks are computed.
    """

    tile_shape: tuple[int, int] | None
    nonfinite_tile: tuple[int, int]
    row_block: tuple[int, int] | None

    def __call__(self, call: BoundCall, readouts: tuple[Readout, ...]) -> Result:
        tile = call.tile
        arrays = (call.query, call.key, call.value, call.score, call.normalizer, call.mask, tile.positions, tile.seed)
        query, key, value, score, normalizer, mask, positions, seed = vary_alike(arrays)
        tile = replace(tile, positions=positions, seed=seed)
        call = replace(
            call, query=query, key=key, value=value, score=score, normalizer=normalizer, mask=mask, tile=tile
        )
        output: Any = None
        read: tuple[object, ...] = ()
        if self.row_block is not None:
            # Differentiating whole rows without guards gave NaN for some finite data, when XLA compiled it as one.
            guarded = call if call.finite else replace(call, finite=(False, False))
            # If tiles compute the output, the compiler removes the output of row blocks as dead code.
            output, read = RowBlockLoop(guarded, readouts, *self.row_block).attend()
        if (shape := self.tile_shape) is not None:
            known = call.finite
            output = call.by_finiteness(
                lambda call: attend_tiles(call, shape if known or call.finite_value else self.nonfinite_tile)
            )
        return Result(output, read)
