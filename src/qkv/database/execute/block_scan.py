"""The scan over the rows of a store, of some of its fragments, or of a fragment in memory, tile by tile.

    sums          Softmax, Sum, Mean …: sums of weights and values over all rows, and the rows of largest weight
    candidates    TopK, Hard, Sparsemax, Entmax …: the rows that can have weight

Rows are named by the positions of their tiles. Sums and lists of rows over different tiles merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.core.ordering import RunningTopK, first_equal_vectors
from qkv.core.progress import checkpoint
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.database.execute.aggregates import ValueSums
from qkv.database.execute.partial_sums import Accumulator
from qkv.database.execute.row_lists import RowLists
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.scan import CellLogits, DeviceProducts, Logits, VectorNorms, fast_logits
from qkv.database.keys.comparisons import Comparison
from qkv.encoders.columns import Column
from qkv.normalizers.base import Normalizer

TILE_NUMBERS = 2**20
"""Number of logits that are computed at a time."""

# Logits, exponentials and values of this many rows fit a cache of 2 MB.
ROWS_AT_ONCE = 2**17
"""Largest number of rows whose logits are computed at a time."""

SPARE_ROWS = 16
"""Number of rows that are returned beyond those requested, as float32 may exchange rows of nearly equal logits."""

SUPPORT = 128
"""Number of rows of a query by a sparse normalizer that are found in one pass; if more have weight, in two."""

_TOLERANCE = 1e-4
"""Slack of a bound of logits that are computed in float32, relative to its size."""

Consumer = Callable[[Float[np.ndarray, "q n"], int, Any], None]
"""A function of the logits of some rows, the position of the first row, and the values of the rows or None."""


def is_bounded(normalizer: Normalizer) -> bool:
    """Return whether a part of the logits of a query gives a lower bound for those of keys that have weight."""
    if normalizer.top_k is not None:
        return True
    return normalizer.has_threshold_bound and normalizer.threshold_bound(np.zeros((1, 1))) is not None


class BlockScan:
    """Passes over tiles for a group of queries.

    Args:
        comparison: the comparison.
        columns: the key columns and the value column, or some rows of them, which give the kind of their cells.
        query: the query array of the engine.
        folded: whether texts are folded.
        norms: the norms of vectors; None: all logits are computed in float64.
        products: multiplies vectors on a GPU.
        without: `(q,)`, True for queries that are missing, to which no row is similar; None for no query.

    Attributes:
        cells: the logits of any tile.
        fast: faster logits of the tiles that it supports; None for none.
        top_rows: the rows of the highest rank so far.
    """

    def __init__(
        self,
        comparison: Comparison,
        columns: Sequence[Column],
        query: Shaped[np.ndarray, "q ..."],
        folded: bool,
        norms: VectorNorms | None = None,
        products: DeviceProducts | None = None,
        without: Bool[np.ndarray, " q"] | None = None,
    ) -> None:
        *keys, self.value = columns
        self.folded, self.queries, self.without = folded, len(query), without
        self.cells = CellLogits(comparison, keys, query, folded)
        self.fast = None if norms is None else fast_logits(comparison, keys, query, norms, products)
        self.elements = max(1, comparison.score.elements_per_logit(1, 1))
        self.top_rows = RunningTopK((self.queries,), 0)
        self._lists: list[RowLists] = []

    @property
    def logits(self) -> Logits[Any]:
        """The logits of most tiles."""
        return self.fast or self.cells

    def sums(self, tiles: Iterable[RowTile], normalizer: Normalizer, values: ValueSums, evidence: int) -> Accumulator:
        """Return the sums over the rows of tiles, and the rows of largest weight.

        Args:
            tiles: the tiles.
            normalizer: a normalizer that `accumulates`.
            values: the sums of no rows.
            evidence: number of rows of largest weight.
        """
        accumulator = Accumulator(normalizer, values, self.queries, evidence)
        self.top_rows, self.logits.summed = accumulator.top_rows, True
        self.run(tiles, accumulator.accumulate, values)
        return accumulator

    def candidates(self, tiles: Callable[[], Iterable[RowTile]], normalizer: Normalizer) -> RowLists:
        """Return all rows of tiles that can have weight, with a few others, and with approximate logits.

        Args:
            tiles: returns the tiles; called again if a query has more candidates than the first pass lists.
            normalizer: a normalizer that `is_bounded`.
        """
        best, bound = self._best(tiles, normalizer)
        if bound is None:
            return best

        def select(logits: Float[np.ndarray, "q n"], first: int, _: object) -> None:
            ranks = np.asarray(normalizer.prepare(logits))
            query, row = np.nonzero(ranks >= bound)
            self._lists.append(RowLists(query, row + first, logits[query, row].astype(np.float64)))

        self.run(tiles(), select)
        return best.concat(*self._lists)

    def candidate_positions(
        self, tiles: Callable[[], Iterable[RowTile]], normalizer: Normalizer
    ) -> Int[np.ndarray, " n"]:
        """Return the positions of all candidates of any query, in ascending order; see `candidates`."""
        best, bound = self._best(tiles, normalizer)
        own = np.unique(best.position)
        if bound is None:
            return own
        found = [own[:0]]

        def select(logits: Float[np.ndarray, "q n"], first: int, _: object) -> None:
            ranks = np.asarray(normalizer.prepare(logits))
            found.append(first + np.flatnonzero((ranks >= bound).any(axis=0)))

        self.run(tiles(), select)
        rows = np.concatenate(found)
        return np.union1d(rows, own) if len(own) else rows

    def _best(
        self, tiles: Callable[[], Iterable[RowTile]], normalizer: Normalizer
    ) -> tuple[RowLists, Float[np.ndarray, "q 1"] | None]:
        """Return the candidates of some queries, and bounds of the ranks for the others; None without others."""
        top_k = normalizer.top_k
        self.top_rows = top = RunningTopK((self.queries,), (SUPPORT if top_k is None else top_k) + SPARE_ROWS)
        self._lists = []

        def update(logits: Float[np.ndarray, "q n"], first: int, _: object) -> None:
            top.update(np.asarray(normalizer.prepare(logits)), first)

        self.run(tiles(), update)
        best = RowLists.of_top_rows(top)
        if top_k is not None:
            if self.fast is None or not self._may_lack_rows(normalizer, top_k):
                return best, None
            self.fast = None  # more rows than the spare ones differ by less than rounding errors
            return self._best(tiles, normalizer)
        # A logit that is NaN or infinite makes the answer NaN; such a row is among the top rows.
        broken = (top.rank == np.inf).any(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            bound = np.asarray(normalizer.threshold_bound(np.where(top.rank < np.inf, top.rank, -np.inf)))
            bound = bound - _TOLERANCE * (1 + np.abs(bound))
            listed = broken | (top.rank[:, -1:] == -np.inf) | (top.rank[:, -1:] < bound)
        if listed.all():
            return best, None
        return best.take(np.flatnonzero(listed[best.query, 0])), np.where(listed, np.nan, bound)

    def _may_lack_rows(self, normalizer: Normalizer, top_k: int) -> bool:
        """Return whether a row outside `top_rows` may be among the `top_k` rows of some query but for rounding."""
        assert self.fast is not None
        last, least = self.top_rows.rank[:, top_k - 1 : top_k], self.top_rows.rank[:, -1:]
        zero = np.zeros_like(last)
        slope = np.asarray(normalizer.prepare(zero + 1)) - np.asarray(normalizer.prepare(zero))  # ranks are affine
        finite = np.where(np.isfinite(last), last, 0)
        return bool(((least > -np.inf) & (least >= last - 2 * slope * self.fast.error(finite / slope))).any())

    def run(self, tiles: Iterable[RowTile], consume: Consumer, values: ValueSums | None = None) -> None:
        """Call `consume` with the logits of consecutive rows and, if there are sums of values, with their values."""
        for tile in tiles:
            try:
                self._run_tile(tile, consume, values)
            except Exception:
                tile.block.verify()  # damaged numbers may cause any error
                raise

    def _run_tile(self, tile: RowTile, consume: Consumer, values: ValueSums | None) -> None:
        logits_of: Logits[Any] | None = self.fast
        rows: Any = self.fast.load(tile) if tile.complete and self.fast is not None else None
        if logits_of is None or rows is None:
            logits_of, rows = self.cells, self.cells.load(tile)
        cells = missing = None
        if values is not None:
            cells, missing = values.read(tile.table, self.value, self.folded, tile.complete)
        elif not tile.complete:
            missing = Column.from_table(tile.table, self.value.name, self.folded, self.value).missing
        excluded = excluded_rows(tile.selected, logits_of.missing(rows), missing)
        if excluded is not None and cells is not None and cells.dtype.kind == "f":
            cells = np.where(excluded.reshape(-1, *(1,) * (cells.ndim - 1)), cells.dtype.type(0), cells)
        pairs = max(1, self.queries) * (self.elements if logits_of is self.cells else 1)
        step, count = min(max(1, TILE_NUMBERS // pairs), ROWS_AT_ONCE), tile.table.num_rows
        for start in range(0, count, step):
            checkpoint()
            stop = min(start + step, count)
            if excluded is not None and excluded[start:stop].all():
                continue
            logits = logits_of.compute(rows, start, stop)
            if excluded is not None:
                np.copyto(logits, -np.inf, where=excluded[start:stop])  # an index of columns takes four times as long
            if self.without is not None:
                logits[self.without] = -np.inf
            consume(logits, tile.number + start, None if cells is None else cells[start:stop])

    def with_exact_logits(self, rows: RowLists, table: pa.Table, positions: Int[np.ndarray, " n"]) -> RowLists:
        """Return lists of rows with logits that are computed in float64.

        Args:
            rows: the lists.
            table: the rows that occur in them.
            positions: the position of each row of the table, in ascending order.
        """
        loaded = self.cells.load(RowTile.of_table(table), few=8)
        assert loaded is not None
        logits = np.asarray(self.cells.compute(loaded, 0, len(positions)), np.float64)
        first = first_equal_vectors(np.asarray(loaded[0].key))
        if first is not None:
            logits = logits[:, first]
        return replace(rows, logit=logits[rows.query, np.searchsorted(positions, rows.position)])


def excluded_rows(
    selected: Bool[np.ndarray, " rows"] | None, *missing: Bool[np.ndarray, " rows"] | None
) -> Bool[np.ndarray, " rows"] | None:
    """Return a boolean array that is True for the excluded rows of a tile, or None if no row is excluded.

    Args:
        selected: True for the selected rows; None for all.
        missing: for each of several columns, True for the rows with a missing cell; None for no row.
    """
    masks = [mask for mask in missing if mask is not None]
    if selected is not None:
        masks.append(~selected)
    return np.logical_or.reduce(masks) if masks else None
