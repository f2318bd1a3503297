"""Execution of queries over a store that exceeds the memory limit, block by block.

    choose     the comparison, from statistics of the selected rows and a sample of them
    pass       tile by tile: logits, then sums (Softmax, Sum, Mean …) or top rows (TopK, Hard, Sparsemax …)
    evidence   the rows with the largest weights are read again, and compared in float64

If only the top rows can have weight, attention is computed over these rows in memory. The answers are the same as
for a table in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Int, Num, Shaped
from qkv.database.answer import Entry
from qkv.database.execute.accumulators import accumulator_for
from qkv.database.execute.aggregates import aggregator_for
from qkv.database.execute.base import NO_MATCHING_ROW, AskOptions, Executor, QueryResults, build_entries
from qkv.database.execute.in_memory import attend_to_rows
from qkv.database.execute.row_reader import StoredRows
from qkv.database.execute.running_aggregates import StreamedAggregator, streamed_aggregator_for
from qkv.database.execute.sampled import SampledChooser
from qkv.database.execute.scan import (
    CellLogits,
    Logits,
    NumberLogits,
    VectorLogits,
    VectorNorms,
    excluded_rows,
    fast_logits,
)
from qkv.database.execute.statistics import load_statistics, restricted_statistics
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.execute.top_rows import TopRows, largest_weights
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.queries import Queries
from qkv.engine import explain
from qkv.errors import KindError, OptionError, RefusedError, ShapeError
from qkv.masks import Keys as KeysMask
from qkv.normalizers.base import Normalizer
from qkv.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamedExecutor"]

_QUERIES = 64
# Some more rows than requested are kept, because float32 may exchange rows with nearly equal logits.
_SPARE_ROWS = 16
_SUPPORT = 128
_TILE_NUMBERS = 2**20
# Logits, exponentials and values of this many rows fit a cache of 2 MB.
_ROWS_AT_ONCE = 2**17
_TOLERANCE = 1e-4
_MOST_VOTES = 4 * 2**20

_Consumer = Callable[[Float[np.ndarray, "q n"], int, Shaped[np.ndarray, "n ..."] | None], None]
"""A function of the logits of some rows, the index of the first row, and the values of the rows or None."""


class StreamedExecutor(Executor):
    """Executor that answers queries over one version of a store, block by block.

    Args:
        store: the store.
        key, value, name, fold: as in `Executor`.
        progress: called while the statistics are computed.
        hidden: columns that are compared but not shown.

    Raises:
        DataError: No row has both key and value.
    """

    table: StoredRows

    def __init__(
        self,
        store: Store,
        key: Sequence[str],
        value: str,
        name: str,
        fold: bool = True,
        progress: Progress | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        super().__init__(tuple(key), value, name, fold)
        self.table = StoredRows(store, hidden)
        self.title = f"{name}, version {self.table.store.version}"
        self.statistics = load_statistics(self.table, key, value, fold, progress)
        missing = {name: column.missing for name, column in self.statistics.columns.items()}
        self._set_counts(missing, self.statistics.complete)
        self.examples = self.read_columns(self.table.take(self.statistics.examples))
        self.query_columns = self.examples[:-1]
        self.norms = VectorNorms()
        self.selected: Bool[np.ndarray, " rows"] | None = None
        self._columns: tuple[Column, ...] | None = None
        self._chooser: SampledChooser | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key columns and the value column of a sample of the selected rows, as arrays."""
        if self._columns is None:
            self._columns = self.read_columns(self.table.take(self.statistics.sample))
        return self._columns

    @property
    def chooser(self) -> SampledChooser:
        """The `ComparisonChooser`, which chooses from a sample of the selected rows and statistics of all of them."""
        if self._chooser is None:
            numeric = any(column.kind in ("number", "timestamp", "boolean") for column in self.query_columns)
            columns = self.columns[:-1] if numeric else self.query_columns
            value = self.columns[-1] if numeric else self.examples[-1]
            self._chooser = SampledChooser(columns, value, self.statistics, self._targets)
        return self._chooser

    def restrict(self, selected: Bool[np.ndarray, " rows"], progress: Progress | None) -> Self:
        """Return an executor over the selected rows, with statistics of these rows; see `Executor.restrict`."""
        out = copy.copy(self)
        columns = self.key, self.value, self.fold
        out.statistics = restricted_statistics(self.statistics, self.table, *columns, selected, progress)
        out.selected = selected
        out.selected_rows = out.statistics.complete
        out._columns = out._chooser = out._comparison = out._restricted = None
        out._calibrations = {}
        return out

    def run(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], StreamedPlan]:
        """Answer queries in one or two passes over the rows for each group of queries; see `Executor.run`."""
        self._check(comparison, normalizer, queries)
        present = self._present(options)
        call = _Call(self, comparison, normalizer, present, options, queries)
        entries: list[Entry] = []
        step = call.queries_at_once
        for start in range(0, len(queries), step):
            entries += call.answer(queries.slice(start, min(start + step, len(queries))), options.progress)
        return entries, call.plan(len(queries))

    def read_columns(self, table: pa.Table) -> tuple[Column, ...]:
        """Return the key columns and the value column of a table as arrays."""
        like = [self._empty_column(name) for name in (*self.key, self.value)]
        return tuple(Column.from_table(table, column.name, self.fold, column) for column in like)

    def sample(self, comparison: Comparison) -> tuple[Comparison, Column]:
        """Return a comparison over a sample of the selected rows, and the value column; see `Executor.sample`."""
        return comparison.with_rows(self.columns[:-1]), self.columns[-1]

    def _empty_column(self, name: str) -> Column:
        """Return the column `name` without rows, with the timestamp origin and vector width of the store."""
        statistics = self.statistics.columns[name]
        empty = Column.from_table(self.table.store.empty([name]), name, self.fold)
        return replace(empty, cells=np.zeros((0, statistics.width)), origin=statistics.origin)

    def _targets(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n targets"] | str:
        return aggregator_for(self.columns[-1]).targets(rows)

    def _check(self, comparison: Comparison, normalizer: Normalizer, queries: Queries) -> None:
        """Raise an error if the normalizer samples, or if the engine does not support the score for the key columns."""
        if normalizer.stochastic:
            raise RefusedError(
                f"normalizer must not sample for {self.name}, which exceeds the memory limit, got {normalizer}. "
                "Choose another normalizer, or open the store with more memory, such as memory='2 GiB'."
            )
        query = comparison.query_array(queries.slice(0, 1).columns)
        values = np.ones((len(comparison.key), 1))
        try:
            explain(query, comparison.key, values, score=comparison.score, normalizer=normalizer)
        except (KindError, ShapeError) as error:
            raise comparison.unsupported(error) from None

    def _present(self, options: AskOptions) -> Bool[np.ndarray, " rows"] | None:
        """Return a boolean array that is True for the rows selected by predicate and mask, or None without both."""
        present, mask = self.selected, options.mask
        if mask is None:
            return present
        if not isinstance(mask, KeysMask) or np.ndim(np.asarray(mask.array)) != 1:
            raise OptionError(
                f"mask must be masks.Keys with one boolean per row for {self.name}, which exceeds the memory limit, "
                f"got {mask}. Use masks.Keys, select rows with where, or open the store with more memory, such as "
                "memory='2 GiB'."
            )
        mask.check(1, self.table.num_rows)
        array = np.broadcast_to(np.asarray(mask.array), self.table.num_rows)
        return array if present is None else present & array


class _Call:
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
        self.present, self.top = present, options.top
        self.calibration = partial(executor.calibration, comparison, normalizer, options)
        self.statistics, self.rows = executor.statistics, executor.table
        self.names = tuple(dict.fromkeys((*executor.key, executor.value)))
        self.incomplete_tiles = set(self.statistics.incomplete_tiles.tolist())
        self.elements = max(1, comparison.score.elements_per_logit(1, 1))
        self.accumulates = accumulator_for(normalizer, 1, self._values(1), 1) is not None
        value_kind = executor.examples[-1].kind
        self._votes = value_kind not in ("number", "timestamp", "vector")
        # A column of texts may have as many labels as rows.
        self.many_labels = value_kind == "text"
        cell_logits, fast = self._logits(comparison.query_array(queries.slice(0, 1).columns))
        self.logits = fast or cell_logits

    @property
    def queries_at_once(self) -> int:
        """The maximum number of queries that are answered in one pass over the rows."""
        if self.accumulates and self.many_labels:
            return max(1, min(_QUERIES, _MOST_VOTES // max(1, self.statistics.complete)))
        return _QUERIES

    def answer(self, queries: Queries, progress: Progress | None) -> list[Entry]:
        """Return an `Entry` for each query of a group, from one or two passes over the rows."""
        query, count = self.comparison.query_array(queries.columns), len(queries)
        top = max(self.top, self.comparison.candidate_rows)
        accumulator = accumulator_for(self.normalizer, count, self._values(count), top + _SPARE_ROWS)
        if accumulator is None:
            return self._answer_from_top_rows(queries, query, progress)
        accumulate = accumulator.accumulate

        def consume(logits: Float[np.ndarray, "q n"], first: int, values: Shaped[np.ndarray, "n ..."] | None) -> None:
            assert values is not None
            accumulate(logits, first, values)

        self._pass(query, consume, progress, accumulator.values)
        summary, aggregates, support, effective = accumulator.finalize()
        top_rows = accumulator.top_rows.union()
        comparison, columns = self._over(top_rows)
        logits = self._exact_logits(comparison, columns, query)
        weights = accumulator.weights(logits, summary) if len(top_rows) else logits
        rows, heaviest = largest_weights(weights, top)
        results = QueryResults(rows, heaviest, rows[:, 0], support, effective, aggregates)
        return self._entries(queries, query, comparison, results, top_rows)

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
            logits=self.logits.description,
            sums=self.accumulates,
            passes=-(-max(1, queries) // self.queries_at_once),
            bytes=self.rows.size_of(self.names),
            memory=self._memory(max(1, min(queries, self.queries_at_once))),
            grows=self.present is not None or (self.accumulates and self._votes),
        )

    def _memory(self, q: int) -> int:
        """Return an estimate of the memory that a pass for `q` queries uses, in bytes."""
        tile = min(self.rows.tile_rows(self.names), self.rows.num_rows)
        texts = sum(column.original is not None for column in self.executor.examples)
        width = sum(max(1, column.width) for column in self.statistics.columns.values()) + 24 * texts
        pairs = min(min(tile, _ROWS_AT_ONCE) * q, max(q, _TILE_NUMBERS // self.elements))
        logits = pairs * 8 * (self.logits.arrays_per_query + self.elements)
        cells = tile * 8 * width * (4 if isinstance(self.logits, CellLogits) else 1)
        labels = self.statistics.complete if self.many_labels else 1000
        votes = 24 * q * labels if self.accumulates and self._votes else 0
        predicate = 0 if self.present is None else 18 * self.rows.num_rows
        return int(logits + cells + votes + predicate)

    def _logits(self, query: Shaped[np.ndarray, "q ..."]) -> tuple[CellLogits, VectorLogits | NumberLogits | None]:
        columns = self.executor.query_columns
        cell_logits = CellLogits(self.comparison, columns, query, self.executor.fold)
        return cell_logits, fast_logits(self.comparison, columns, query, self.executor.norms)

    def _values(self, queries: int) -> StreamedAggregator:
        return streamed_aggregator_for(self.executor.examples[-1], self.executor.fold, queries)

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

    def _pass(
        self,
        query: Shaped[np.ndarray, "q ..."],
        consume: _Consumer,
        progress: Progress | None,
        aggregator: StreamedAggregator | None,
    ) -> None:
        """Call `consume` with the logits of consecutive rows and, if there is an aggregator, with their values.

        Rows are skipped if all of them are excluded.
        """
        cell_logits, fast = self._logits(query)
        values = aggregator if aggregator is not None else self._values(1)
        for number, tile in enumerate(self.rows.tiles(self.names)):
            complete = number not in self.incomplete_tiles
            logits_of: Logits[Any] | None = fast
            rows: Any = None
            if complete and fast is not None:
                rows = fast.load(tile)
            if logits_of is None or rows is None:
                logits_of, rows = cell_logits, cell_logits.load(tile)
            count = tile.table.num_rows
            reads = aggregator is not None or not complete
            cells, missing_values = values.read(tile.table, complete) if reads else (None, None)
            excluded = excluded_rows(self.present, tile.number, count, logits_of.missing(rows), missing_values)
            if excluded is not None and cells is not None and cells.dtype.kind == "f":
                cells = np.where(excluded.reshape(-1, *(1,) * (cells.ndim - 1)), cells.dtype.type(0), cells)
            step = max(1, _TILE_NUMBERS // (len(query) * (self.elements if logits_of is cell_logits else 1)))
            step = min(step, _ROWS_AT_ONCE)
            for start in range(0, count, step):
                stop = min(start + step, count)
                if excluded is not None and excluded[start:stop].all():
                    continue
                logits = logits_of.compute(rows, start, stop)
                if excluded is not None:
                    logits[:, excluded[start:stop]] = -np.inf
                consume(logits, tile.number + start, None if cells is None else cells[start:stop])
            report(progress, "reading blocks", tile.number + count, self.rows.num_rows)

    def _over(self, rows: Int[np.ndarray, " n"]) -> tuple[Comparison, tuple[Column, ...]]:
        """Return a comparison restricted to the given rows, and the key and value columns of these rows."""
        columns = self.executor.read_columns(self.rows.take(rows, self.names))
        return self.comparison.with_rows(columns[:-1]), columns

    def _exact_logits(
        self, comparison: Comparison, columns: Sequence[Column], query: Shaped[np.ndarray, "q ..."]
    ) -> Num[np.ndarray, "q n"]:
        cells, n = CellLogits(comparison, columns[:-1], query, self.executor.fold), len(comparison.key)
        return cells.compute((cells.bind(comparison.key), None), 0, n) if n else np.zeros((len(query), 0))

    def _answer_from_top_rows(
        self, queries: Queries, query: Shaped[np.ndarray, "q ..."], progress: Progress | None
    ) -> list[Entry]:
        """Find the rows that can have non-zero weight, and return entries from attention over these rows in memory."""
        top_k = self.normalizer.top_k
        top_rows = TopRows(len(query), (top_k or _SUPPORT) + _SPARE_ROWS)
        self._pass(query, lambda logits, first, _: top_rows.update(logits, first), progress, None)
        rows = top_rows.union() if top_k is not None else self._support(query, top_rows, progress)
        comparison, columns = self._over(rows)
        if not len(rows):
            none = np.full((len(query), 1), -1)
            results = QueryResults(none, np.zeros((len(query), 1)), none[:, 0], None, None, [])
            return self._entries(queries, query, comparison, results, rows)
        options = AskOptions(top=self.top)
        every = np.ones(len(rows), bool)
        values, how = aggregator_for(columns[-1]), self.normalizer
        entries, _ = attend_to_rows(queries, comparison, how, values, every, options, self.calibration)
        return [replace(entry, rows=rows[entry.rows]) for entry in entries]

    def _support(
        self, query: Shaped[np.ndarray, "q ..."], top_rows: TopRows, progress: Progress | None
    ) -> Int[np.ndarray, " n"]:
        """Return the indices of all rows that can have non-zero weight for some query."""
        bound = self.normalizer.threshold_bound(top_rows.rank)
        if bound is None:
            raise RefusedError(
                f"normalizer must be computable block by block for {self.executor.name}, which exceeds the memory "
                f"limit, got {self.normalizer}, which needs all logits of a query at once. Choose another normalizer, "
                "or open the store with more memory, such as memory='2 GiB'."
            )
        threshold = np.asarray(bound) - _TOLERANCE * (1 + np.abs(np.asarray(bound)))
        if (top_rows.rank[:, -1:] < threshold).all():
            return top_rows.union()
        rows: list[np.ndarray] = []
        self._pass(
            query,
            lambda logits, first, _: rows.append(first + np.flatnonzero((logits >= threshold).any(axis=0))),
            progress,
            None,
        )
        return np.concatenate(rows)
