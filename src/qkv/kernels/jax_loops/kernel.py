"""Kernel that computes attention in compiled JAX loops, in memory linear in the numbers of queries and keys.

It supports `jit`, `grad`, `jvp`, `checkpoint`, `vmap` and `shard_map`:

    forward   a compiled loop over tiles of queries and keys, which merges the partial results of each query
    tangent   a loop that computes the tiles again from a few statistics per query, and of which JAX derives backward

Normalizers that need whole rows or select keys, and readouts, run in blocks of whole rows (`row_blocks.py`). All other
calls run tile by tile (`tiles.py`).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ClassVar

import numpy as np

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.core.positions import Positions
from qkv.core.threefry import seed_words
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Num, Shaped
from qkv.kernels.jax_loops.explicit_axes import with_automatic_axes
from qkv.kernels.jax_loops.manual_axes import vary_alike
from qkv.kernels.jax_loops.row_blocks import RowBlockLoop, combine_kinds
from qkv.kernels.jax_loops.tiles import attend_tiles
from qkv.kernels.runtime.gpu_model import pairwise_gpu_work
from qkv.kernels.runtime.tile_sizes import partial_elements, row_block_arrays, row_block_size, size_text, tile_shape
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.readouts import Readout
from qkv.scores.base import Score

__all__ = ["JaxLoopsKernel"]

BUDGET = 2**20
"""Largest number of elements in any array of a tile."""
ROW_BLOCK_BUDGET = 2**23
"""Largest number of elements in all arrays of a row block together."""
_GPU_TILE_FACTOR = 16
"""Ratio of the elements of a tile on a GPU and on a CPU: 64 MiB in float32, so that launches take little time."""
_TILE_SECONDS = 3e-4
"""Fixed cost of a tile in seconds, because it consists of many small operations."""

Parts = tuple[Score, Normalizer, Mask | None, Positions | None]


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
        """Yield a reason for refusal for each readout that a compiled loop over row blocks cannot combine."""
        for readout in problem.readouts:
            if combine_kinds(readout, problem.tile, self._rows(problem)) is None:
                yield f"a compiled loop cannot combine the results of the readout {readout}"

    def describe(self, problem: Problem) -> str:
        """Describe the sizes of the tiles and row blocks of a call, as text for the plan."""
        if _in_tiles(problem) and not problem.readouts:
            return f"tiles of {size_text(*self._tile(problem))}; backward recomputes the logits"
        blocks = f"row blocks of {size_text(self._rows(problem), problem.axes.k)}"
        return f"tiles, and for the readouts {blocks}" if _in_tiles(problem) else blocks

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call. The peak memory includes one tile or row block.

        Backward includes a second forward pass.
        """
        axes = problem.axes
        passes = 3.5 if problem.gradient else 1.0
        peak, steps, flop, traffic = 0.0, 0.0, 0.0, float(problem.input_bytes)
        if _in_tiles(problem):
            rows, cols = self._tile(problem)
            peak = axes.batch_size * rows * (cols * _tile_arrays(problem) + partial_elements(problem))
            steps = -(-axes.q // rows) * -(-axes.k // cols)
            flop = axes.pairs * problem.flop_per_pair * passes
        if not _in_tiles(problem) or problem.readouts:
            rows = self._rows(problem) or 1
            of_score = axes.batch_size * rows * min(axes.k, self._cols(problem, rows)) * problem.elements_per_logit
            peak = max(peak, axes.batch_size * rows * axes.k * (12 if problem.gradient else 5) + 3 * of_score)
            steps += -(-axes.q // rows)
            flop += axes.pairs * problem.flop_per_pair * passes
            traffic += 12 * axes.pairs * problem.itemsize * passes
        numbers = axes.batch_size * axes.q * problem.normalizer.accumulator_width(axes.value_width)
        # The projections of query and key are in memory even without a gradient.
        numbers += axes.batch_size * axes.q * axes.query_width + axes.batch_size * axes.k * axes.key_width
        if problem.gradient:
            numbers += axes.batch_size * (axes.q + axes.k) * (axes.query_width + axes.value_width)
        return Cost(
            flop,
            traffic,
            (peak + numbers) * problem.itemsize + problem.cast_bytes,
            5e-4 + steps * _TILE_SECONDS * (2 if problem.gradient else 1),
        )

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the loops on a GPU: the compiler fuses what is done with a tile to about six programs."""
        steps = -(-problem.axes.q // max(1, self._rows(problem)))
        if _in_tiles(problem):
            rows, cols = self._tile(problem)
            steps = -(-problem.axes.q // rows) * -(-problem.axes.k // cols)
        return pairwise_gpu_work(problem, problem.axes.pairs, 20 + 6 * steps, passes=4)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the compiled loop of a call and return the output and the readouts.

        The loop is compiled once per plan, or as part of a function that JAX traces.
        """
        tile = call.tile
        # Arrays, so that the compiled function takes the words of the seed as arguments.
        seed = None
        if tile.seed is not None:
            low, high = (np.uint32(x) if isinstance(x, int) else x for x in seed_words(tile.seed))
            seed = low, high
        static = _StaticCall(
            lengths=(tile.q_total, tile.k_total),
            batch=tile.batch,
            dropout=call.dropout,
            tile_shape=self._tile(problem) if _in_tiles(problem) else None,
            row_block=(rows, self._cols(problem, rows)) if (rows := self._rows(problem)) else None,
            # On a GPU, reading back whether the data is finite would wait for all earlier operations.
            finite=(False, False) if problem.device.is_gpu else (call.finite_sides, call.finite_value),
            readouts=tuple(problem.readouts),
            signatures=tuple(readout.signature() for readout in problem.readouts),
        )
        parts = (call.score, call.normalizer, call.mask, tile.positions)
        run = partial(_compiled(), static)
        output, readouts = with_automatic_axes(run, call.query, call.key, call.value, parts, seed)
        return Result(cast(output, call.out_dtype), tuple(readouts))

    def _tile(self, problem: Problem) -> tuple[int, int]:
        budget = self.budget * (_GPU_TILE_FACTOR if problem.device.is_gpu else 1)
        rows, cols = tile_shape(problem, budget, _tile_arrays(problem))
        return max(1, min(rows, problem.axes.q)), max(1, min(cols, problem.axes.k))

    def _rows(self, problem: Problem) -> int:
        """Return the number of queries in a row block, or 0 if the call uses no row blocks."""
        if _in_tiles(problem) and not problem.readouts:
            return 0
        return row_block_size(problem, self.row_block_budget, row_block_arrays(problem))

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
class _StaticCall:
    """Static argument of the compiled function: shapes, sizes and options of a call, without its arrays."""

    lengths: tuple[int, int]
    batch: tuple[int, ...]
    dropout: float
    tile_shape: tuple[int, int] | None
    row_block: tuple[int, int] | None
    finite: tuple[bool, bool]
    readouts: tuple[Readout, ...] = field(compare=False)
    signatures: tuple[Hashable, ...]
    """Signatures of the readouts, which are compared in place of the readouts because those hold no arrays."""


@cache
def _compiled() -> Callable[..., tuple[Float[Array, "*batch q value_width"], tuple[object, ...]]]:
    """Return the compiled function that runs a call. It is defined on first use, because JAX is optional."""
    import jax

    return typing.cast("Callable[..., tuple[Array, tuple[object, ...]]]", jax.jit(_attend, static_argnums=0))


def _attend(
    static: _StaticCall,
    query: Num[Array, "*#batch q query_width"],
    key: Num[Array, "*#batch k key_width"],
    value: Float[Array, "*#batch k value_width"],
    parts: Parts,
    seed: tuple[Shaped[Array, ""], Shaped[Array, ""]] | None,
) -> tuple[Float[Array, "*batch q value_width"] | None, tuple[object, ...]]:
    query, key, value, (score, normalizer, mask, positions), seed = vary_alike((query, key, value, parts, seed))
    tile = Tile.whole(*static.lengths, static.batch, positions, seed=seed)
    call = BoundCall(
        query, key, value, score, normalizer, mask, tile, static.dropout, value.dtype, finite=static.finite
    )
    readouts: tuple[object, ...] = ()
    output = None
    if static.row_block is not None:
        # If tiles compute the output, the compiler removes the output of row blocks as dead code.
        output, readouts = RowBlockLoop(call, static.readouts, *static.row_block).attend()
    if static.tile_shape is not None:
        output = attend_tiles(call, static.tile_shape)
    return output, readouts
