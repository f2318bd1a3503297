"""What is read of the weights while a call is folded tile by tile, without gradients.

Maps come out of the pass that makes the output (`block_sums.py`), where softmax allows it, and each query's
total is known when that pass ends. Everything else comes out of a second pass over the tiles of some queries,
right after they were folded (`kernels/runtime/tile_readouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qkv.core.batch import BatchIndex
from qkv.core.equation import BoundCall
from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator
from qkv.kernels.tiled.pooled_map import Blocks, OnePass, one_pass
from qkv.readouts import Readout

__all__ = ["Seen"]


class Seen:
    """The readouts of a call while they are put together.

    Args:
        readouts: what is read.
        call: the call.
    """

    def __init__(self, readouts: Sequence[Readout], call: BoundCall) -> None:
        def of(kind: str) -> list[Readout]:
            return [readout for readout, other in zip(readouts, self._kinds, strict=True) if other == kind]

        self._kinds = [_kind(readout, call) for readout in readouts]
        self._maps = OnePass(of("map"), call.tile, like=call.value) if "map" in self._kinds else None
        self._totals = [_Total(readout, call) for readout in of("total")]
        self.reading = ReadoutAccumulator(of("tiles"), call.tile) if "tiles" in self._kinds else None

    @property
    def many_workers(self) -> bool:
        """Whether batch elements may be read at the same time."""
        return self.reading is None

    def blocks(self, index: BatchIndex) -> Blocks | None:
        """What the loop over the tiles of one batch element calls."""
        return None if self._maps is None else self._maps.element(index)

    def totals(self, index: BatchIndex, rows: tuple[int, int], found: Callable[[], Tensor]) -> None:
        """Some queries were folded; `found` gives the logarithm of the total of each, `(rows, 1)`."""
        for one in self._totals:
            one.put(index, rows, found())

    def results(self) -> tuple[Any, ...]:
        """In the order of the readouts."""
        found = {
            "map": iter(self._maps.results() if self._maps else ()),
            "total": iter([one.whole for one in self._totals]),
            "tiles": iter(self.reading.results() if self.reading else ()),
        }
        return tuple(next(found[kind]) for kind in self._kinds)


def _kind(readout: Readout, call: BoundCall) -> str:
    if one_pass(readout, call.normalizer):
        return "map"
    return "total" if readout.is_log_sum_exp else "tiles"


class _Total:
    """The logarithm of each query's total, of all heads or of some."""

    def __init__(self, readout: Readout, call: BoundCall) -> None:
        tile = call.tile
        self.heads = readout.head_indices
        self.count = tile.batch[-1] if tile.batch else 1
        batch = tile.batch if self.heads is None else (*tile.batch[:-1], len(self.heads))
        self.whole = call.value.new_empty((*batch, tile.q_total))

    def put(self, index: BatchIndex, rows: tuple[int, int], found: Tensor) -> None:
        if self.heads is None:
            self.whole[(*index, slice(*rows))] = found[..., 0]
            return
        for n, head in enumerate(self.heads):
            if head % self.count == index[-1]:
                self.whole[(*index[:-1], n, slice(*rows))] = found[..., 0]
