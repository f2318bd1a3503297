"""Execution of queries over a store that exceeds the memory limit, block by block.

    choose     the comparison, from statistics of the selected rows and a sample of them
    pass       tile by tile: logits, then sums (Softmax, Sum, Mean …) or top rows (TopK, Hard, Sparsemax …)
    evidence   the rows with the largest weights are read again, and compared in float64

If only the top rows can have weight, attention is computed over these rows in memory. The answers are the same as
for a table in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa

from qkv.core.checksums import digest
from qkv.core.formatting import counted, memory_text
from qkv.core.ordering import RunningTopK
from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.database.answer import Entry
from qkv.database.choice_cache import ChoiceCache
from qkv.database.execute import block_scan
from qkv.database.execute.aggregates import Values, value_sums
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import Executor, finds_groups
from qkv.database.execute.block_scan import SPARE_ROWS, BlockScan, is_bounded
from qkv.database.execute.code_scan import CertifiedRows, CodeScan, VectorCodes
from qkv.database.execute.entries import NO_MATCHING_ROW, QueryResults, build_entries, largest_weights
from qkv.database.execute.in_memory import RowsWithoutValue, attend_to_some
from qkv.database.execute.line_fit import LineSums, effective_evidence, largest_effective
from qkv.database.execute.partial_sums import PartialSums, accumulates, tile_weights
from qkv.database.execute.row_lists import rows_of_any_query
from qkv.database.execute.row_reader import RowTile, StoredRows, read_note, save_note
from qkv.database.execute.scan import VectorLogits, VectorNorms, exact_logits
from qkv.database.execute.statistics import TableStatistics, load_statistics, restricted_statistics
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.comparisons import Comparison, MixedComparison, find_coordinates
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column
from qkv.errors import DamagedError, KindError, OptionError, RefusedError, ShapeError
from qkv.normalizers.base import Normalizer
from qkv.plan.checks import check_problem, read_problem
from qkv.plan.spec import Spec
from qkv.plan.trial import check_functions
from qkv.store import Store
from qkv.store.arrow_files import parse_table
from qkv.store.row_files import serialize

_QUERIES = 64
_MOST_VOTES = 4 * 2**20
# An attempt that fails takes a quarter of the time of a pass over all rows, of eight passes 3 %.
_PAUSE = 8
_OMITTED = "left out: rows with at most {:.2g} of the weight"
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
        self.names = tuple(executor.names)
        self.incomplete_tiles = set(self.statistics.incomplete_tiles.tolist())
        self.columns = executor.query_columns, executor.value_column
        self.accumulates = accumulates(normalizer)
        if not (self.accumulates or is_bounded(normalizer)):
            raise RefusedError(
                f"normalizer must be computable block by block for {executor.name}, which exceeds the memory limit, "
                f"got {normalizer}, which needs all logits of a query at once. Choose another normalizer, or open the "
                "store with more memory, such as memory='2 GiB'."
            )
        self._certified: list[CertifiedRows] = []
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
        if (certified := self._certify(query, progress)) is not None:
            entries = self._answer_from_candidates(queries, query, certified.rows)
            return [
                replace(each, omitted=share, remarks=(*each.remarks, *[_OMITTED.format(share)] * (share > 0)))
                for each, share in zip(entries, certified.omitted.tolist(), strict=True)
            ]
        if not self.accumulates:
            return self._answer_from_candidates(queries, query, self.candidates(query, progress))
        top = max(self.top, self.comparison.candidate_rows)
        sums, top_rows = self.sums(query, top + SPARE_ROWS, progress)
        summary, aggregates, perplexity, effective = sums.finalize(self.normalizer, self.columns[1])
        line, weigh = sums.values, partial(tile_weights, self.normalizer, summary=summary)
        if isinstance(line, LineSums):
            top_rows = np.union1d(top_rows, self._largest_effective(query, line, weigh, progress))
        comparison, _ = self._over(top_rows)
        weights = exact_logits(comparison, query)
        weights = weigh(logits=weights) if len(top_rows) else weights
        rows, heaviest = largest_weights(weights, top)
        nearest = rows[:, 0]
        if isinstance(line, LineSums):
            weights = effective_evidence(line.fits, weights, line.coordinates.of(comparison.key), line.at)
            perplexity, effective = None, line.fits.rows
            rows, heaviest = largest_effective(weights, top)
        results = QueryResults(rows, heaviest, nearest, perplexity, effective, aggregates)
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
        return accumulator.sums, rows_of_any_query(accumulator.top_rows)

    def candidates(self, query: Shaped[np.ndarray, "q ..."], progress: Progress | None) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows that can have non-zero weight for some query."""
        scan = self._scan(query)
        return scan.candidate_positions(partial(self._tiles, scan, progress), self.normalizer)

    def _certify(self, query: Shaped[np.ndarray, "q ..."], progress: Progress | None) -> CertifiedRows | None:
        """Return the rows that can have weight by the codes of a compressed store, or None if all rows are compared."""
        executor, tolerance = self.executor, self.options.tolerance
        call = str(self.comparison.score), str(self.normalizer), tolerance, len(query) > 1
        codes, scan = executor.codes, self._scan(query)
        if codes is None or self.line is not None or not isinstance(scan.fast, VectorLogits):
            return None
        if paused := codes.paused.pop(call, 0):
            codes.paused |= {call: paused - 1} if paused > 1 else {}
            return None
        own = CodeScan(scan.fast, self.normalizer, codes, self.rows.num_rows, tolerance)
        if not own.usable:
            return None
        found = own.find(partial(self._tiles, scan, progress), self._excluded)
        if found is None:
            codes.paused[call] = _PAUSE
        else:
            self._certified.append(found)
        return found

    def _excluded(self, tile: RowTile) -> Bool[np.ndarray, " rows"] | None:
        """Return which rows of a tile are not selected or lack a cell, or None for no row."""
        missing = () if tile.complete else (column.missing for column in self.executor.read_columns(tile.table))
        return block_scan.excluded_rows(tile.selected, *missing)

    def _largest_effective(
        self,
        query: Shaped[np.ndarray, "q ..."],
        line: LineSums,
        weigh: Callable[..., Float[np.ndarray, "q n"]],
        progress: Progress | None,
    ) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows with the largest effective weights, which are known after the first pass."""
        top_rows = RunningTopK((len(query),), self.top + SPARE_ROWS)

        def consume(logits: Float[np.ndarray, "q n"], first: int, values: Float[np.ndarray, "n width"]) -> None:
            size = np.abs(effective_evidence(line.fits, weigh(logits=logits), values[:, :-1], line.at))
            top_rows.update(np.where(size > 0, size, -np.inf), first)

        scan = self._scan(query)
        scan.run(self._tiles(scan, progress), consume, line)
        return rows_of_any_query(top_rows)

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
            sums=self.accumulates and not self._certified,
            passes=-(-max(1, queries) // self.queries_at_once) * (1 if self.line is None else 2),
            bytes=self.rows.size_of(self.names),
            codes=self._codes_text(),
            memory=self._memory(max(1, min(queries, self.queries_at_once))),
            grows=self.present is not None or (self.accumulates and self._votes),
        )

    def _codes_text(self) -> str:
        """Return what was read of a compressed store in words; "" if all rows were compared."""
        if not self._certified:
            return ""
        read = sum(len(each.rows) for each in self._certified)
        omitted = max(each.omitted.max() for each in self._certified)
        text = f"{memory_text(sum(each.size for each in self._certified))} read; {read:,} of "
        text += f"{counted(self.rows.num_rows * len(self._certified), 'row', 'rows')} read exactly, "
        text += memory_text(read * self.rows.size_of(self.names) // max(1, self.rows.num_rows))
        return text + f"; weight left out: at most {omitted:.2g}" * self.accumulates

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

    def _answer_from_candidates(
        self, queries: Queries, query: Shaped[np.ndarray, "q ..."], rows: Int[np.ndarray, " rows"]
    ) -> list[Entry]:
        """Return entries from attention in memory over the rows that can have weight."""
        comparison, columns = self._over(rows)
        if not len(rows):
            none = np.full((len(query), 1), -1)
            results = QueryResults(none, np.zeros((len(query), 1)), none[:, 0], None, None, [])
            return self._entries(queries, query, comparison, results, rows)
        options, votes = replace(self.options, mask=None, progress=None), self.executor.votes
        some = self.normalizer, rows, columns, votes, options, self.calibration
        return attend_to_some(queries, comparison, *some)[0]


class SampledChooser(ComparisonChooser):
    """A `ComparisonChooser` for stores that uses a sample of the rows and statistics of all rows.

    Args:
        columns: the key columns of the sample.
        value: the value column of the sample.
        statistics: the statistics of all rows.
        targets, cache, votes: as in `ComparisonChooser`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        value: Column,
        statistics: TableStatistics,
        targets: Callable[[Int[np.ndarray, " n"]], Float[np.ndarray, "n targets"] | str],
        cache: ChoiceCache,
        votes: bool,
    ) -> None:
        super().__init__(tuple(columns), value, np.ones(len(columns[0].cells), bool), targets, cache, votes)
        self.statistics = statistics

    @property
    def sample(self) -> Int[np.ndarray, " sample"]:
        return np.arange(len(self.complete))

    @property
    def total(self) -> int:
        return self.statistics.complete

    def mean_and_deviation(
        self, indices: tuple[int, ...], stacked: Float[np.ndarray, "rows width"]
    ) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, " width"]]:
        columns = [self.columns[index] for index in indices]
        found = [self.statistics.columns[column.name] for column in columns]
        pairs = list(zip(columns, found, strict=True))
        mean = [np.array(each.mean or [0.0] * column.width) / column.unit for column, each in pairs]
        deviation = [np.array(each.deviation or [1.0] * column.width) / column.unit for column, each in pairs]
        return np.concatenate(mean), np.concatenate(deviation)

    def most_repeats(self, column: Column) -> int:
        return self.statistics.columns[column.name].repeats

    def largest(self, column: Column) -> float:
        return self.statistics.columns[column.name].largest

    def form(self, column: Column) -> str:
        return self.statistics.columns[column.name].form


def load_example_rows(rows: StoredRows, indices: Int[np.ndarray, " n"], columns: Sequence[str]) -> pa.Table:
    """Return the rows of a store with some indices from its cache folder, or read and save them."""
    chosen = digest("\n".join(columns).encode())
    path = rows.store.cache_folder / f"{chosen[:24]}.examples"
    made_from = {"store": rows.store.identity, "columns": chosen, "rows": digest(indices.tobytes())}
    schema = rows.store.empty(columns).schema
    if (note := read_note(path, made_from)) is not None and "rows" in note:
        try:
            saved = parse_table(pa.py_buffer(note.bytes("rows")), path.name)
        except DamagedError:
            saved = schema.empty_table()
        if saved.num_rows == len(indices) and saved.schema.equals(schema):
            return saved
    table = rows.take(indices, columns)
    save_note(path, made_from, {}, {"rows": np.frombuffer(serialize(table), np.uint8)})
    return table


_ROWS_WITHOUT_VALUE = 2**18
"""Number of rows without a value whose keys are in memory at a time."""


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
    call: type[StreamedCall] = StreamedCall

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
        self.examples = self.read_columns(load_example_rows(self.table, self.statistics.examples, self.names))
        self.query_columns = self.examples[:-1]
        self._interpret_values(self.value_column, self.statistics.columns[value].largest)
        self.norms = VectorNorms()
        self.codes = VectorCodes() if VectorCodes.saved(store.cache_folder) else None
        self.selected: Bool[np.ndarray, " rows"] | None = None
        self._columns: tuple[Column, ...] | None = None
        self._rows_without_value: RowsWithoutValue | None = None

    @property
    def names(self) -> list[str]:
        """The key columns and the value column, each once."""
        return list(dict.fromkeys((*self.key, self.value)))

    @property
    def columns(self) -> tuple[Column, ...]:
        if self._columns is None:
            self._columns = self.read_columns(self.table.take(self.statistics.sample, self.names))
        return self._columns

    @property
    def chooser(self) -> SampledChooser:
        """The `ComparisonChooser`, which chooses from a sample of the selected rows and statistics of all of them."""

        def build() -> SampledChooser:
            numeric = any(column.traits.compared == "distance" for column in self.query_columns)
            columns = self.columns[:-1] if numeric else self.query_columns
            value = self.columns[-1] if numeric else self.examples[-1]
            return SampledChooser(columns, value, self.statistics, self._targets, self.choices, self.votes)

        return self._cached("chooser", None, build)

    def restrict(self, selected: Bool[np.ndarray, " rows"], progress: Progress | None) -> Self:
        out = copy.copy(self)
        columns = self.key, self.value, self.fold
        out.statistics = restricted_statistics(self.statistics, self.table, *columns, selected, progress)
        out.choices = self.choices.with_rows(selected)
        out.selected = selected
        out.selected_rows, out.selected_count = out.statistics.complete, int(selected.sum())
        out.selected_missing = self._by_source(out.statistics.selected_missing)
        out._columns = out._rows_without_value = None
        out._forget()
        out._interpret_values(out.value_column, out.statistics.columns[self.value].largest)
        return out

    @property
    def value_column(self) -> Column:
        return self.examples[-1]

    def run(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], StreamedPlan]:
        self._check(comparison, normalizer, queries)
        present = self.selection(options)
        call = self.call(self, comparison, normalizer, present, options, queries)
        entries: list[Entry] = []
        step = call.queries_at_once
        for start in range(0, len(queries), step):
            entries += call.answer(queries.slice(start, min(start + step, len(queries))), options.progress)
        plan = call.plan(len(queries))
        if finds_groups(comparison, normalizer, options):
            plan = replace(plan, passes=plan.passes + 1)  # the pass that finds the groups
        return entries, plan

    def read_columns(self, table: pa.Table) -> tuple[Column, ...]:
        """Return the key columns and the value column of a table as arrays."""
        like = [self._empty_column(name) for name in (*self.key, self.value)]
        return tuple(Column.from_table(table, column.name, self.fold, column) for column in like)

    def read_rows(self, rows: Int[np.ndarray, " n"]) -> tuple[Column, ...]:
        return self.read_columns(self.table.take(rows, self.names))

    def rows_without_value(self, options: AskOptions) -> Iterator[RowsWithoutValue]:
        if self._rows_without_value is not None:
            yield self._rows_without_value.masked_by(options)
            return
        rows = self.statistics.rows_without_value(self.selected)
        for start in range(0, len(rows), _ROWS_WITHOUT_VALUE):
            some = rows[start : start + _ROWS_WITHOUT_VALUE]
            part = RowsWithoutValue(self, some, self.read_rows(some)[:-1])
            if len(some) == len(rows):
                self._rows_without_value = part
            yield part.masked_by(options)

    def group_rows(
        self, comparison: MixedComparison, options: AskOptions
    ) -> Iterator[tuple[MixedComparison, Bool[np.ndarray, " rows"]]]:
        selected = self.selection(options)
        for tile in self.table.tiles(self.names):
            columns = self.read_columns(tile.table)
            present = ~np.logical_or.reduce([column.missing for column in columns])
            if selected is not None:
                present &= selected[tile.number : tile.number + len(present)]
            yield comparison.with_rows(columns[:-1]), present

    def sample(self, comparison: Comparison) -> tuple[Comparison, Column]:
        return comparison.with_rows(self.columns[:-1]), self.columns[-1]

    def _empty_column(self, name: str) -> Column:
        """Return the column `name` without rows, with the timestamp origin and vector width of the store."""
        statistics = self.statistics.columns[name]
        empty = Column.from_table(self.table.store.empty([name]), name, self.fold)
        return replace(empty, cells=np.zeros((0, statistics.width)), origin=statistics.origin)

    def _targets(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n targets"] | str:
        return Values.of(self.columns[-1], self.votes).targets(rows)

    def _check(self, comparison: Comparison, normalizer: Normalizer, queries: Queries) -> None:
        """Raise an error if the normalizer samples, or if the engine does not support the score for the key columns."""
        if normalizer.stochastic:
            raise RefusedError(
                f"normalizer must not sample for {self.name}, which exceeds the memory limit, got {normalizer}. "
                "Choose another normalizer, or open the store with more memory, such as memory='2 GiB'."
            )
        query = comparison.query_array(queries.slice(0, 1).columns)
        spec: Spec = Spec(comparison.score, normalizer)
        try:
            problem = read_problem(query, comparison.key, np.ones((len(comparison.key), 1)), spec, (), None)
            check_problem(problem)
            check_functions(problem)
        except (KindError, ShapeError) as error:
            raise comparison.unsupported(error) from None

    def selection(self, options: AskOptions) -> Bool[np.ndarray, " rows"] | None:
        present, mask, array = self.selected, options.mask, options.allowed_keys
        if mask is None:
            return present
        if array is None:
            raise OptionError(
                f"mask must be masks.AllowedKeys with one boolean per row for {self.name}, which exceeds the memory "
                f"limit, got {mask}. Use masks.AllowedKeys, select rows with where, or open the store with more "
                "memory, such as memory='2 GiB'."
            )
        mask.check(1, self.table.num_rows)
        array = np.broadcast_to(array, self.table.num_rows)
        return array if present is None else present & array
