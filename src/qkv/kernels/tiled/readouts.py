"""Collection of the readouts of a call during the forward pass over its tiles, without gradients.

Pooled maps are accumulated in the pass that computes the output (`pooled_map.py`), and the log-sum-exp of each query is
a result of this pass. Other readouts need a second pass over the tiles of a row block, immediately after its output is
computed (`kernels/runtime/tile_readouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from qkv.core.batch import BatchIndex
from qkv.core.equation import TorchCall
from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator, result_batch, result_indices
from qkv.kernels.tiled.pooled_map import ElementMap, PooledMaps, supports_pooling
from qkv.readouts import Readout

__all__ = ["ReadoutCollector"]

Kind = Literal["map", "log total", "tiles"]


class ReadoutCollector:
    """Collector that computes the readouts of a call row block by row block during the forward pass.

    Args:
        readouts: the readouts.
        call: the call.

    Attributes:
        accumulator: accumulator of readouts that need a second pass over the tiles; None if there are none.
    """

    def __init__(self, readouts: Sequence[Readout], call: TorchCall) -> None:
        self._kinds = [_kind(readout, call) for readout in readouts]

        def of(kind: Kind) -> list[Readout]:
            return [readout for readout, other in zip(readouts, self._kinds, strict=True) if other == kind]

        self._maps = PooledMaps(of("map"), call.tile, like=call.value)
        self._batch = call.tile.batch
        self._log_totals = [
            (readout, call.value.new_empty((*result_batch(readout, self._batch), call.tile.q_total)))
            for readout in of("log total")
        ]
        self.accumulator = ReadoutAccumulator(of("tiles"), call.tile) if "tiles" in self._kinds else None

    @property
    def in_parallel(self) -> bool:
        """Whether batch elements may be computed in parallel."""
        return self.accumulator is None

    def element_maps(self, index: BatchIndex) -> list[ElementMap]:
        """Return the accumulators of the pooled maps for the batch element at `index`."""
        return self._maps.element(index)

    def add_log_totals(self, index: BatchIndex, rows: tuple[int, int], log_total: Callable[[], Tensor]) -> None:
        """Store the log-sum-exp of a range of queries if a readout of the call needs it.

        Args:
            index: index of the batch element.
            rows: range of the queries.
            log_total: function that computes the log-sum-exp, `(rows, 1)`.
        """
        for readout, whole in self._log_totals:
            for at in result_indices(readout, self._batch, index):
                whole[(*at, slice(*rows))] = log_total()[..., 0]

    def results(self) -> tuple[object, ...]:
        """Return the results of the readouts, in the order of the readouts."""
        results = {
            "map": iter(self._maps.results()),
            "log total": iter([whole for _, whole in self._log_totals]),
            "tiles": iter(self.accumulator.results() if self.accumulator else ()),
        }
        return tuple(next(results[kind]) for kind in self._kinds)


def _kind(readout: Readout, call: TorchCall) -> Kind:
    if supports_pooling(readout, call.normalizer):
        return "map"
    return "log total" if readout.is_log_sum_exp else "tiles"
