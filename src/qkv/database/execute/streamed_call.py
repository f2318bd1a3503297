"""Execution of one call of `ask` over a store that exceeds the memory limit, in one or two passes over its rows.

    pass       tile by tile: logits, then sums (Softmax, Sum, Mean …) or top rows (TopK, Hard, Sparsemax …)
    evidence   the rows with the largest weights are read again, and compared in float64

If only the top rows can have weight, attention is computed over these rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Int, Num, Shaped
from qkv.database.answer import Entry
from qkv.database.execute import tile_pass
from qkv.database.execute.accumulators import Accumulator, accumulator_for
from qkv.database.execute.aggregates import Aggregate, aggregator_for
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import NO_MATCHING_ROW, QueryResults, build_entries
from qkv.database.execute.in_memory import attend_to_rows
from qkv.database.execute.line_fit import largest_effective, line_aggregates
from qkv.database.execute.running_aggregates import StreamedAggregator, streamed_aggregator_for
from qkv.database.execute.scan import (
    CellLogits,
    NumberLogits,
    VectorLogits,
    fast_logits,
)
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.execute.tile_pass import Consumer, TilePass
from qkv.database.execute.top_rows import TopRows, largest_weights
from qkv.database.keys.comparisons import Comparison, Coordinates, find_coordinates
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column
from qkv.errors import RefusedError
from qkv.estimators.regression.local_linear import LocalFits, LocalMoments, solve
from qkv.normalizers.base import Normalizer

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.execute.streamed import StreamedExecutor


__all__ = ["SPARE_ROWS", "StreamedCall"]


class RunningLine(StreamedAggregator):
    """Aggregator that fits a line to the numbers or timestamps of a store for each query.

    Args:
        like: some rows of the value column.
        folded: whether texts are folded.
        comparison: the comparison.
        coordinates: the place of the numbers among the keys.
        columns: some rows of the key columns.
        query: the query array of the engine.

    Attributes:
        fits: the lines, which `aggregates` computes.
    """

    fits: LocalFits

    def __init__(
        self,
        like: Column,
        folded: bool,
        comparison: Comparison,
        coordinates: Coordinates,
        columns: Sequence[Column],
        query: Shaped[np.ndarray, "q ..."],
    ) -> None:
        super().__init__(like, folded)
        self.comparison, self.coordinates, self.columns = comparison, coordinates, columns
        self.at = coordinates.of(query)
        queries, self.width = self.at.shape
        both = self.width + 1
        self.sums = np.zeros((queries, 1))
        self.means = np.zeros((queries, both))
        self.products = np.zeros((queries, both, both))
        self.squares = np.zeros((queries, 1))
        self.first = np.zeros((queries, self.width))
        self.second = np.zeros((queries, self.width, self.width))

    def read(
        self, table: pa.Table, complete: bool
    ) -> tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]:
        """Return the coordinates and the values of a tile as a matrix, and which values are missing, or None."""
        keys = [Column.from_table(table, column.name, self.folded, column) for column in self.columns]
        value = Column.from_table(table, self.like.name, self.folded, self.like)
        coordinates = self.coordinates.of(self.comparison.query_array(keys))
        missing = value.missing if value.missing.any() else None
        return np.concatenate([coordinates, value.cells[:, None]], axis=1), missing

    def _values(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return column.cells

    def rescale(self, factor: Float[np.ndarray, "q 1"]) -> None:
        """Multiply the weights of all rows by a factor."""
        super().rescale(factor)
        self.products *= factor[:, :, None]
        square = np.square(factor)
        self.squares *= square
        self.first *= square
        self.second *= square[:, :, None]

    def add(
        self,
        weights: Float[np.ndarray, "q rows"],
        values: Num[np.ndarray, "rows ..."],
        total: Float[np.ndarray, "q 1"],
    ) -> None:
        """Add the weights of the rows of a tile, whose matrix is that of `read`."""
        for query, row in enumerate(weights):
            rows = np.flatnonzero(row)
            if not len(rows):
                continue
            w, both = row[rows].astype(np.float64), values[rows].astype(np.float64)
            both[:, :-1] -= self.at[query]
            added, before = float(w.sum()), float(self.sums[query, 0])
            mean = w @ both / added
            offset = both - mean
            delta = mean - self.means[query]
            with np.errstate(over="ignore", invalid="ignore"):  # squares of values of 1e200
                self.products[query] += (w[:, None] * offset).T @ offset
                self.products[query] += np.outer(delta, delta) * (before / (before + added) * added)
            self.means[query] += delta * (added / (before + added))
            self.sums[query, 0] = before + added
            square, d = w * w, both[:, :-1]
            self.squares[query, 0] += square.sum()
            self.first[query] += square @ d
            self.second[query] += (square[:, None] * d).T @ d

    def aggregates(self, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]) -> list[Aggregate]:
        """Return the aggregate of each query, and store the lines in `fits`."""
        mass = np.where(self.sums > 0, self.sums, 1.0)
        products, square = self.products / mass[:, :, None], np.square(mass)
        self.fits = solve(
            LocalMoments(
                mean=self.means[:, :-1],
                covariance=products[:, :-1, :-1],
                center=self.means[:, -1],
                variance=products[:, -1, -1],
                cross=products[:, :-1, -1],
                squares=(self.squares / square)[:, 0],
                first=self.first / square,
                second=self.second / square[:, :, None],
            )
        )
        return line_aggregates(self.fits, self.coordinates, self.like)

    def effective(
        self, weights: Float[np.ndarray, "q rows"], coordinates: Float[np.ndarray, "rows width"]
    ) -> Float[np.ndarray, "q rows"]:
        """Return the effective weights of some rows from their weights and coordinates."""
        offsets = [coordinates - at for at in self.at]
        rows = [self.fits.weights(i, row, each) for i, (row, each) in enumerate(zip(weights, offsets, strict=True))]
        return np.stack(rows) if rows else np.zeros(weights.shape)


_QUERIES = 64
SPARE_ROWS = 16
"""Number of rows that are kept beyond those requested, because float32 may exchange rows with nearly equal logits."""

_SUPPORT = 128
_TOLERANCE = 1e-4
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
        self.elements = max(1, comparison.score.elements_per_logit(1, 1))
        self.accumulates = accumulator_for(normalizer, 1, self._plain_values(1), 1) is not None
        self._votes = executor.votes
        # A column of texts or identifiers may have as many labels as rows.
        self.many_labels = self._votes and executor.value_column.kind not in ("category", "boolean")
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
        accumulator = accumulator_for(self.normalizer, count, self._values(query), top + SPARE_ROWS)
        if accumulator is None:
            return self._answer_from_top_rows(queries, query, progress)
        top_rows, line = self._accumulate(query, accumulator, progress), accumulator.values
        summary, aggregates, support, effective = accumulator.finalize()
        if isinstance(line, RunningLine):
            weigh = partial(accumulator.weights, summary=summary)
            top_rows = np.union1d(top_rows, self._largest_effective(query, line, weigh, progress))
        comparison, columns = self._over(top_rows)
        logits = self._exact_logits(comparison, columns, query)
        weights = accumulator.weights(logits, summary) if len(top_rows) else logits
        rows, heaviest = largest_weights(weights, top)
        nearest = rows[:, 0]
        if isinstance(line, RunningLine):
            weights = line.effective(weights, line.coordinates.of(comparison.key))
            support, effective = None, line.fits.rows
            rows, heaviest = largest_effective(weights, top)
        results = QueryResults(rows, heaviest, nearest, support, effective, aggregates)
        return self._entries(queries, query, comparison, results, top_rows)

    def _accumulate(
        self, query: Shaped[np.ndarray, "q ..."], accumulator: Accumulator[Any], progress: Progress | None
    ) -> Int[np.ndarray, " rows"]:
        """Add all rows to an accumulator, and return the indices of the rows with the largest weights."""

        def consume(logits: Float[np.ndarray, "q n"], first: int, values: Shaped[np.ndarray, "n ..."] | None) -> None:
            assert values is not None
            accumulator.accumulate(logits, first, values)

        self._pass(query, consume, progress, accumulator.values)
        return accumulator.top_rows.union()

    def _largest_effective(
        self,
        query: Shaped[np.ndarray, "q ..."],
        line: RunningLine,
        weigh: Callable[[Float[np.ndarray, "q n"]], Float[np.ndarray, "q n"]],
        progress: Progress | None,
    ) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows with the largest effective weights, which are known after the first pass."""
        top_rows = TopRows(len(query), self.top + SPARE_ROWS)

        def consume(logits: Float[np.ndarray, "q n"], first: int, values: Shaped[np.ndarray, "n ..."] | None) -> None:
            assert values is not None
            size = np.abs(line.effective(weigh(logits), values[:, :-1]))
            top_rows.update(np.where(size > 0, size, -np.inf), first)

        self._pass(query, consume, progress, line)
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
            logits=self.logits.description + _NAMES_COST * self.comparison.one_key,
            sums=self.accumulates,
            passes=-(-max(1, queries) // self.queries_at_once) * (1 if self.line is None else 2),
            bytes=self.rows.size_of(self.names),
            memory=self._memory(max(1, min(queries, self.queries_at_once))),
            grows=self.present is not None or (self.accumulates and self._votes),
        )

    def _memory(self, q: int) -> int:
        """Return an estimate of the memory that a pass for `q` queries uses, in bytes."""
        tile = min(self.rows.tile_rows(self.names), self.rows.num_rows)
        texts = sum(column.original is not None for column in self.executor.examples)
        width = sum(max(1, column.width) for column in self.statistics.columns.values()) + 24 * texts
        pairs = min(min(tile, tile_pass.ROWS_AT_ONCE) * q, max(q, tile_pass.TILE_NUMBERS // self.elements))
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

    def _plain_values(self, queries: int) -> StreamedAggregator:
        executor = self.executor
        return streamed_aggregator_for(executor.value_column, executor.fold, queries, executor.votes)

    def _values(self, query: Shaped[np.ndarray, "q ..."]) -> StreamedAggregator:
        if self.line is None:
            return self._plain_values(len(query))
        like, fold, columns = self.executor.examples[-1], self.executor.fold, self.executor.query_columns
        return RunningLine(like, fold, self.comparison, self.line, columns, query)

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
        consume: Consumer,
        progress: Progress | None,
        aggregator: StreamedAggregator | None,
    ) -> None:
        """Call `consume` for all rows of the store; see `TilePass.run`."""
        cell_logits, fast = self._logits(query)
        rows = TilePass(cell_logits, fast, self._plain_values(1), len(query), self.elements, self.present)
        for number, tile in enumerate(self.rows.tiles(self.names, unverified=isinstance(fast, VectorLogits))):
            try:
                rows.run(tile, number not in self.incomplete_tiles, consume, aggregator)
            except Exception:
                tile.block.verify()  # damaged numbers may cause any error
                raise
            report(progress, "reading blocks", tile.number + tile.table.num_rows, self.rows.num_rows)

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
        rows = self._candidates(query, progress)
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

    def _candidates(self, query: Shaped[np.ndarray, "q ..."], progress: Progress | None) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows that can have non-zero weight for some query."""
        top_k = self.normalizer.top_k
        top_rows = TopRows(len(query), (top_k or _SUPPORT) + SPARE_ROWS)
        self._pass(query, lambda logits, first, _: top_rows.update(logits, first), progress, None)
        return top_rows.union() if top_k is not None else self._support(query, top_rows, progress)

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
