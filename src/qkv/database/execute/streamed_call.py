"""Execution of one call of `ask` over a store that exceeds the memory limit, in one or two passes over its rows.

    pass       tile by tile: logits, then sums (Softmax, Sum, Mean …) or top rows (TopK, Hard, Sparsemax …)
    evidence   the rows with the largest weights are read again, and compared in float64

If only the top rows can have weight, attention is computed over these rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Int, Num, Shaped
from qkv.database.answer import Entry
from qkv.database.execute import block_scan
from qkv.database.execute.aggregates import aggregator_for
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import NO_MATCHING_ROW, QueryResults, build_entries
from qkv.database.execute.block_scan import SPARE_ROWS, BlockScan, is_bounded
from qkv.database.execute.in_memory import attend_to_rows
from qkv.database.execute.line_fit import LineSums, effective_evidence, largest_effective
from qkv.database.execute.partial_sums import PartialSums, accumulates, tile_weights, value_sums
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.scan import CellLogits, VectorLogits
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.execute.top_rows import TopRows, largest_weights
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.coordinates import find_coordinates
from qkv.database.keys.queries import Queries
from qkv.errors import RefusedError
from qkv.normalizers.base import Normalizer

if TYPE_CHECKING:
    from qkv.database.execute.streamed import StreamedExecutor


__all__ = ["StreamedCall"]


_QUERIES = 64
_MOST_VOTES = 4 * 2**20
# Measured with 200,000 names of two words on one core of a busy machine.
_NAMES_COST = "; names have no index here: about 3 µs of CPU time per row and query"


class StreamedCall:
    """The execution of one call of `ask`, with one or two passes over the rows for each group of queries."""

    def __init__(
        self,
        executor: StreamedExecutor,
        comparison: Comparison,
        normalizer: Normalizer,
        present: Bool[np.ndarray, " rows"] | None,
        options: AskOptions,
        queries: Queries,
    ) -> None:
        self.executor, self.comparison, self.normalizer = executor, comparison, normalizer
        self.present, self.top, self.options = present, options.top, options
        self.line = find_coordinates(comparison) if options.linear else None
        self.calibration = partial(executor.calibration, comparison, normalizer, options)
        self.statistics, self.rows = executor.statistics, executor.table
        self.names = tuple(dict.fromkeys((*executor.key, executor.value)))
        self.incomplete_tiles = set(self.statistics.incomplete_tiles.tolist())
        self.columns = executor.query_columns, executor.value_column
        self.accumulates = accumulates(normalizer)
        if not (self.accumulates or is_bounded(normalizer)):
            raise RefusedError(
                f"normalizer must be computable block by block for {executor.name}, which exceeds the memory limit, "
                f"got {normalizer}, which needs all logits of a query at once. Choose another normalizer, or open the "
                "store with more memory, such as memory='2 GiB'."
            )
        self._votes = executor.votes
        # A column of texts or identifiers may have as many labels as rows.
        self.many_labels = self._votes and executor.value_column.kind not in ("category", "boolean")
        self.first_scan = self._scan(comparison.query_array(queries.slice(0, 1).columns))

    @property
    def queries_at_once(self) -> int:
        """The maximum number of queries that are answered in one pass over the rows."""
        if self.accumulates and self.many_labels:
            return max(1, min(_QUERIES, _MOST_VOTES // max(1, self.statistics.complete)))
        return _QUERIES

    def answer(self, queries: Queries, progress: Progress | None) -> list[Entry]:
        """Return an `Entry` for each query of a group, from one or two passes over the rows."""
        query = self.comparison.query_array(queries.columns)
        if not self.accumulates:
            return self._answer_from_candidates(queries, query, progress)
        top = max(self.top, self.comparison.candidate_rows)
        sums, top_rows = self.sums(query, top + SPARE_ROWS, progress)
        summary, aggregates, support, effective = sums.finalize(self.normalizer, self.columns[1])
        line, weigh = sums.values, partial(tile_weights, self.normalizer, summary=summary)
        if isinstance(line, LineSums):
            top_rows = np.union1d(top_rows, self._largest_effective(query, line, weigh, progress))
        comparison, columns = self._over(top_rows)
        weights = self._exact_logits(comparison, columns, query)
        weights = weigh(logits=weights) if len(top_rows) else weights
        rows, heaviest = largest_weights(weights, top)
        nearest = rows[:, 0]
        if isinstance(line, LineSums):
            weights = effective_evidence(line.fits, weights, line.coordinates.of(comparison.key), line.at)
            support, effective = None, line.fits.rows
            rows, heaviest = largest_effective(weights, top)
        results = QueryResults(rows, heaviest, nearest, support, effective, aggregates)
        return self._entries(queries, query, comparison, results, top_rows)

    def sums(
        self, query: Shaped[np.ndarray, "q ..."], evidence: int, progress: Progress | None
    ) -> tuple[PartialSums, Int[np.ndarray, " rows"]]:
        """Return the sums over all rows, and the indices of the rows with the largest weights of some query."""
        values = value_sums(self.columns[1], len(query), self._votes)
        if self.line is not None:
            values = LineSums.of_queries(self.comparison, self.line, self.columns[0], query)
        scan = self._scan(query)
        accumulator = scan.sums(self._tiles(scan, progress), self.normalizer, values, evidence)
        return accumulator.sums, accumulator.top_rows.union()

    def candidates(self, query: Shaped[np.ndarray, "q ..."], progress: Progress | None) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows that can have non-zero weight for some query."""
        scan = self._scan(query)
        tiles = partial(self._tiles, scan, progress)
        return np.unique(scan.candidates(tiles, self.normalizer, by_query=False).position)

    def _largest_effective(
        self,
        query: Shaped[np.ndarray, "q ..."],
        line: LineSums,
        weigh: Callable[..., Float[np.ndarray, "q n"]],
        progress: Progress | None,
    ) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows with the largest effective weights, which are known after the first pass."""
        top_rows = TopRows(len(query), self.top + SPARE_ROWS)

        def consume(logits: Float[np.ndarray, "q n"], first: int, values: Float[np.ndarray, "n width"]) -> None:
            size = np.abs(effective_evidence(line.fits, weigh(logits=logits), values[:, :-1], line.at))
            top_rows.update(np.where(size > 0, size, -np.inf), first)

        scan = self._scan(query)
        scan.run(self._tiles(scan, progress), consume, line)
        return top_rows.union()

    def plan(self, queries: int) -> StreamedPlan:
        """Return the `StreamedPlan` for a number of queries."""
        fields = [self.rows.store.schema.field(name) for name in self.names]
        return StreamedPlan(
            name=self.executor.name,
            version=self.rows.store.version,
            queries=queries,
            rows=self.rows.num_rows,
            blocks=self.rows.blocks,
            key=", ".join(f"{f.name} {f.type}" for f in fields[: len(self.executor.key)]),
            score=str(self.comparison.score),
            normalizer=str(self.normalizer),
            predicate=self.present is not None,
            logits=self.first_scan.logits.description + _NAMES_COST * self.comparison.one_key,
            sums=self.accumulates,
            passes=-(-max(1, queries) // self.queries_at_once) * (1 if self.line is None else 2),
            bytes=self.rows.size_of(self.names),
            memory=self._memory(max(1, min(queries, self.queries_at_once))),
            grows=self.present is not None or (self.accumulates and self._votes),
        )

    def _memory(self, q: int) -> int:
        """Return an estimate of the memory that a pass for `q` queries uses, in bytes."""
        tile, scan = min(self.rows.tile_rows(self.names), self.rows.num_rows), self.first_scan
        texts = sum(column.original is not None for column in self.executor.examples)
        width = sum(max(1, column.width) for column in self.statistics.columns.values()) + 24 * texts
        pairs = min(min(tile, block_scan.ROWS_AT_ONCE) * q, max(q, block_scan.TILE_NUMBERS // scan.elements))
        logits = pairs * 8 * (scan.logits.arrays_per_query + scan.elements)
        cells = tile * 8 * width * (4 if scan.fast is None else 1)
        labels = self.statistics.complete if self.many_labels else 1000
        votes = 24 * q * labels if self.accumulates and self._votes else 0
        predicate = 0 if self.present is None else 18 * self.rows.num_rows
        return int(logits + cells + votes + predicate)

    def _scan(self, query: Shaped[np.ndarray, "q ..."]) -> BlockScan:
        columns = *self.columns[0], self.columns[1]
        return BlockScan(self.comparison, columns, query, self.executor.fold, self.executor.norms)

    def _tiles(self, scan: BlockScan, progress: Progress | None) -> Iterator[RowTile]:
        """Yield the tiles of all rows, with which of their rows are selected, and report the progress."""
        for number, tile in enumerate(self.rows.tiles(self.names, unverified=isinstance(scan.fast, VectorLogits))):
            stop = tile.number + tile.table.num_rows
            selected = None if self.present is None else self.present[tile.number : stop]
            yield replace(tile, complete=number not in self.incomplete_tiles, selected=selected)
            report(progress, "reading blocks", stop, self.rows.num_rows)

    def _entries(
        self,
        queries: Queries,
        query: Shaped[np.ndarray, "q ..."],
        comparison: Comparison,
        results: QueryResults,
        rows: Int[np.ndarray, " n"],
    ) -> list[Entry]:
        """Return the entries for results that refer to the given rows of the store."""
        none = NO_MATCHING_ROW * (not self.statistics.complete or not (self.present is None or self.present.any()))
        value, how = self.executor.examples[-1], self.normalizer
        return build_entries(queries, query, comparison, results, how, value, self.calibration, none, rows, self.top)

    def _over(self, rows: Int[np.ndarray, " n"]) -> tuple[Comparison, tuple[Column, ...]]:
        """Return a comparison restricted to the given rows, and the key and value columns of these rows."""
        columns = self.executor.read_columns(self.rows.take(rows, self.names))
        return self.comparison.with_rows(columns[:-1]), columns

    def _exact_logits(
        self, comparison: Comparison, columns: Sequence[Column], query: Shaped[np.ndarray, "q ..."]
    ) -> Num[np.ndarray, "q n"]:
        cells, n = CellLogits(comparison, columns[:-1], query, self.executor.fold), len(comparison.key)
        return cells.compute((cells.bind(comparison.key), None), 0, n) if n else np.zeros((len(query), 0))

    def _answer_from_candidates(
        self, queries: Queries, query: Shaped[np.ndarray, "q ..."], progress: Progress | None
    ) -> list[Entry]:
        """Find the rows that can have non-zero weight, and return entries from attention over these rows in memory."""
        rows = self.candidates(query, progress)
        comparison, columns = self._over(rows)
        if not len(rows):
            none = np.full((len(query), 1), -1)
            results = QueryResults(none, np.zeros((len(query), 1)), none[:, 0], None, None, [])
            return self._entries(queries, query, comparison, results, rows)
        options = replace(self.options, mask=None, progress=None)
        every = np.ones(len(rows), bool)
        values, how = aggregator_for(columns[-1], self.executor.votes), self.normalizer
        entries, _ = attend_to_rows(queries, comparison, how, values, every, options, self.calibration)
        return [entry.at(rows) for entry in entries]
