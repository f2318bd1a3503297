"""Kernel that computes attention tile by tile in NumPy, forward only, in memory linear in the number of keys.

`Database.ask` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from qkv.core.arrays import cast, ignore_numpy_warnings
from qkv.core.batch import BatchIndex, batch_indices
from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.core.typing import OutputArray, PairArray
from qkv.kernels.numpy_blocks.one_pass import (
    CHUNK,
    TILE_FACTOR,
    OnePassTileSizes,
    attend_in_one_pass,
    one_pass_tile_sizes,
    selects,
)
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, ranges, row_logits, weigh_rows
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator, accumulate_rows
from qkv.kernels.runtime.tile_sizes import (
    LEAST_NARROWED,
    ROW_BLOCK_BUDGET,
    TileSizes,
    narrow_for_mask,
    partial_elements,
    size_text,
)
from qkv.normalizers.base import Normalizer
from qkv.plan.bind import prepare_unconverted
from qkv.plan.cost import tile_sides
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work

_Schedule: TypeAlias = tuple[OnePassTileSizes | TileSizes, bool]
"""Sizes of the tiles, those of one pass over the keys by their type, and whether blocks hold whole rows of logits."""

_ROW_BLOCK_ARRAYS = 5
"""Number of arrays of a row block's size in memory at once."""
_FEW_QUERIES = 64
"""Number of queries of which all logits must fit in a block, if they are weighed without one pass over the keys."""


@dataclass(frozen=True)
class NumpyBlocksKernel(Kernel):
    """Kernel that computes attention in tiles or row blocks of NumPy arrays, without gradients.

    Rows of few keys are computed in blocks of whole rows that stay in the cache. Of longer rows, softmax, normalizers
    that select keys and readouts of the largest weights read the keys once; other online normalizers run in tiles,
    other normalizers and calls with other readouts in row blocks.

    Args:
        budget: largest number of elements in any array of a tile. The default is 1 MiB in float32, which stays in a
            cache of 2 MiB. Tiles of online normalizers other than softmax are four times as large.
        row_block_budget: largest number of elements in all arrays of a block of longer rows together.
    """

    name: ClassVar[str] = "numpy_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    casts_tiles: ClassVar[bool] = True
    budget: int = 2**18
    row_block_budget: int = ROW_BLOCK_BUDGET

    def describe(self, problem: Problem) -> str:
        sizes, by_rows = self._schedule(problem)
        if isinstance(sizes, OnePassTileSizes):
            return f"tiles of {size_text(sizes.rows, sizes.cols)}, one pass over the keys"
        if by_rows:
            return f"row blocks of {size_text(sizes.rows, problem.axes.k)}"
        return f"tiles of {size_text(sizes.rows, sizes.cols)}"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of one tile or row block at the peak, and of the results of readouts."""
        sizes, by_rows = self._schedule(problem)
        if isinstance(sizes, OnePassTileSizes):
            return sizes.scratch(problem)
        elements, item, queries = problem.elements_per_logit, problem.itemsize, sizes.batch * sizes.rows
        peak = queries * sizes.cols * item * max(_ROW_BLOCK_ARRAYS + 1, 2 * elements + 2)
        peak += queries * item * partial_elements(problem)
        if by_rows:
            # A tile of logits is computed while one array of the row block is in memory, which is weighed later.
            row_block, tile = queries * problem.axes.k * item, queries * sizes.cols * item * 2 * elements
            weighed = 7.0 if not problem.normalizer.online else 5.6
            peak = int(max(row_block * weighed, row_block + tile)) + queries * problem.axes.query_width * item
        return peak + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated; masked pairs are computed too."""
        axes, (sizes, by_rows) = problem.axes, self._schedule(problem)
        if isinstance(sizes, OnePassTileSizes):
            return amounts_of_work(problem, axes.pairs, sizes.tiles(problem), 0)
        blocks = -(-axes.batch_size // sizes.batch) * -(-axes.q // sizes.rows)
        block = sizes.batch * sizes.rows * axes.k if by_rows else 0
        return amounts_of_work(problem, axes.pairs, blocks * -(-axes.k // sizes.cols), block)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        return self._run(call, problem, self._schedule(problem))

    def prepare(self, problem: Problem) -> PreparedCall | None:
        """Return a function that runs calls in blocks of the same sizes, which may depend on arrays of the mask."""
        mask, schedule = problem.spec.mask, self._schedule(problem)
        if problem.axes.q >= LEAST_NARROWED and mask is not None and mask.arrays():
            return None
        return prepare_unconverted(lambda call: self._run(call, problem, schedule), problem)

    def _run(self, call: BoundCall, problem: Problem, schedule: _Schedule) -> Result:
        sizes, by_rows = schedule
        with ignore_numpy_warnings():
            if isinstance(sizes, OnePassTileSizes):
                return attend_in_one_pass(call, sizes, problem.readouts)
            call, tile = call.with_all_cast(), call.tile
            output = np.empty((*tile.batch, tile.q_total, call.value.shape[-1]), dtype=call.out_dtype)
            accumulators = [ReadoutAccumulator(readout, tile) for readout in problem.readouts]
            for index in batch_indices(tile.batch, sizes.batch):
                part = call if sizes.batch >= problem.axes.batch_size else call.select_batch(index)
                for rows in ranges(tile.q_total, sizes.rows):
                    if by_rows:
                        of_rows = _weigh_rows(part, rows, sizes.cols, accumulators, () if part is call else index)
                    else:
                        of_rows, _ = attend_rows(part, rows, sizes.cols)
                    output[index][..., slice(*rows), :] = cast(of_rows, call.out_dtype)
            return Result(output, tuple(accumulator.result() for accumulator in accumulators))

    def _schedule(self, problem: Problem) -> _Schedule:
        """Return how a call reads its keys, and the sizes of its tiles, or of its row blocks and the tiles within."""
        axes, elements, few = problem.axes, problem.elements_per_logit, self._few_keys(problem)
        if not few and self._reads_once(problem):
            return one_pass_tile_sizes(problem, self.budget), False
        if not (few or problem.readouts or not problem.normalizer.online):
            pairs = self._pairs(problem, TILE_FACTOR * self.budget)
            rows, cols = tile_sides(axes.q, axes.k, max(1, pairs // elements))
            return TileSizes(rows, cols, 1), False
        pairs = self._pairs(problem, self.budget if few else self.row_block_budget // _ROW_BLOCK_ARRAYS)
        rows = narrow_for_mask(problem, max(1, min(axes.q, pairs // max(1, axes.k))))
        batch = max(1, min(axes.batch_size, pairs // max(1, rows * axes.k)))
        cols = self._pairs(problem, TILE_FACTOR * self.budget) // (batch * rows * elements)
        return TileSizes(rows, max(1, min(axes.k, cols)), batch), True

    def _reads_once(self, problem: Problem) -> bool:
        """Return whether a call of many keys is computed by `attend_in_one_pass`."""
        normalizer = problem.normalizer
        if any(not readout.largest or readout.head_indices is not None for readout in problem.readouts):
            return False
        if problem.axes.k == 0 and (problem.readouts or selects(normalizer)):
            return False
        return selects(normalizer) or (normalizer.log_sum_exp and normalizer.online and not problem.spec.dropout)

    def _few_keys(self, problem: Problem) -> bool:
        """Return whether the keys are so few that blocks of whole rows take less time, and lose no precision.

        One pass takes a fifth less from 128 keys on if a matrix product computes the logits in place and no mask
        excludes some.
        """
        axes, limit, form = problem.axes, CHUNK, problem.score.form
        if form.lift == "exact" and problem.normalizer.log_sum_exp and not (problem.spec.mask or problem.readouts):
            limit = 128
        return 0 < axes.k <= limit and axes.k * min(axes.q, _FEW_QUERIES) <= self._pairs(problem, self.budget)

    def _pairs(self, problem: Problem, budget: int) -> int:
        """Return how many pairs a block may have so that its arrays take at most half of the memory limit."""
        return min(budget, problem.memory // 2 // (problem.itemsize * (_ROW_BLOCK_ARRAYS + problem.elements_per_logit)))


def _weigh_rows(
    call: BoundCall, rows: Limits, cols: int, accumulators: Sequence[ReadoutAccumulator], index: BatchIndex
) -> OutputArray:
    """Return the output of a range of queries, and update the readouts of the batch elements at `index`.

    Only keys in the key range of the mask are read, unless a readout reads whole rows.
    """
    limits, all_keys = (0, call.tile.k_total), call.tile.restrict(rows, (0, call.tile.k_total))
    if call.mask is not None and limits[1] and all(each.readout.accepts_tiles for each in accumulators):
        start, stop = call.mask.key_range(all_keys)
        limits = (start, stop) if start < stop else (0, 1)  # at least one key, which may be masked

    def read(logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> None:
        accumulate_rows(accumulators, all_keys, [(logits, weights, tile)], normalizer, weights, index)

    output, _ = weigh_rows(
        call, rows, row_logits(call, rows, cols, limits), [read] if accumulators else (), cols=limits
    )
    assert output is not None
    return output
