"""The readout `Rows`, which returns the weights of selected queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import asarray_like, namespace
from qkv.core.parts import require_indices
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.errors import ShapeError
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction

__all__ = ["Rows"]


@dataclass(frozen=True, eq=False)
class Rows(Readout):
    """Readout that returns the weights of the selected queries, `(*batch, len(rows), k)`, in the order of `rows`.

    Args:
        rows: indices of the queries; negative indices count from the end.

    Raises:
        OptionError: `rows` is empty or contains an element that is not an integer.
        ShapeError: an index is out of range.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.array([[0.0], [9.0]])
        >>> qkv.observe(rows, rows, rows, readouts=[Rows((-2,))]).readouts[0]
        array([[0.5, 0.5]])
    """

    rows: tuple[int, ...]

    def validate(self) -> None:
        require_indices(self, "rows")

    def check(self, tile: Tile) -> None:
        q = tile.q_total
        for row in self.rows:
            if not -q <= row < q:
                raise ShapeError(f"rows of Rows must be from {-q} to {q - 1} for {q} queries, got {row}.")

    def element_count(self, q: int, k: int) -> int:
        """Return twice the number of selected weights, which are copied into the order of `rows` at the end."""
        return 2 * len(self.rows) * k

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch n k"]:
        first, last = tile.rows
        here = [row - first for row in self._ascending(tile) if first <= row < last]
        index = asarray_like(weights, np.asarray(here)) if here else None
        return weights[..., :0, :] if index is None else namespace(weights).take(weights, index, axis=-2)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        before, upto = (sum(row < limit for row in self._ascending(tile)) for limit in tile.rows)
        at = (slice(before, upto), slice(*tile.cols))
        return (Reduction((len(self.rows), tile.k_total), at),)

    def finalize(self, whole: Float[Array, "*batch n k"], tile: Tile) -> Float[Array, "*batch n k"]:
        ascending = sorted(range(len(self.rows)), key=lambda n: self.rows[n] % tile.q_total)
        if ascending == list(range(len(self.rows))):
            return whole
        back = [ascending.index(n) for n in range(len(self.rows))]
        return namespace(whole).take(whole, asarray_like(whole, np.asarray(back)), axis=-2)

    def _ascending(self, tile: Tile) -> list[int]:
        return sorted(row % tile.q_total for row in self.rows)
