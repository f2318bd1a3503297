"""The readout `Heads`, which applies another readout to selected heads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.arrays import namespace
from qkv.core.parts import delegates, require_indices
from qkv.core.tile import Tile
from qkv.core.typing import PairArray
from qkv.errors import KindError, ShapeError
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Result, flatten, unflatten

__all__ = ["Heads"]


@delegates("readout", "accepts_tiles", "pooling", "is_log_sum_exp", "largest")
@delegates("readout", "refuse", "element_count", "reductions", "merge", "finalize")
@dataclass(frozen=True, eq=False)
class Heads(Readout):
    """Readout that applies an inner readout to selected heads and returns the results in the order of `heads`.

    The last batch axis is the axis of heads.

    Args:
        readout: the inner readout.
        heads: indices of the heads; negative indices count from the end.

    Raises:
        KindError: `readout` is not a `Readout`.
        OptionError: `heads` is empty or contains an element that is not an integer.
        ShapeError: the call has no batch axis, or an index is out of range.

    Example:
        >>> import numpy as np, qkv
        >>> x = np.zeros((12, 4, 1))
        >>> qkv.observe(x, x, x, readouts=[Heads(qkv.readouts.ColumnSum(), (3, -1))]).readouts[0]
        array([[1., 1., 1., 1.],
               [1., 1., 1., 1.]])
    """

    readout: Readout
    heads: tuple[int, ...]

    def validate(self) -> None:
        if not isinstance(self.readout, Readout):
            raise KindError(
                f"readout of Heads must be a Readout, got {self.readout!r}. Pass one, as in Heads(Entropy(), (0, 3))."
            )
        require_indices(self, "heads")

    @property
    def head_indices(self) -> tuple[int, ...]:  # type: ignore[override]
        """The indices of the heads to which the inner readout is applied."""
        return self.heads

    @property
    def per_head(self) -> Readout:
        return self.readout

    def check(self, tile: Tile) -> None:
        if not tile.batch:
            raise ShapeError(
                "query, key and value must have a batch axis of heads for Heads, got no batch axes. "
                "Pass arrays of shape (heads, length, width)."
            )
        count = tile.batch[-1]
        for head in self.heads:
            if not -count <= head < count:
                raise ShapeError(
                    f"heads of Heads must be from {-count} to {count - 1} for {count} heads, got {head}. Correct them."
                )
        self.readout.check(tile)

    def total_elements(self, tile: Tile) -> int:
        count = self.readout.element_count(tile.q_total, tile.k_total)
        return math.prod(tile.batch[:-1]) * len(self.heads) * count

    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> Result:
        results = []
        for head in self.heads:
            n = head % weights.shape[-3]
            index = (*(slice(None) for _ in tile.batch[:-1]), slice(n, n + 1))
            own_logits, own_weights = logits[..., n : n + 1, :, :], weights[..., n : n + 1, :, :]
            results.append(
                self.readout.read(own_logits, own_weights, normalizer.select_batch(index), tile.select_batch(index))
            )
        arrays = []
        for pieces, field in zip(zip(*map(flatten, results), strict=True), self.reductions(tile), strict=True):
            arrays.append(namespace(*pieces).concat(list(pieces), axis=-len(field.shape) - 1))
        return unflatten(tuple(arrays), results[0])
