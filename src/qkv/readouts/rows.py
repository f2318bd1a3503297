"""Rows: the weights of some queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.arrays import Array, asarray_like, namespace
from qkv.core.tile import Tile
from qkv.errors import OptionError, ShapeError
from qkv.readouts.base import Readout, Reduction

__all__ = ["Rows"]


@dataclass(frozen=True, eq=False)
class Rows(Readout):
    """The weights of the queries named, `(*batch, len(rows), k)`, in the order named.

    Args:
        rows: indices of queries; negative ones count from the end.

    Raises:
        OptionError: no index, or one that is no whole number.
        ShapeError: an index beyond the queries.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.array([[0.0], [9.0]])
        >>> qkv.observe(rows, rows, rows, readouts=[Rows((-2,))]).readouts[0]
        array([[0.5, 0.5]])
    """

    rows: tuple[int, ...]

    def validate(self) -> None:
        """Whole numbers."""
        object.__setattr__(self, "rows", tuple(self.rows))
        if not self.rows or not all(isinstance(row, int) for row in self.rows):
            raise OptionError(f"Rows was given {self.rows!r}. Give one or more whole numbers.")

    def check(self, tile: Tile) -> None:
        """There are that many queries."""
        q = tile.q_total
        for row in self.rows:
            if not -q <= row < q:
                raise ShapeError(f"Rows asks for query {row}, there are {q}.")

    def element_count(self, q: int, k: int) -> int:
        """Some rows, put in order at the end."""
        return 2 * len(self.rows) * k

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """Those of the named queries that are here, in ascending order."""
        first, last = tile.rows
        here = [row - first for row in self._ascending(tile) if first <= row < last]
        index = asarray_like(weights, np.asarray(here)) if here else None
        return weights[..., :0, :] if index is None else namespace(weights).take(weights, index, axis=-2)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Ascending rows: those named before this tile, then those in it."""
        before, upto = (sum(row < limit for row in self._ascending(tile)) for limit in tile.rows)
        at = (slice(before, upto), slice(*tile.cols))
        return (Reduction((len(self.rows), tile.k_total), at),)

    def finalize(self, whole: Array, tile: Tile) -> Array:
        """In the order named."""
        ascending = sorted(range(len(self.rows)), key=lambda n: self.rows[n] % tile.q_total)
        back = [ascending.index(n) for n in range(len(self.rows))]
        return namespace(whole).take(whole, asarray_like(whole, np.asarray(back)), axis=-2)

    def _ascending(self, tile: Tile) -> list[int]:
        return sorted(row % tile.q_total for row in self.rows)
