"""What is read of the weights while a call is folded tile by tile, without gradients.

Maps come out of the pass that makes the output (`block_sums.py`), where softmax allows it; everything else
out of a second pass over the tiles of some queries, right after they were folded (`kernels/reading.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.core.batch import Index
from qkv.core.equation import Ready
from qkv.kernels.reading import Reading
from qkv.kernels.tiles.block_sums import Blocks, OnePass, one_pass
from qkv.readouts import Readout

__all__ = ["Seen"]


class Seen:
    """The readouts of a call while they are put together.

    Args:
        readouts: what is read.
        ready: the call.
    """

    def __init__(self, readouts: Sequence[Readout], ready: Ready) -> None:
        self._at_once = [one_pass(readout, ready.normalizer) for readout in readouts]
        now = [readout for readout, first in zip(readouts, self._at_once, strict=True) if first]
        later = [readout for readout, first in zip(readouts, self._at_once, strict=True) if not first]
        self._maps = OnePass(now, ready.place, like=ready.value) if now else None
        self.reading = Reading(later, ready.place) if later else None

    @property
    def many_workers(self) -> bool:
        """Whether batch elements may be read at the same time."""
        return self.reading is None

    def blocks(self, index: Index) -> Blocks | None:
        """What the loop over the tiles of one batch element calls."""
        return None if self._maps is None else self._maps.element(index)

    def results(self) -> tuple[Any, ...]:
        """In the order of the readouts."""
        now = iter(self._maps.results() if self._maps else ())
        later = iter(self.reading.results() if self.reading else ())
        return tuple(next(now) if first else next(later) for first in self._at_once)
