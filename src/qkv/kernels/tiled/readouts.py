"""Collection of the readouts of a call during the forward pass over its tiles, without gradients.

Pooled maps are accumulated in the pass that computes the output (`pooled_map.py`), and the log-sum-exp of each query is
a result of this pass. Other readouts need a second pass over the tiles of a row block, immediately after its output is
computed (`kernels/runtime/tile_readouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qkv.core.batch import BatchIndex
from qkv.core.tile import Tile
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator, result_batch, selected_heads
from qkv.kernels.tiled.pooled_map import ElementMap
from qkv.readouts import Readout

__all__ = ["ReadoutCollector"]


class ReadoutCollector:
    """Collector that computes the readouts of a call row block by row block during the forward pass.

    Args:
        tile: the tile that covers the whole call.
        like: tensor with the dtype and device of accumulation.

    Attributes:
        accumulators: accumulators of the readouts that need a second pass over the tiles.
    """

    def __init__(self, readouts: Sequence[Readout], tile: Tile, like: Float[Tensor, "*_"]) -> None:
        self._tile = tile
        self._results = [(readout, _allocate(readout, tile, like)) for readout in readouts]
        self.accumulators = [ReadoutAccumulator(readout, tile) for readout, whole in self._results if whole is None]

    @property
    def in_parallel(self) -> bool:
        """Whether batch elements may be computed in parallel."""
        return not self.accumulators

    def element_maps(self, index: BatchIndex) -> list[ElementMap]:
        """Return the accumulators of the pooled maps for the batch element at `index`.

        Several elements may be accumulated in parallel.
        """
        maps = []
        for readout, whole in self._results:
            if readout.pooling and whole is not None:
                targets = [whole[at] for at, _ in selected_heads(readout, self._tile.batch, index)]
                if targets:
                    maps.append(ElementMap(readout.pooling == "mean", targets, self._tile))
        return maps

    def add_log_totals(
        self, index: BatchIndex, rows: tuple[int, int], log_total: Callable[[], Float[Tensor, "q 1"]]
    ) -> None:
        """Store the log-sum-exp of a range of queries if a readout of the call needs it.

        Args:
            index: index of the batch element.
            rows: range of the queries.
            log_total: function that computes the log-sum-exp of each query.
        """
        for readout, whole in self._results:
            if readout.is_log_sum_exp and whole is not None:
                for at, _ in selected_heads(readout, self._tile.batch, index):
                    whole[(*at, slice(*rows))] = log_total()[..., 0]

    def results(self) -> tuple[object, ...]:
        """Return the results of the readouts, in the order of the readouts."""
        accumulators = iter(self.accumulators)
        return tuple(
            next(accumulators).result() if whole is None else readout.finalize(whole, self._tile)
            for readout, whole in self._results
        )


def _allocate(readout: Readout, tile: Tile, like: Float[Tensor, "*_"]) -> Float[Tensor, "*_result"] | None:
    """Return the result of a readout that the first pass over the tiles fills, or None if it needs a second pass."""
    if not (readout.pooling or readout.is_log_sum_exp):
        return None
    (reduction,) = readout.reductions(tile)
    return like.new_zeros((*result_batch(readout, tile.batch), *reduction.shape))
