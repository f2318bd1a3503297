"""Computation of the logits of the rows of a store, tile by tile.

    CellLogits     any comparison, computed in float64 like in memory
    VectorLogits   one column of vectors with an inner product, a cosine or a Gaussian: one matrix product of the
                   memory-mapped vectors and the queries; norms are read from the cache folder
    NumberLogits   columns of numbers with a Gaussian: differences, column by column

The last two handle tiles without missing cells only; `CellLogits` handles the others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.checksums import digest
from qkv.core.equation import BoundCall, bind_call
from qkv.core.tile import Tile
from qkv.core.typing import Bool, Float, Num, Shaped
from qkv.database.execute.row_reader import RowTile, read_note, save_note
from qkv.database.keys.comparisons import Comparison, DistanceComparison
from qkv.encoders import arrow_columns
from qkv.encoders.columns import Column
from qkv.normalizers import Identity
from qkv.plan.precise_call import lift_suffices
from qkv.scores.base import Score
from qkv.scores.forms import ScaledProduct, SquaredDistance, UnitProduct
from qkv.store import Block
from qkv.store.block import RunningCheck

if TYPE_CHECKING:
    from qkv.core.typing import Tensor


class DeviceProducts:
    """Products of the vectors of one version of a store, some of which stay on a device.

    Args:
        device: the device of PyTorch, such as "cuda".
        most_bytes: bytes of vectors that stay on the device; None: half of its free memory.
    """

    def __init__(self, device: str, most_bytes: int | None = None) -> None:
        import torch

        self.device, self._tensors = torch.device(device), dict[tuple[str, str, int], "Tensor"]()
        if most_bytes is None:
            most_bytes = torch.cuda.mem_get_info(self.device)[0] // 2
        self._free = most_bytes

    def multiply(
        self,
        name: tuple[str, str, int],
        matrix: Float[np.ndarray, "rows width"],
        rows: slice,
        query: Float[np.ndarray, "q width"],
    ) -> Float[np.ndarray, "q n"] | None:
        """Return the products of the queries and some rows of a matrix, or None if the matrix is not on the device.

        Args:
            name: block, column and first row of the matrix, which name it within the version of the store.
            matrix: the vectors of a tile.
            rows: the rows to multiply.
            query: the queries, of the same dtype.
        """
        import torch

        if name not in self._tensors:
            if matrix.nbytes > self._free or matrix.dtype not in (np.float32, np.float64):
                return None
            self._free -= matrix.nbytes
            self._tensors[name] = torch.tensor(matrix, device=self.device)
        left = torch.tensor(query, device=self.device)
        return np.asarray((left @ self._tensors[name][rows].mT).cpu().numpy())


# Largest error of a logit that is computed in float32.
_TOLERANCE = 1e-4
_EPSILON = 2.0**-23
_CACHED = 2**18

_PIECE = 2**19
"""Number of bytes whose checksum is computed before they are multiplied: half of the second cache of a core."""

_Rows = TypeVar("_Rows")


class Logits(ABC, Generic[_Rows]):
    """Base class of objects that compute the logits of the rows of a tile for a group of queries.

    Attributes:
        description: the computation in a few words, for the printed plan.
        arrays_per_query: number of arrays of the length of a tile that are allocated per query.
        summed: whether the logits of each query will be summed and must be contiguous, as NumPy then sums pairwise.
    """

    description: str
    arrays_per_query: int = 2
    summed: bool = False

    @abstractmethod
    def load(self, tile: RowTile) -> _Rows | None:
        """Return the rows of a tile in the form that `compute` takes, or None if the class does not support them."""

    @abstractmethod
    def compute(self, rows: _Rows, start: int, stop: int) -> Float[np.ndarray, "q n"]:
        """Return the logits `(q, n)` of the rows of a loaded tile from `start` to `stop`, exclusive."""

    def missing(self, rows: _Rows) -> Bool[np.ndarray, " rows"] | None:
        """Return a boolean array that is True for the rows with a missing cell, or None if no cell is missing."""
        return None


_CellRows = tuple[BoundCall, Shaped[np.ndarray, " rows"] | None]


@dataclass(eq=False)
class CellLogits(Logits[_CellRows]):
    """Logits of the rows of a tile by the score of any comparison, computed in float64.

    Attributes:
        comparison: the comparison.
        columns: the key columns, which give the kind, origin and width of the cells.
        query: the query array of the engine.
        folded: whether texts are folded.
    """

    comparison: Comparison
    columns: Sequence[Column]
    query: Shaped[np.ndarray, "q ..."]
    folded: bool
    description: str = "cells in float64, as in memory"

    def load(self, tile: RowTile, few: int = 1) -> _CellRows | None:
        """Return a bound call over a tile, and a boolean array that marks rows with missing cells, or None.

        Distances in at most `few` columns are computed from differences: the rounding of a product would decide between
        equally distant keys, and differently in each fragment.
        """
        columns = [Column.from_table(tile.table, column.name, self.folded, column) for column in self.columns]
        key = self.comparison.query_array(columns)
        missing = np.logical_or.reduce([column.missing for column in columns])
        return self.bind(key, few), missing if missing.any() else None

    def bind(self, key: Shaped[np.ndarray, "rows ..."], few: int = 1) -> BoundCall:
        """Return a bound call of the queries and a key array, from which logits are computed."""
        value = np.zeros((len(key), 1))
        call = bind_call(self.query, key, value, score=self.comparison.score, normalizer=Identity())
        exact = key.ndim == 2 and key.shape[1] <= few
        if call.score.cancels and len(key) and (exact or lift_suffices(call.score, call.query, call.key) is not True):
            call = replace(call, score=call.score.by_differences())
        return call

    def compute(self, rows: _CellRows, start: int, stop: int) -> Float[np.ndarray, "q n"]:
        """Return the logits of the rows of a loaded tile, computed by the score of the comparison."""
        call = rows[0]
        with ignore_numpy_warnings():
            logits = call.logits((0, call.tile.q_total), (start, stop))
        return np.array(logits)  # a copy, as a broadcast array is read-only

    def missing(self, rows: _CellRows) -> Bool[np.ndarray, " rows"] | None:
        return rows[1]


def exact_logits(comparison: Comparison, query: Shaped[np.ndarray, "q ..."]) -> Float[np.ndarray, "q rows"]:
    """Return the logits of all keys of a comparison, computed in float64."""
    cells, count = CellLogits(comparison, (), query, folded=True), len(comparison.key)
    return cells.compute((cells.bind(comparison.key), None), 0, count) if count else np.zeros((len(query), 0))


def fast_logits(
    comparison: Comparison,
    columns: Sequence[Column],
    query: Shaped[np.ndarray, "q ..."],
    norms: VectorNorms,
    products: DeviceProducts | None = None,
) -> VectorLogits | NumberLogits | None:
    """Return a `VectorLogits` or a `NumberLogits` for a comparison, or None if neither supports it.

    `norms` caches the norms of vectors, and `products` multiplies vectors on a GPU.
    """
    score = comparison.score
    own = [columns[index] for index in comparison.columns]
    if len(own) == 1 and own[0].kind == "vector" and arrow_columns.float_dtype(own[0].type) is not None:
        scalar = all(np.ndim(np.asarray(array)) == 0 for array in score.arrays())
        if scalar and (_norm_kind(score) or (isinstance(score.form, ScaledProduct) and not score.positional)):
            return VectorLogits(score, own[0], query, norms, products)
    if isinstance(comparison, DistanceComparison) and _squares_factor(score) is not None:
        return NumberLogits(comparison, own, query) if all(column.kind == "number" for column in own) else None
    return None


@dataclass(frozen=True, eq=False)
class _VectorRows:
    """The vectors of a tile.

    Attributes:
        matrix: the vectors.
        norms: their norms; None for an inner product.
        largest: the largest norm.
        check: the check of the block; None if the block is verified.
        name: the block, the column and the first row.
    """

    matrix: Float[np.ndarray, "rows width"]
    norms: Float[np.ndarray, " rows"] | None
    largest: float
    check: RunningCheck | None
    name: tuple[str, str, int]


class VectorLogits(Logits[_VectorRows]):
    """Logits of a column of vectors, computed by one matrix product of the keys and the queries.

    The logit is a ⟨q, k⟩ for an inner product, a ⟨q, k⟩ / ‖k‖ for a cosine and a ⟨q, k⟩ − b (‖k‖² + ‖q‖²) for a
    Gaussian.
    """

    arrays_per_query: int = 4

    def __init__(
        self,
        score: Score,
        column: Column,
        query: Shaped[np.ndarray, "q width"],
        norms: VectorNorms,
        products: DeviceProducts | None = None,
    ) -> None:
        dtype = arrow_columns.float_dtype(column.type)
        assert dtype is not None
        self.column, self.dtype, self.norms, self.products = column.name, dtype, norms, products
        self.kind = _norm_kind(score)
        self.description = f"one product of the mapped vectors with the queries, in {dtype}"
        query = np.asarray(query, np.float64)
        tile = Tile.whole(len(query), 1)
        if (factor := _squares_factor(score)) is not None:
            self.factor = factor
            self.exact, self.square = query, np.square(query).sum(axis=1)
            query = query * (2 * self.factor)
        else:
            lifted, _, scale = score.scaled_lift(query, query[:1], tile)
            query = np.asarray(lifted) * scale
        self.query = np.ascontiguousarray(query, dtype)
        self._workspace, self._out = np.empty(0, dtype), np.empty(0, dtype)
        self._rounding = np.finfo(dtype).eps * np.linalg.norm(query, axis=1, keepdims=True)
        self._largest = 0.0

    def load(self, tile: RowTile) -> _VectorRows | None:
        """Return the vectors of a tile, or None if it has nulls, or norms that overflow or are too large for the dtype.

        Products of large vectors are rounded by more than the differences of logits that matter.
        """
        chunks = tile.table.column(self.column).chunks
        if len(chunks) != 1 or chunks[0].null_count:
            return None
        matrix = arrow_columns.vector_matrix(chunks[0])
        if matrix is None:
            return None
        name, check = (tile.block.name, self.column, tile.start), tile.block.check
        norms, largest = self.norms.load(tile, self.column, self.kind or "squares")
        length = 1.0 if self.kind == "inverse" else math.sqrt(largest)
        if largest == np.inf or (self.kind != "squares" and (self._rounding * length > _TOLERANCE).any()):
            return None
        self._largest = max(self._largest, length)
        return _VectorRows(matrix, norms if self.kind else None, largest, check, name)

    def error(self, logits: Float[np.ndarray, "q 1"]) -> Float[np.ndarray, "q 1"]:
        """Return an estimate of the rounding errors of logits of the given sizes, beyond those of float64."""
        return np.asarray(self._rounding * self._largest + 4 * np.finfo(self.dtype).eps * np.abs(logits))

    def compute(self, rows: _VectorRows, start: int, stop: int) -> Float[np.ndarray, "q n"]:
        matrix, norms, largest, check = rows.matrix[start:stop], rows.norms, rows.largest, rows.check
        logits: Float[np.ndarray, "q n"] | None = None
        if self.products is not None:
            logits = self.products.multiply(rows.name, rows.matrix, slice(start, stop), self.query)
        if logits is not None:
            if check is not None:
                check.advance(_address(matrix, len(matrix)))
        else:
            pairs = len(self.query) * len(matrix)
            if len(self._out) < pairs:
                self._out = np.empty(pairs, self.dtype)
            logits = self._out[:pairs].reshape(len(self.query), -1)
            if len(self.query) == 1:
                self._multiply(matrix, check, logits[0])
            else:
                if check is not None:
                    check.advance(_address(matrix, len(matrix)))
                if not self.summed:  # BLAS multiplies a few queries with many rows faster if the rows are on the left
                    logits = self._out[:pairs].reshape(-1, len(self.query)).T
                np.matmul(self.query, matrix.T, out=logits)
        if norms is None:
            return logits
        norms = norms[start:stop]
        if self.kind == "inverse":
            logits *= norms
            return logits
        # ‖k − q‖² is a difference of squared norms, which is inaccurate if they are large relative to the bandwidth.
        largest = max(largest, float(self.square.max(initial=0)))
        if np.finfo(self.dtype).eps * largest * self.factor > _TOLERANCE:
            return self._from_differences(matrix)
        if len(self._workspace) < len(norms):
            self._workspace = np.empty(len(norms), self.dtype)
        logits -= np.multiply(norms, self.dtype.type(self.factor), out=self._workspace[: len(norms)])
        logits -= (self.factor * self.square).astype(self.dtype)[:, None]
        return logits

    def _multiply(
        self, matrix: Float[np.ndarray, "n width"], check: RunningCheck | None, out: Float[np.ndarray, " n"]
    ) -> None:
        """Write the products of the rows of a matrix and the query to `out`.

        A running checksum reads each piece from memory in order, so that the product finds it in the cache. Both take
        less time than the product alone.
        """
        # Libraries multiply groups of rows, so that multiples of 64 rows give the same bits as all rows at once.
        step = len(matrix) if check is None else 64 * max(1, _PIECE // max(1, 64 * matrix.strides[0]))
        for start in range(0, len(matrix), max(1, step)):
            stop = min(start + step, len(matrix))
            if check is not None:
                check.advance(_address(matrix, stop))
            np.matmul(matrix[start:stop], self.query[0], out=out[start:stop])

    def _from_differences(self, matrix: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "q n"]:
        logits = np.empty((len(self.query), len(matrix)))
        for query, out in zip(self.exact, logits, strict=True):
            difference = matrix - query
            np.einsum("ij,ij->i", difference, difference, out=out)
        logits *= -self.factor
        return logits


def _address(matrix: Float[np.ndarray, "n width"], row: int) -> int:
    """Return the address in memory of a row of a matrix, or of its end."""
    return int(matrix.__array_interface__["data"][0]) + row * matrix.strides[0]


class VectorNorms:
    """Cache of the squared or inverse norms of vectors, with one file per block and column.

    A norm is NaN if the dtype cannot represent it; the inverse norm of a zero vector is 0.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str, str], tuple[np.ndarray, float]] = {}

    def load(self, tile: RowTile, column: str, kind: str) -> tuple[Float[np.ndarray, " rows"], float]:
        """Return the norms of the vectors of a tile, and the largest norm of its block, or inf if a norm is NaN."""
        block = tile.block
        name = (block.name, column, kind)
        if name not in self._loaded:
            norms = self._of_block(block, column, kind, tile.cache)
            largest = float(norms.max(initial=0.0))
            self._loaded[name] = norms, largest if largest < np.inf else np.inf
        norms, largest = self._loaded[name]
        if block.present is not None:
            norms = norms[block.present]
        return norms[tile.start : tile.start + tile.table.num_rows], largest

    def _of_block(self, block: Block, column: str, kind: str, cache: Path) -> Float[np.ndarray, " rows"]:
        """Return the norms of the vectors of a block from the cache, or compute and save them."""

        def compute(matrix: Num[np.ndarray, "rows width"] | None, rows: int) -> dict[str, np.ndarray]:
            return {"norms": np.full(rows, np.nan) if matrix is None else _norms(matrix, kind)}

        arrays = load_arrays(block, column, kind, cache, compute, {"norms"})
        return arrays.get("norms", np.zeros(0, np.float32))


def load_arrays(
    block: Block,
    column: str,
    kind: str,
    cache: Path,
    compute: Callable[[Num[np.ndarray, "rows width"] | None, int], dict[str, np.ndarray]],
    required: AbstractSet[str] = frozenset(),
) -> dict[str, np.ndarray]:
    """Return arrays about the vectors of a block from the folder of notes, or compute and save them.

    Args:
        block: the block.
        column: the column of vectors.
        kind: what the arrays hold.
        cache: the folder.
        compute: returns the arrays for the vectors of a chunk, None if a vector is missing, and their number.
        required: arrays of floats that saved ones must include, one number for each row.
    """
    path = arrays_path(block, column, kind, cache)
    made_from = {"block": block.name, "column": column, "kind": kind, "rows": block.table.num_rows}
    if (saved := _saved_arrays(path, made_from, required)) is not None:
        return saved
    block.verify()  # before the arrays are saved
    chunks = block.table.column(column).chunks
    parts = [compute(arrow_columns.vector_matrix(chunk), len(chunk)) for chunk in chunks]
    names = set.intersection(*map(set, parts)) if parts else set()
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in sorted(names)}
    save_note(path, made_from, {}, arrays)
    return _saved_arrays(path, made_from, required) or arrays  # mapped, so that they need no memory


def _saved_arrays(path: Path, made_from: dict[str, object], required: AbstractSet[str]) -> dict[str, np.ndarray] | None:
    note = read_note(path, made_from)
    arrays = {} if note is None else {name: note.array(name) for name in note}
    fit = all(len(array) == made_from["rows"] for array in arrays.values())
    numbers = [arrays[name] for name in required if name in arrays]
    whole = len(numbers) == len(required) and all(each.ndim == 1 and each.dtype.kind == "f" for each in numbers)
    return arrays if fit and whole and note is not None else None


def arrays_path(block: Block, column: str, kind: str, cache: Path) -> Path:
    """Return the file of arrays about the vectors of a block; see `load_arrays`."""
    return cache / f"{kind}-{digest(f'{block.name} {column}'.encode())[:24]}.norms"


def _norm_kind(score: Score) -> str:
    """Return which norms of the keys the logits need: "inverse", "squares", or "" for none."""
    if _squares_factor(score) is not None:
        return "squares"
    return "inverse" if isinstance(score.form, UnitProduct) else ""


def _squares_factor(score: Score) -> float | None:
    """Return a if the logit is −a ‖q − k‖² with a single number a, otherwise None."""
    return score.form.factor if isinstance(score.form, SquaredDistance) else None


def _norms(matrix: Float[np.ndarray, "rows width"], kind: str) -> Float[np.ndarray, " rows"]:
    squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if kind == "inverse":
            squares = np.where(squares == 0, 0.0, 1 / np.sqrt(squares))
        # NaN where the dtype would round to 0: the tile is then handled by `CellLogits`.
        squares[(squares > 0) & (squares < 1e-30)] = np.nan
        norms = squares.astype(matrix.dtype)
    return np.asarray(np.where(np.isfinite(norms), norms, norms.dtype.type(np.nan)))


def _has_square(factor: Float[np.ndarray, " width"], most: float) -> Bool[np.ndarray, " width"]:
    """Return whether the squares of factors, and of differences near their inverses, are in the range of a dtype."""
    return np.asarray((factor > 1 / most) & (factor < most))


class NumberLogits(Logits[list[Num[np.ndarray, " rows"]]]):
    """Logits of a Gaussian with bandwidth h over columns of numbers, −Σ_j ((k_j − q_j) / (scale_j h √2))²."""

    arrays_per_query: int = 3
    description: str = "differences, column by column"

    def __init__(
        self, comparison: DistanceComparison, columns: Sequence[Column], query: Float[np.ndarray, "q width"]
    ) -> None:
        factor = _squares_factor(comparison.score)
        assert factor is not None
        self.names = [column.name for column in columns]
        self.query = np.asarray(query, np.float64) * comparison.scale + comparison.offset
        # A query that was rounded in standard units would be nearer to one of two equally distant keys.
        written = np.array([float(f"{cell:.15g}") for cell in self.query.ravel().tolist()]).reshape(self.query.shape)
        self.query = np.where((written - comparison.offset) / comparison.scale == query, written, self.query)
        self.factor = np.sqrt(factor) / comparison.scale
        # Where float32 rounds the query by more than the tolerance, the column is read in float64.
        rounding = _EPSILON * np.abs(self.query).max(axis=0, initial=0) * self.factor
        self.float32_suffices = (rounding < _TOLERANCE / 10) & _has_square(self.factor, 1e15)
        self._float32 = False

    def load(self, tile: RowTile) -> list[Num[np.ndarray, " rows"]] | None:
        """Return the key columns of a tile as arrays of floats, or None if a column has several chunks or a null.

        An array is float64 unless the column is stored as float32 and float32 is accurate enough.
        """
        if not _has_square(self.factor, 1e140).all():
            return None  # `CellLogits` scales before it squares
        columns = []
        for name, float32_suffices in zip(self.names, self.float32_suffices, strict=True):
            column = tile.table.column(name)
            if column.num_chunks != 1 or column.null_count:
                return None
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.stored_numbers(chunk)
            float32 = cells.dtype == np.float32 and float32_suffices
            self._float32 |= bool(float32)
            columns.append(cells if float32 or cells.dtype == np.float64 else cells.astype(np.float64))
        return columns

    def error(self, logits: Float[np.ndarray, "q 1"]) -> Float[np.ndarray, "q 1"]:
        """Return an estimate of the rounding errors of logits of the given sizes, beyond those of float64."""
        size = np.abs(logits)
        return np.asarray(self._float32 * (4 * _EPSILON * size + _TOLERANCE / 5 * np.sqrt(size)))

    def compute(self, rows: list[Num[np.ndarray, " rows"]], start: int, stop: int) -> Float[np.ndarray, "q n"]:
        """Return the logits of the rows of a loaded tile, computed in chunks that fit the processor cache."""
        dtype = np.result_type(*{cells.dtype for cells in rows})
        logits = np.empty((len(self.query), stop - start), dtype)
        squared = -np.square(self.factor).astype(dtype)
        workspace = np.empty((len(rows), _CACHED // len(rows)), dtype)
        for query, out in zip(self.query, logits, strict=True):
            own = [cells.dtype.type(cell) for cells, cell in zip(rows, query, strict=True)]
            for first in range(0, stop - start, workspace.shape[1]):
                last = min(first + workspace.shape[1], stop - start)
                differences = workspace[:, : last - first]
                for cells, cell, difference in zip(rows, own, differences, strict=True):
                    np.subtract(cells[start + first : start + last], cell, out=difference)
                np.multiply(differences, differences, out=differences)
                np.matmul(squared, differences, out=out[first:last])
        return logits
