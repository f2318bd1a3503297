"""Computation of the partial result of queries over the rows of one fragment in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Float, Shaped
from qkv.database.execute.accumulators import accumulator_for
from qkv.database.execute.partial_sums import PartialSums
from qkv.database.execute.row_reader import TILE, RowTile
from qkv.database.execute.running_aggregates import streamed_aggregator_for
from qkv.database.execute.scan import CellLogits
from qkv.database.execute.tile_pass import TilePass
from qkv.database.execute.top_rows import TopRows
from qkv.database.keys.comparisons import Comparison
from qkv.database.partials.row_lists import SLACK, RowLists, accumulates, select_rows
from qkv.encoders.columns import Column
from qkv.errors import RefusedError
from qkv.normalizers import TopK
from qkv.normalizers.base import Normalizer
from qkv.store import Block

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FragmentScan", "candidates_of_tile", "check_mergeable", "with_records", "with_spare_rows"]


def check_mergeable(normalizer: Normalizer) -> None:
    """Raise a `RefusedError` if the results of a normalizer over parts of the rows cannot be merged."""
    bounded = normalizer.top_k is not None or (
        normalizer.has_threshold_bound and normalizer.threshold_bound(np.zeros((1, 1))) is not None
    )
    if normalizer.stochastic or not (accumulates(normalizer) or bounded):
        raise RefusedError(
            f"normalizer must have partial results that merge, got {normalizer}, which samples or needs all logits of "
            "a query at once. Choose Softmax, Sum, Mean, TopK, Hard, Sparsemax or Entmax15."
        )


class FragmentScan:
    """Passes over the rows of a fragment in memory, whose logits are computed in float64.

    Args:
        table: the rows.
        comparison: the comparison.
        columns: the key columns and the value column.
        folded: whether texts are folded.
        query: the query array of the engine.
        missing: `(q,)`, True for queries without a value, which get no weights.
    """

    def __init__(
        self,
        table: pa.Table,
        comparison: Comparison,
        columns: Sequence[Column],
        folded: bool,
        query: Shaped[np.ndarray, "q ..."],
        missing: Bool[np.ndarray, " q"],
    ) -> None:
        self.table, self.columns, self.folded, self.missing = table, columns, folded, missing
        self.count = len(query)
        self.logits = CellLogits(comparison, columns[:-1], query, folded)
        self.elements = max(1, comparison.score.elements_per_logit(1, 1))

    def sums(self, normalizer: Normalizer, top: int) -> tuple[PartialSums, RowLists]:
        """Return the sums over all rows, and the rows of evidence."""
        values = streamed_aggregator_for(self.columns[-1], self.folded, self.count)
        accumulator = accumulator_for(normalizer, self.count, values, top)
        assert accumulator is not None
        tile_pass = TilePass(self.logits, None, values, max(1, self.count), self.elements)

        def consume(logits: Float[np.ndarray, "q n"], first: int, cells: Shaped[np.ndarray, "n ..."] | None) -> None:
            logits[self.missing] = -np.inf
            accumulator.accumulate(logits, first, cells)  # type: ignore[arg-type]

        for tile in self._tiles():
            tile_pass.run(tile, False, consume, values)
        return accumulator.sums(), self._evidence(accumulator.top_rows)

    def candidates(self, normalizer: Normalizer) -> RowLists:
        """Return the rows that can have weight."""
        nothing = np.zeros(0, np.int64)
        found = RowLists(nothing, nothing, np.zeros(0))
        values = streamed_aggregator_for(self.columns[-1], self.folded, 1)
        tile_pass = TilePass(self.logits, None, values, max(1, self.count), self.elements)

        def consume(logits: Float[np.ndarray, "q n"], first: int, _: object) -> None:
            nonlocal found
            logits[self.missing] = -np.inf
            joined = found.concat(candidates_of_tile(logits, first, normalizer))
            selected = select_rows(joined, normalizer, self.count)
            assert selected is not None
            found = selected

        for tile in self._tiles():
            tile_pass.run(tile, False, consume, None)
        return found

    def _tiles(self) -> Iterator[RowTile]:
        block = Block("", self.table)
        for start in range(0, self.table.num_rows, TILE):
            yield RowTile(start, self.table.slice(start, TILE), block, start, Path())

    def _evidence(self, top_rows: TopRows) -> RowLists:
        """Return the top rows with their logits, which are computed again."""
        rows = top_rows.union()
        query, place = np.nonzero(top_rows.row >= 0)
        if not len(rows):
            return RowLists(query, place, np.zeros(0))
        import pyarrow as pa

        tile = RowTile(0, self.table.take(pa.array(rows)), Block("", self.table), 0, Path())
        loaded = self.logits.load(tile)
        assert loaded is not None
        logits = self.logits.compute(loaded, 0, len(rows))
        position = top_rows.row[query, place]
        return RowLists(query, position, logits[query, np.searchsorted(rows, position)].astype(np.float64))


def candidates_of_tile(
    logits: Float[np.ndarray, "q n"], first: int, normalizer: Normalizer, slack: float = SLACK
) -> RowLists:
    """Return the rows of a tile that can have weight by a normalizer with few non-zero weights.

    Args:
        logits: the logits of the tile, −inf for excluded rows.
        first: the index of the first row.
        normalizer: the normalizer.
        slack: as in `select_rows`.
    """
    ranks = np.asarray(normalizer.prepare(logits))
    finite = np.where(ranks < np.inf, ranks, ranks.dtype.type(-np.inf))
    with np.errstate(invalid="ignore", divide="ignore"):
        bound = np.asarray(normalizer.threshold_bound(finite))
        bound = bound - slack * (1.0 + np.abs(bound))
        # NaN, of a logit or of the bound of a query without rows, is not below it.
        kept = ~(ranks < bound) & (ranks != -np.inf)
    query, row = np.nonzero(kept)
    return RowLists(query, row + first, logits[query, row].astype(np.float64))


def with_spare_rows(normalizer: Normalizer, spare: int) -> Normalizer:
    """Return a normalizer with `spare` more rows for one with a fixed number of rows, otherwise the normalizer."""
    return normalizer if normalizer.top_k is None else TopK(normalizer.top_k + spare)


def with_records(rows: RowLists, table: pa.Table, names: Sequence[str]) -> RowLists:
    """Return lists of rows with the cells of some columns of their table; dictionaries become their values."""
    import pyarrow as pa

    taken = table.select(list(names)).take(pa.array(rows.position))
    arrays = [_plain(column) for column in taken.columns]
    return replace(rows, record=pa.StructArray.from_arrays(arrays, names=list(names)))


def _plain(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.array([], column.type)
