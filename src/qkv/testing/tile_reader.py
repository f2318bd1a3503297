"""Define a kernel that computes readouts tile by tile, which only the contract tests use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, ignore_numpy_warnings, zeros
from qkv.core.batch import BatchIndex, batch_indices
from qkv.core.equation import BoundCall
from qkv.core.typing import ArrayLike
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, fully_masked, ranges
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator, readable_by_tile
from qkv.normalizers.base import Summary
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["TileReader"]


@dataclass(frozen=True)
class TileReader(Kernel):
    """Kernel without gradients that computes the output of a row block first, and then the readouts of its tiles.

    Args:
        rows: number of queries in a tile.
        cols: number of keys in a tile.
        most: largest number of batch elements in a tile.
    """

    name: ClassVar[str] = "tile reader"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch")
    rows: int = 3
    cols: int = 4
    most: int = 2

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield a reason for each feature of a problem that the kernel does not support: gradients, some readouts."""
        if problem.gradient:
            yield "it does not support gradients"
        if not readable_by_tile(problem.readouts, problem.normalizer):
            yield "it does not support readouts that need whole rows"

    def cost(self, problem: Problem) -> Cost:
        """Return a cost of 0, because the planner never compares this kernel with others."""
        return Cost(0, 0, 0)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Compute the output and the readouts of a call, one row block at a time."""
        tile, accumulators = call.tile, [ReadoutAccumulator(readout, call.tile) for readout in problem.readouts]
        output: ArrayLike = zeros(call.value, (*tile.batch, tile.q_total, call.value.shape[-1]))
        with ignore_numpy_warnings():
            for index in batch_indices(tile.batch, self.most):
                one = call.select_batch(index) if index else call
                for rows in ranges(tile.q_total, self.rows):
                    rows_output, summary = attend_rows(one, rows, self.cols)
                    output[(*index, slice(*rows)) if index else (..., slice(*rows), slice(None))] = rows_output
                    self._read(accumulators, one, summary, rows, index)
        return Result(cast(output, call.out_dtype), tuple(accumulator.result() for accumulator in accumulators))

    def _read(
        self,
        accumulators: Sequence[ReadoutAccumulator],
        call: BoundCall,
        summary: Summary,
        rows: Limits,
        index: BatchIndex,
    ) -> None:
        normalizer = call.normalizer
        for limits in ranges(call.tile.k_total, self.cols):
            tile, logits = call.tile.restrict(rows, limits), call.logits(rows, limits)
            if logits is None and limits[0] > 0:
                for accumulator in accumulators:
                    accumulator.skip(tile, index)
                continue
            if logits is None:  # the first tile is always accumulated: it allocates the results and includes the sink
                logits = fully_masked(call, rows, limits[1])
            weights = normalizer.tile_weights(normalizer.prepare(logits), summary, tile)
            for accumulator in accumulators:
                accumulator.update(logits, weights, normalizer, tile, index)
