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
from typing import TYPE_CHECKING, Self

import numpy as np

from qkv.core.checksums import digest
from qkv.core.progress import Progress
from qkv.core.typing import Bool, Float, Int
from qkv.database.answer import Entry
from qkv.database.execute.aggregates import aggregator_for
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import Executor
from qkv.database.execute.group_answers import finds_groups
from qkv.database.execute.in_memory import RowsWithoutValue
from qkv.database.execute.notes import read_note, save_note
from qkv.database.execute.row_reader import StoredRows
from qkv.database.execute.scan import (
    VectorNorms,
)
from qkv.database.execute.statistics import TableStatistics, load_statistics, restricted_statistics
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.execute.streamed_call import StreamedCall
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.comparisons import Comparison, MixedComparison
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column
from qkv.engine import explain
from qkv.errors import DamagedError, KindError, OptionError, RefusedError, ShapeError
from qkv.estimators.regression.bandwidth import Bandwidth
from qkv.masks import Keys as KeysMask
from qkv.normalizers.base import Normalizer
from qkv.store import Store
from qkv.store.arrow_files import parse_table
from qkv.store.row_files import serialize

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.execute.row_reader import StoredRows


__all__ = ["StreamedExecutor"]


class SampledChooser(ComparisonChooser):
    """A `ComparisonChooser` for stores that uses a sample of the rows and statistics of all rows.

    Chosen bandwidths and distances are saved with the statistics.

    Args:
        columns: the key columns of the sample.
        value: the value column of the sample.
        statistics: the statistics of all rows.
        targets: as in `ComparisonChooser`.
        votes: whether answers are votes, for which bandwidths are chosen apart.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        value: Column,
        statistics: TableStatistics,
        targets: Callable[[Int[np.ndarray, " n"]], Float[np.ndarray, "n targets"] | str],
        votes: bool = False,
    ) -> None:
        super().__init__(tuple(columns), value, np.ones(len(columns[0].cells), bool), targets)
        self.statistics, self.votes = statistics, votes

    def bandwidth(self, points: Float[np.ndarray, "rows width"], progress: Progress | None) -> Bandwidth:
        """Return the bandwidth saved with the statistics. If there is none, choose one from the sample and save it."""
        saved = self.statistics.bandwidths
        name = ("linear" if self.linear else "mean") + " by vote" * self.votes
        if name not in saved:
            targets = self.targets(np.arange(len(points)))
            saved[name] = self.search(points, targets, progress, self.total, self._groups)
            self.statistics.save()
        self._bandwidths[self.search] = saved[name]
        return saved[name]

    @property
    def sample(self) -> Int[np.ndarray, " sample"]:
        """All rows of the sample, see `ComparisonChooser.sample`."""
        return np.arange(len(self.complete))

    @property
    def total(self) -> int:
        """The number of complete rows of the store."""
        return self.statistics.complete

    def mean_and_deviation(
        self, indices: tuple[int, ...], stacked: Float[np.ndarray, "rows width"]
    ) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, " width"]]:
        """Return the mean and the standard deviation of each selected column over all complete rows of the store.

        Timestamps are in days.
        """
        columns = [self.columns[index] for index in indices]
        found = [self.statistics.columns[column.name] for column in columns]
        pairs = list(zip(columns, found, strict=True))
        mean = [np.array(each.mean or [0.0] * column.width) / column.unit for column, each in pairs]
        deviation = [np.array(each.deviation or [1.0] * column.width) / column.unit for column, each in pairs]
        return np.concatenate(mean), np.concatenate(deviation)

    def most_repeats(self, column: Column) -> int:
        """Return the number of complete rows of the store that hold the most common text of a key column."""
        return self.statistics.columns[column.name].repeats

    def largest(self, column: Column) -> float:
        """Return the largest magnitude of the numbers of a key column over the complete rows of the store."""
        return self.statistics.columns[column.name].largest

    def form(self, column: Column) -> str:
        """Return the form that the texts of a key column have in all complete rows of the store."""
        return self.statistics.columns[column.name].form

    def nearest_quantile(self, key: Float[np.ndarray, "rows width"], unit: str) -> float:
        """Return the 99th percentile of the distance of a key to its nearest other key, estimated from the sample."""
        saved = self.statistics.nearest_quantiles
        if unit not in saved:
            saved[unit] = super().nearest_quantile(key, unit)
            self.statistics.save()
        return saved[unit]


def load_example_rows(rows: StoredRows, indices: Int[np.ndarray, " n"], columns: Sequence[str]) -> pa.Table:
    """Return the rows of a store with some indices from its cache folder, or read and save them.

    Args:
        rows: the rows of a store.
        indices: their indices, in ascending order.
        columns: the columns to read.
    """
    import pyarrow as pa

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
        cache: whether bandwidths and distances are saved with the statistics, and read from there.

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
        cache: bool = True,
    ) -> None:
        super().__init__(tuple(key), value, name, fold)
        self.table = StoredRows(store, hidden)
        self.title = f"{name}, version {self.table.store.version}"
        statistics = load_statistics(self.table, key, value, fold, progress)
        self.cache = cache
        self.statistics = statistics if cache else statistics.without_choices()
        missing = {name: column.missing for name, column in self.statistics.columns.items()}
        self._set_counts(missing, self.statistics.complete)
        self.examples = self.read_columns(load_example_rows(self.table, self.statistics.examples, self._names))
        self.query_columns = self.examples[:-1]
        self._interpret_values(self.value_column, self.statistics.columns[value].largest)
        self.norms = VectorNorms()
        self.selected: Bool[np.ndarray, " rows"] | None = None
        self._columns: tuple[Column, ...] | None = None
        self._chooser: SampledChooser | None = None
        self._rows_without_value: RowsWithoutValue | None = None

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys((*self.key, self.value)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key columns and the value column of a sample of the selected rows, as arrays."""
        if self._columns is None:
            self._columns = self.read_columns(self.table.take(self.statistics.sample, self._names))
        return self._columns

    @property
    def chooser(self) -> SampledChooser:
        """The `ComparisonChooser`, which chooses from a sample of the selected rows and statistics of all of them."""
        if self._chooser is None:
            numeric = any(column.traits.compared == "distance" for column in self.query_columns)
            columns = self.columns[:-1] if numeric else self.query_columns
            value = self.columns[-1] if numeric else self.examples[-1]
            self._chooser = SampledChooser(columns, value, self.statistics, self._targets, self.votes)
        return self._chooser

    def restrict(self, selected: Bool[np.ndarray, " rows"], progress: Progress | None) -> Self:
        """Return an executor over the selected rows, with statistics of these rows; see `Executor.restrict`."""
        out = copy.copy(self)
        columns = self.key, self.value, self.fold
        statistics = restricted_statistics(self.statistics, self.table, *columns, selected, progress)
        out.statistics = statistics if self.cache else statistics.without_choices()
        out.choices = self.choices.with_rows(selected)
        out.selected = selected
        out.selected_rows, out.selected_count = out.statistics.complete, int(selected.sum())
        out.selected_missing = self._by_source(statistics.selected_missing)
        out._columns = out._rows_without_value = None
        out._forget()
        out._interpret_values(out.value_column, out.statistics.columns[self.value].largest)
        return out

    def _forget(self) -> None:
        super()._forget()
        self._chooser = None

    @property
    def value_column(self) -> Column:
        """The value column of a few rows, as an array."""
        return self.examples[-1]

    def run(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], StreamedPlan]:
        """Answer queries in one or two passes over the rows for each group of queries; see `Executor.run`."""
        self._check(comparison, normalizer, queries)
        present = self.selection(options)
        call = self._call(comparison, normalizer, present, options, queries)
        entries: list[Entry] = []
        step = call.queries_at_once
        for start in range(0, len(queries), step):
            entries += call.answer(queries.slice(start, min(start + step, len(queries))), options.progress)
        plan = call.plan(len(queries))
        if finds_groups(comparison, normalizer, options):
            plan = replace(plan, passes=plan.passes + 1)  # the pass that finds the groups
        return entries, plan

    def _call(
        self,
        comparison: Comparison,
        normalizer: Normalizer,
        present: Bool[np.ndarray, " rows"] | None,
        options: AskOptions,
        queries: Queries,
    ) -> StreamedCall:
        return StreamedCall(self, comparison, normalizer, present, options, queries)

    def read_columns(self, table: pa.Table) -> tuple[Column, ...]:
        """Return the key columns and the value column of a table as arrays."""
        like = [self._empty_column(name) for name in (*self.key, self.value)]
        return tuple(Column.from_table(table, column.name, self.fold, column) for column in like)

    def read_rows(self, rows: Int[np.ndarray, " n"]) -> tuple[Column, ...]:
        """Return the key columns and the value column of some rows; see `Executor.read_rows`."""
        return self.read_columns(self.table.take(rows, self._names))

    def rows_without_value(self, options: AskOptions) -> Iterator[RowsWithoutValue]:
        """Yield the selected rows that have a key and no value; see `Executor.rows_without_value`."""
        if self._rows_without_value is not None:
            yield self._rows_without_value.masked_by(options.mask)
            return
        rows = self.statistics.rows_without_value(self.selected)
        for start in range(0, len(rows), _ROWS_WITHOUT_VALUE):
            some = rows[start : start + _ROWS_WITHOUT_VALUE]
            part = RowsWithoutValue(self, some, self.read_rows(some)[:-1])
            if len(some) == len(rows):
                self._rows_without_value = part
            yield part.masked_by(options.mask)

    def group_rows(
        self, comparison: MixedComparison, options: AskOptions
    ) -> Iterator[tuple[MixedComparison, Bool[np.ndarray, " rows"]]]:
        """Yield a comparison over each tile of rows, in one pass; see `Executor.group_rows`."""
        selected = self.selection(options)
        for tile in self.table.tiles(tuple(dict.fromkeys((*self.key, self.value)))):
            columns = self.read_columns(tile.table)
            present = ~np.logical_or.reduce([column.missing for column in columns])
            if selected is not None:
                present &= selected[tile.number : tile.number + len(present)]
            yield comparison.with_rows(columns[:-1]), present

    def sample(self, comparison: Comparison) -> tuple[Comparison, Column]:
        """Return a comparison over a sample of the selected rows, and the value column; see `Executor.sample`."""
        return comparison.with_rows(self.columns[:-1]), self.columns[-1]

    def _empty_column(self, name: str) -> Column:
        """Return the column `name` without rows, with the timestamp origin and vector width of the store."""
        statistics = self.statistics.columns[name]
        empty = Column.from_table(self.table.store.empty([name]), name, self.fold)
        return replace(empty, cells=np.zeros((0, statistics.width)), origin=statistics.origin)

    def _targets(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n targets"] | str:
        return aggregator_for(self.columns[-1], self.votes).targets(rows)

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

    def selection(self, options: AskOptions) -> Bool[np.ndarray, " rows"] | None:
        """Return which rows predicate and mask select, or None without both; see `Executor.selection`."""
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
