"""The JAX loop kernel: JAX, in memory linear in queries and keys, under `jit`, `grad` and `vmap`.

    forward   a compiled loop over tiles of queries and keys; partials of each query are merged
    backward  the same tiles once more, from a few numbers per query

Normalizers that must see or order whole rows, and readouts, go some queries at a time (`row_blocks.py`);
all others tile by tile (`tiles.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.core.random import seed_words
from qkv.core.tile import Tile
from qkv.kernels.jax_loops.row_blocks import RowBlockLoop, kinds_of
from qkv.kernels.jax_loops.tiles import attend_tiles
from qkv.kernels.runtime.tile_sizes import partial_numbers, row_block_arrays, row_block_size, size_text, tile_shape
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.readouts import Readout

__all__ = ["JaxLoopsKernel"]

BUDGET = 2**20
"""Numbers in the widest array of a tile."""
ROW_BLOCK_BUDGET = 2**23
"""Numbers in all arrays of a strip together."""
STEP = 3e-4
"""Seconds to begin the work of a tile, whose operations are many and small."""


@dataclass(frozen=True)
class JaxLoopsKernel(Kernel):
    """Compiled loops; every score and mask, every normalizer, most readouts.

    Derivatives of tiles are by reverse mode alone: for `jax.jvp` and `jax.hessian` name the kernel dense.

    Args:
        budget: numbers in the widest array of a tile.
        strip_budget: numbers in all arrays of a strip together.
    """

    name: ClassVar[str] = "jax_loops"
    libraries: ClassVar[tuple[str, ...]] = ("jax",)
    budget: int = BUDGET
    row_block_budget: int = ROW_BLOCK_BUDGET

    def refuse(self, problem: Problem) -> str | None:
        """JAX, and readouts that a compiled loop can show."""
        if sentence := self.refuse_library(problem):
            return sentence
        for readout in problem.readouts:
            if kinds_of(readout, problem.tile, self._rows(problem)) is None:
                return f"of the readouts, a compiled loop cannot put {readout} together"
        return None

    def describe(self, problem: Problem) -> str:
        """Tile or strip sizes."""
        if _in_tiles(problem) and not problem.readouts:
            return f"tiles of {size_text(*self._tile(problem))}; logits are computed again in backward"
        strips = f"strips of {size_text(self._rows(problem), problem.axes.k)}"
        return f"tiles, and for the readouts {strips}" if _in_tiles(problem) else strips

    def cost(self, problem: Problem) -> Cost:
        """One tile or strip at a time; with a gradient all is computed once more, and differentiated."""
        axes = problem.axes
        times = 3.5 if problem.gradient else 1.0
        peak, steps, flop, traffic = 0.0, 0.0, 0.0, float(problem.input_bytes)
        if _in_tiles(problem):
            rows, cols = self._tile(problem)
            peak = axes.batch_size * rows * (cols * _alive(problem) + partial_numbers(problem))
            steps = -(-axes.q // rows) * -(-axes.k // cols)
            flop = axes.pairs * problem.flop_per_pair * times
        if not _in_tiles(problem) or problem.readouts:
            rows = self._rows(problem) or 1
            of_score = axes.batch_size * rows * min(axes.k, self._cols(problem, rows)) * problem.elements_per_logit
            peak = max(peak, axes.batch_size * rows * axes.k * (12 if problem.gradient else 5) + 3 * of_score)
            steps += -(-axes.q // rows)
            flop += axes.pairs * problem.flop_per_pair * times
            traffic += 12 * axes.pairs * problem.itemsize * times
        numbers = axes.batch_size * axes.q * problem.normalizer.accumulator_width(axes.value_width)
        # Not only where a gradient is known to be wanted: sides of query and key are there once more.
        numbers += axes.batch_size * axes.q * axes.query_width + axes.batch_size * axes.k * axes.key_width
        if problem.gradient:
            numbers += 2 * axes.batch_size * (axes.q + axes.k) * (axes.query_width + axes.value_width)
        return Cost(
            flop,
            traffic,
            (peak + numbers) * problem.itemsize + problem.untiled_bytes,
            5e-4 + steps * STEP * (2 if problem.gradient else 1),
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """The compiled loop; compiled once for each plan, and as a part of what is compiled around it."""
        tile = call.tile
        seed = None if tile.seed is None else tuple(_word(x) for x in seed_words(tile.seed))
        how = _How(
            lengths=(tile.q_total, tile.k_total),
            batch=tile.batch,
            dropout=call.dropout,
            tile_shape=self._tile(problem) if _in_tiles(problem) else None,
            strip=(rows, self._cols(problem, rows)) if (rows := self._rows(problem)) else None,
            clean=(call.finite_sides, call.finite_value),
            readouts=tuple(problem.readouts),
        )
        parts = (call.score, call.normalizer, call.mask, tile.positions)
        output, readouts = _compiled()(how, call.query, call.key, call.value, parts, seed)
        return Result(cast(output, call.out_dtype), tuple(readouts))

    def _tile(self, problem: Problem) -> tuple[int, int]:
        rows, cols = tile_shape(problem, self.budget, _alive(problem))
        return max(1, min(rows, problem.axes.q)), max(1, min(cols, problem.axes.k))

    def _rows(self, problem: Problem) -> int:
        """Queries in a strip; 0 where there are no strips."""
        if _in_tiles(problem) and not problem.readouts:
            return 0
        return row_block_size(problem, self.row_block_budget, row_block_arrays(problem))

    def _cols(self, problem: Problem, rows: int) -> int:
        """Keys in a tile of a strip's logits."""
        pairs = self.budget // max(1, problem.axes.batch_size * rows * problem.elements_per_logit)
        return max(1, min(problem.axes.k, pairs))


def _in_tiles(problem: Problem) -> bool:
    """Whether rows are folded. What chooses keys would have to find them again, bit for bit, in backward."""
    return problem.normalizer.online and not problem.normalizer.selects_keys


def _alive(problem: Problem) -> int:
    """Numbers in memory at once for each pair of a tile."""
    return (8 if problem.gradient else 5) + (3 if problem.gradient else 2) * problem.elements_per_logit


@dataclass(frozen=True)
class _How:
    """All that a compiled loop depends on, but its arrays and parts."""

    lengths: tuple[int, int]
    batch: tuple[int, ...]
    dropout: float
    tile_shape: tuple[int, int] | None
    strip: tuple[int, int] | None
    clean: tuple[bool, bool]
    readouts: tuple[Readout, ...]

    def __hash__(self) -> int:
        return hash(self._said())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _How) and self._said() == other._said()

    def _said(self) -> Any:
        # Readouts are values without arrays, and compare by what they say.
        readouts = tuple(readout.signature() for readout in self.readouts)
        return (self.lengths, self.batch, self.dropout, self.tile_shape, self.strip, self.clean, readouts)


def _word(number: Any) -> Any:
    """A word of the seed as an argument of what is compiled, not a part of it."""
    return np.uint32(number) if isinstance(number, int) else number


@cache
def _compiled() -> Any:
    """The function that JAX compiles, made when JAX is there."""
    import jax

    return jax.jit(_attend, static_argnums=0)


def _attend(how: _How, query: Any, key: Any, value: Any, parts: Any, seed: Any) -> Any:
    score, normalizer, mask, positions = parts
    tile = Tile.whole(*how.lengths, how.batch, positions, seed=seed)
    call = BoundCall(query, key, value, score, normalizer, mask, tile, how.dropout, value.dtype, finite=how.clean)
    readouts: tuple[Any, ...] = ()
    output = None
    if how.strip is not None:
        # The output of strips is left out by the compiler where tiles give it.
        output, readouts = RowBlockLoop(call, how.readouts, *how.strip).attend()
    if how.tile_shape is not None:
        output = attend_tiles(call, how.tile_shape)
    return output, readouts
