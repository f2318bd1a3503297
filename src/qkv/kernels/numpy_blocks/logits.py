"""Logits of tiles in NumPy, in one buffer, minus a number for each query: what the NumPy block kernel sums.

Each side's own work is done once: a query's for the whole call, a key's once for each tile of keys, which
all queries then meet. Keys are never copied as a whole, so a memory-mapped table stays on disk.

    ProductLogits   an inner product of lifted sides: a matrix product, with log2 e and the shift folded in
    PairLogits      any other score: its `pair` of two sides

Buffers lie keys first, `(*batch, cols, rows)`, and are seen as `(*batch, rows, cols)`: BLAS multiplies a few
queries with many keys 15 % faster that way.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.arrays import cast, is_text
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.tile import Tile
from qkv.kernels.numpy_blocks.exponential import NATURAL, Exponential, exponential
from qkv.kernels.runtime.tile_loop import Limits

__all__ = ["Logits", "PairLogits", "ProductLogits", "logits_of"]

_SAMPLE = 256
"""Keys from which a centre is taken, at most."""


@dataclass
class Side:
    """The lifted queries of a block, or the keys of a tile; `term` is a column `(*batch, rows, 1)` to add."""

    vectors: np.ndarray
    term: np.ndarray | None = None


class Logits(ABC):
    """Tiles of logits of one call, perhaps of some of its batch elements.

    Attributes:
        exp: of these logits, which are multiplied by its unit.
    """

    exp: Exponential = NATURAL

    def __init__(self, call: BoundCall) -> None:
        self.call = call
        self.dtype = np.dtype(call.dtype)
        self.tile: Tile = call.tile

    @abstractmethod
    def left(self, rows: Limits) -> Side:
        """What some queries contribute by themselves."""

    @abstractmethod
    def right(self, cols: Limits, rows: int) -> np.ndarray:
        """What some keys contribute by themselves, to meet blocks of `rows` queries."""

    @abstractmethod
    def meet(
        self,
        left: Side,
        right: np.ndarray,
        rows: Limits,
        cols: Limits,
        shift: np.ndarray | None,
        e: np.ndarray,
    ) -> None:
        """Write the logits of a tile, times the unit, minus `shift`, into `e`."""

    def _parts(self, rows: Limits, cols: Limits) -> tuple[Any, np.ndarray, np.ndarray, Tile]:
        """The score, queries, keys and place of a tile."""
        call = self.call
        score = call.score.slice(slice(*rows), slice(*cols))
        return score, call.queries(rows), call.keys(cols), self.tile.restrict(rows, cols)


class ProductLogits(Logits):
    """Of a score that is an inner product of its lifted sides, plus a term of the query."""

    def __init__(self, call: BoundCall) -> None:
        super().__init__(call)
        self.exp = exponential(str(self.dtype))
        self.tile = dataclasses.replace(call.tile, centre=_centre(call))
        self.room = np.empty(0, dtype=self.dtype)
        self.has_term = False

    def left(self, rows: Limits) -> Side:
        """Lifted, times the unit, with one more column that can hold the term and the shift."""
        score, query, key, tile = self._parts(rows, (0, 1))
        vectors = cast(score.lift(query, key, tile)[0], self.dtype)
        term = score.query_term(query, tile)
        unit = self.exp.unit
        self.has_term = term is not None
        wide = np.empty((*vectors.shape[:-1], vectors.shape[-1] + 1), dtype=self.dtype)
        np.multiply(vectors, unit, out=wide[..., :-1])
        wide[..., -1] = 0
        return Side(wide, None if term is None else cast(term, self.dtype)[..., None] * unit)

    def right(self, cols: Limits, rows: int) -> np.ndarray:
        """Lifted; with one more column of ones where that is little work beside that of the pairs."""
        score, query, key, tile = self._parts((0, 1), cols)
        vectors = cast(score.lift(query, key, tile)[1], self.dtype)
        if not self.has_term and 4 * vectors.shape[-1] > rows:
            return vectors
        shape = (*vectors.shape[:-1], vectors.shape[-1] + 1)
        size = int(np.prod(shape))
        if self.room.size < size:
            self.room = np.empty(size, dtype=self.dtype)
        wide = self.room[:size].reshape(shape)
        wide[..., :-1] = vectors
        wide[..., -1] = 1
        return wide

    def meet(
        self,
        left: Side,
        right: np.ndarray,
        rows: Limits,
        cols: Limits,
        shift: np.ndarray | None,
        e: np.ndarray,
    ) -> None:
        """One matrix product, and one subtraction where the keys have no column of ones."""
        vectors, term = left.vectors, left.term
        if right.shape[-1] == vectors.shape[-1]:
            _last(vectors, term, shift)
            np.matmul(right, vectors.swapaxes(-1, -2), out=e.swapaxes(-1, -2))
            return
        np.matmul(right, vectors[..., :-1].swapaxes(-1, -2), out=e.swapaxes(-1, -2))
        if shift is not None:
            np.subtract(e, shift, out=e)


class PairLogits(Logits):
    """Of any score, and under any normalizer that prepares its logits."""

    def __init__(self, call: BoundCall) -> None:
        super().__init__(call)
        self.tile = dataclasses.replace(call.tile, centre=_centre(call))

    def left(self, rows: Limits) -> Side:
        """The query's side."""
        score, query, key, tile = self._parts(rows, (0, 1))
        return Side(score.project(query, key, tile)[0])

    def right(self, cols: Limits, rows: int) -> np.ndarray:
        """The key's side."""
        score, query, key, tile = self._parts((0, 1), cols)
        return score.project(query, key, tile)[1]

    def meet(
        self,
        left: Side,
        right: np.ndarray,
        rows: Limits,
        cols: Limits,
        shift: np.ndarray | None,
        e: np.ndarray,
    ) -> None:
        """The score's pair, prepared."""
        score = self.call.score.slice(slice(*rows), slice(*cols))
        logits = cast(score.projected_logits(left.vectors, right, self.tile.restrict(rows, cols)), self.dtype)
        logits = self.call.normalizer.prepare(logits)
        np.subtract(logits, 0 if shift is None else shift, out=e)


def logits_of(call: BoundCall) -> Logits:
    """The kind of logits that the score's facts allow."""
    one = np.ones((*(1 for _ in call.batch), 1, 1), dtype=call.dtype)
    prepares = call.normalizer.prepare(one) is not one
    return PairLogits(call) if prepares or not call.score.is_inner_product else ProductLogits(call)


def _centre(call: BoundCall) -> Any:
    """One point that all tiles share: of some keys, since no pass over all of them is worth its digits."""
    if is_text(call.key) or call.score.centre(call.key[..., :1, :]) is None:
        return None
    key = call.key[..., :: max(1, -(-call.key.shape[-2] // _SAMPLE)), :]
    return call.score.centre(zero_nonfinite(key if call.score.keeps_dtype else cast(key, call.dtype)))


def _last(vectors: np.ndarray, term: np.ndarray | None, shift: np.ndarray | None) -> None:
    """The last column becomes term − shift."""
    if term is None and shift is None:
        return
    vectors[..., -1:] = 0.0 if term is None else term
    if shift is not None:
        vectors[..., -1:] -= shift
