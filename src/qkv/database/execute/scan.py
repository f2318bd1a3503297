"""Logits of the rows of a store, tile by tile: by any comparison in float64, or from the columns as they lie.

    CellLogits     whatever the comparison; cells are read as a table in memory would read them
    VectorLogits   one column of vectors under an inner product, a cosine or a Gaussian: one product of the
                   mapped file with the queries, and squared lengths that the notes keep
    NumberLogits   columns of numbers under a Gaussian: differences, column by column

The last two take tiles without a missing cell, and leave the others to the first.
"""

import contextlib
import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.equation import BoundCall, bind_call
from qkv.core.tile import Tile
from qkv.database.execute.row_reader import RowTile
from qkv.database.io import arrow_columns
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import Comparison, DistanceComparison
from qkv.errors import StoreFullError
from qkv.normalizers import Identity
from qkv.scores import Cosine, Gaussian
from qkv.scores.base import Score
from qkv.store import Block
from qkv.store.disk import write_synced

__all__ = ["CellLogits", "VectorNorms", "Logits", "fast_logits"]

# A logit may be wrong by so much where it is computed in float32.
_TOLERANCE = 1e-4
_EPSILON = 2.0**-23
_CACHED = 2**18


class Logits(ABC):
    """Logits of tiles for some queries.

    Fields:
        said: how, in a few words for EXPLAIN.
        spare: arrays as long as a tile that are in memory for each query at once.
    """

    said: str
    spare: int = 2

    @abstractmethod
    def rows(self, tile: RowTile) -> Any:
        """What the rows of a tile contribute; None where this is no way to read them."""

    @abstractmethod
    def of(self, rows: Any, start: int, stop: int) -> np.ndarray:
        """`(q, stop − start)` of some of these rows."""

    def missing(self, rows: Any) -> np.ndarray | None:
        """Which of the rows lack a cell; None: none does."""
        return None


@dataclass(eq=False)
class CellLogits(Logits):
    """By the comparison.

    Fields:
        comparison: any.
        columns: the key columns, which give kind, origin and width.
        query: the engine's array of the queries.
        folded: texts are compared folded.
    """

    comparison: Comparison
    columns: Sequence[Column]
    query: np.ndarray
    folded: bool
    said: str = "cells in float64, as in memory"

    def rows(self, tile: RowTile) -> tuple[BoundCall, np.ndarray | None]:
        """The call made ready, and which rows lack a cell."""
        read = [Column.from_table(tile.table, column.name, self.folded, column) for column in self.columns]
        key = self.comparison.query([column.cells for column in read])
        missing = np.logical_or.reduce([column.missing for column in read])
        return self.call(key), missing if missing.any() else None

    def call(self, key: np.ndarray) -> BoundCall:
        """The call over these keys."""
        value = np.zeros((len(key), 1))
        return bind_call(self.query, key, value, score=self.comparison.score, normalizer=Identity())

    def of(self, rows: Any, start: int, stop: int) -> np.ndarray:
        """By the score."""
        call: BoundCall = rows[0]
        with ignore_numpy_warnings():
            logits = call.logits((0, call.tile.q_total), (start, stop))
        return np.array(logits)  # a broadcast cannot be written to

    def missing(self, rows: Any) -> np.ndarray | None:
        """Where a cell is."""
        absent: np.ndarray | None = rows[1]
        return absent


def fast_logits(
    comparison: Comparison, columns: Sequence[Column], query: np.ndarray, lengths: "VectorNorms"
) -> Logits | None:
    """A faster way for this comparison; None where there is none."""
    score = comparison.score
    own = [columns[index] for index in comparison.columns]
    if len(own) == 1 and own[0].kind == "vector" and arrow_columns.float_dtype(own[0].type) is not None:
        scalar = all(np.ndim(array) == 0 for array in score.arrays())
        if scalar and (isinstance(score, Cosine | Gaussian) or (score.is_scaled_dot and not score.positional)):
            return VectorLogits(score, own[0], query, lengths)
    numbers = isinstance(comparison, DistanceComparison) and all(column.kind == "number" for column in own)
    if numbers and isinstance(score, Gaussian) and np.ndim(score.bandwidth) == 0:
        assert isinstance(comparison, DistanceComparison)
        return NumberLogits(comparison, own, query)
    return None


class VectorLogits(Logits):
    """logit = a · ⟨q, k⟩ · (1/‖k‖) for a cosine, and a · ⟨q, k⟩ − b (‖k‖² + ‖q‖²) for a Gaussian."""

    spare: int = 4

    def __init__(self, score: Score, column: Column, query: np.ndarray, lengths: "VectorNorms") -> None:
        dtype = arrow_columns.float_dtype(column.type)
        assert dtype is not None
        self.column, self.dtype, self.lengths = column.name, dtype, lengths
        self.kind = "squares" if isinstance(score, Gaussian) else "inverse"
        if not isinstance(score, Cosine | Gaussian):
            self.kind = ""
        self.said = f"one product of the mapped vectors with the queries, in {dtype}"
        query = np.asarray(query, np.float64)
        if isinstance(score, Cosine):
            tile = Tile.whole(len(query), 1)
            query = np.asarray(score.lift(query, query[:1], tile)[0])
        elif isinstance(score, Gaussian):
            self.half = 0.5 / float(score.bandwidth) ** 2
            self.exact, self.square = query, np.square(query).sum(axis=1)
            query = query * (2 * self.half)
        else:
            query, _, scale = score.scaled_lift(query, query[:1], Tile.whole(len(query), 1))
            query = query * scale
        self.query = np.ascontiguousarray(query, dtype)
        self._room, self._out = np.empty(0, dtype), np.empty((1, 0), dtype)

    def rows(self, tile: RowTile) -> Any:
        """The matrix as it lies in the file, what their lengths give, and the largest of that."""
        chunks = tile.table.column(self.column).chunks
        if len(chunks) != 1 or chunks[0].null_count:
            return None
        matrix = arrow_columns.matrix(chunks[0])
        if matrix is None or not self.kind:
            return None if matrix is None else (matrix, None, 0.0)
        found, largest = self.lengths.of(tile, self.column, self.kind)
        return (matrix, found, largest) if largest < np.inf else None  # else the dtype cannot hold them

    def of(self, rows: Any, start: int, stop: int) -> np.ndarray:
        """One product."""
        matrix, lengths, largest = rows[0][start:stop], rows[1], rows[2]
        if len(self.query) == 1:
            if self._out.shape[1] < len(matrix):
                self._out = np.empty((1, len(matrix)), self.dtype)
            logits: np.ndarray = self._out[:, : len(matrix)]
            np.matmul(matrix, self.query[0], out=logits[0])
        else:
            logits = np.matmul(self.query, matrix.T)
        if not self.kind:
            return logits
        lengths = lengths[start:stop]
        if self.kind == "inverse":
            logits *= lengths
            return logits
        # ‖k − q‖² as a difference of large numbers: right only where they are not large beside the bandwidth.
        largest = max(largest, float(self.square.max(initial=0)))
        if self.dtype == np.float32 and _EPSILON * largest * self.half > _TOLERANCE:
            return self._differences(matrix)
        if len(self._room) < len(lengths):
            self._room = np.empty(len(lengths), self.dtype)
        logits -= np.multiply(lengths, self.dtype.type(self.half), out=self._room[: len(lengths)])
        logits -= (self.half * self.square).astype(self.dtype)[:, None]
        return logits

    def _differences(self, matrix: np.ndarray) -> np.ndarray:
        logits = np.empty((len(self.query), len(matrix)))
        for query, out in zip(self.exact, logits, strict=True):
            apart = matrix - query
            np.einsum("ij,ij->i", apart, apart, out=out)
        logits *= -self.half
        return logits


class VectorNorms:
    """Squared lengths of vectors, or 1 by their lengths: a file of notes for each block, mapped when met.

    NaN where the dtype cannot hold them; 0 in place of 1 by the length of a zero vector.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[np.ndarray, float]] = {}

    def of(self, tile: RowTile, column: str, kind: str) -> tuple[np.ndarray, float]:
        """For the rows of a tile, and the largest of its block; inf where one is no number."""
        block = tile.block
        asked = (block.name, column, kind)
        if asked not in self._known:
            found = self._of_block(block, column, kind, tile.notes)
            largest = float(found.max(initial=0.0))
            self._known[asked] = found, largest if largest < np.inf else np.inf
        found, largest = self._known[asked]
        if block.kept is not None:
            found = found[block.kept]
        return found[tile.start : tile.start + tile.table.num_rows], largest

    def _of_block(self, block: Block, column: str, kind: str, notes: Path) -> np.ndarray:
        """From the notes, or computed and noted."""
        name = hashlib.sha256(f"{block.name} {column}".encode()).hexdigest()[:24]
        home = notes / f"{kind}-{name}.npy"
        try:
            mapped: np.ndarray = np.load(home, mmap_mode="r")
            if len(mapped) == block.table.num_rows:
                return mapped
        except (OSError, ValueError, EOFError):
            pass
        parts = []
        for chunk in block.table.column(column).chunks:
            matrix = arrow_columns.matrix(chunk)
            parts.append(np.full(len(chunk), np.nan) if matrix is None else _lengths(matrix, kind))
        found = np.concatenate([np.zeros(0, np.float32), *parts])
        data = io.BytesIO()
        np.save(data, found)
        # Where they cannot be noted they are found again the next time.
        with contextlib.suppress(OSError, StoreFullError):
            home.parent.mkdir(exist_ok=True)
            write_synced(home, data.getvalue())
        return found


def _lengths(matrix: np.ndarray, kind: str) -> np.ndarray:
    squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if kind == "inverse":
            squares = np.where(squares == 0, 0.0, 1 / np.sqrt(squares))
        # Where the dtype would make 0 of what is none, it is no number: the cells are read then.
        squares[(squares > 0) & (squares < 1e-30)] = np.nan
        found = squares.astype(matrix.dtype)
    return np.asarray(np.where(np.isfinite(found), found, found.dtype.type(np.nan)))


class NumberLogits(Logits):
    """logit = −Σ_j ((k_j − q_j) / (scale_j h √2))²"""

    spare: int = 3
    said: str = "differences, column by column"
    kinds: ClassVar[str] = "iuf"

    def __init__(self, comparison: DistanceComparison, columns: Sequence[Column], query: np.ndarray) -> None:
        score = comparison.score
        assert isinstance(score, Gaussian)
        self.names = [column.name for column in columns]
        self.query = np.asarray(query, np.float64) * comparison.scale + comparison.place
        self.factor = 1.0 / (comparison.scale * float(score.bandwidth) * np.sqrt(2.0))
        # Where float32 would round the query by more than is allowed, that column is read in float64.
        rounding = _EPSILON * np.abs(self.query).max(axis=0, initial=0) * self.factor
        self.coarse = rounding < _TOLERANCE / 10

    def rows(self, tile: RowTile) -> Any:
        """The columns as they lie in the file; float64 where float32 would not do."""
        found = []
        for name, coarse in zip(self.names, self.coarse, strict=True):
            column = tile.table.column(name)
            if column.num_chunks != 1 or column.null_count:
                return None
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.units(chunk)
            single = cells.dtype == np.float32 and coarse
            found.append(cells if single or cells.dtype == np.float64 else cells.astype(np.float64))
        return found

    def of(self, rows: Any, start: int, stop: int) -> np.ndarray:
        """Squares of differences, summed: some thousand rows at a time, which stay in the cache."""
        dtype = np.result_type(*{cells.dtype for cells in rows})
        logits = np.empty((len(self.query), stop - start), dtype)
        squared = -np.square(self.factor).astype(dtype)
        room = np.empty((len(rows), _CACHED // len(rows)), dtype)
        for query, out in zip(self.query, logits, strict=True):
            places = [cells.dtype.type(tile) for cells, tile in zip(rows, query, strict=True)]
            for first in range(0, stop - start, room.shape[1]):
                last = min(first + room.shape[1], stop - start)
                apart = room[:, : last - first]
                for cells, tile, row in zip(rows, places, apart, strict=True):
                    np.subtract(cells[start + first : start + last], tile, out=row)
                np.multiply(apart, apart, out=apart)
                np.matmul(squared, apart, out=out[first:last])
        return logits
