"""Execution of queries over a table in memory, by attention over all rows for one chunk of queries at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa

from qkv.core.progress import Progress, report
from qkv.core.threads import on_cores
from qkv.core.typing import Bool, Int, Shaped
from qkv.database.answer import Entry
from qkv.database.execute.aggregates import Values
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import Executor
from qkv.database.execute.entries import NO_MATCHING_ROW, QueryResults, build_entries, largest_weights, with_first_rows
from qkv.database.execute.line_fit import effective_evidence, largest_effective, line_aggregates
from qkv.database.execute.missing_values import key_cells
from qkv.database.execute.row_reader import StoredRows
from qkv.database.execute.uncertainty import Calibration, effective_rows, perplexity
from qkv.database.io.cell_notes import cell_note_of, line_note
from qkv.database.io.identifiers import is_whole_number
from qkv.database.io.sources import require_columns
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.comparisons import (
    Comparison,
    Coordinates,
    DistanceComparison,
    MixedComparison,
    find_coordinates,
    from_differences,
)
from qkv.database.keys.name_comparison import NameComparison
from qkv.database.keys.name_index import NameIndex, PresentNames
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column, key_names
from qkv.engine import observe
from qkv.errors import DataError, KindError, ShapeError
from qkv.estimators.regression.local_linear import fit_rows
from qkv.masks import AllowedKeys
from qkv.masks.base import Mask, and_masks
from qkv.normalizers import Hard
from qkv.normalizers.base import Normalizer
from qkv.plan.plan import Plan
from qkv.readouts import Dense, TopWeights
from qkv.scores import Names

_QUERIES_AT_ONCE = 1024
# Text keys of so many rows are indexed at the first query, and found in groups of queries of this size.
_INDEXED_ROWS = 1000
_QUERIES_FOUND_AT_ONCE = 32
# From this number of rows on, the rows within reach of a query are found before they are compared.
_LARGE_TABLE = 50_000
# Statistics need the weights of all rows: at most this many are held at once, 8 MiB of float64, between checkpoints.
_MOST_WEIGHTS = 2**20


class InMemoryExecutor(Executor):
    """Executor that answers queries over a pyarrow table in memory.

    Args:
        table: the rows.
        key, value, name, fold: as in `Executor`.
        hidden: columns that are compared but not shown.

    Raises:
        DataError: A column is missing, or no row has both key and value.
    """

    table: pa.Table | StoredRows
    rows_text, indexed_rows = "all rows", _INDEXED_ROWS

    def __init__(
        self,
        table: pa.Table,
        key: str | Sequence[str],
        value: str,
        name: str,
        fold: bool = True,
        hidden: Sequence[str] = (),
    ) -> None:
        super().__init__(key_names(key, table.column_names), value, name, fold)
        if not isinstance(value, str):
            raise DataError(f"value must be one column name, got {value!r}. Open the table once for each value column.")
        require_columns(table, (*self.key, value), name)
        if not table.num_rows:
            raise DataError(f"{name} must have at least one row, got none. Open a table with rows.")
        self.table = table.select([name for name in table.column_names if name not in hidden]) if hidden else table
        self.query_columns = tuple(Column.from_table(table, column, fold) for column in self.key)
        self._value_column = Column.from_table(table, value, fold)
        columns = {column.name: column for column in self.columns}
        with_key = ~np.logical_or.reduce([column.missing for column in self.query_columns])
        self.complete = with_key & ~self._value_column.missing
        self.without_value = with_key & self._value_column.missing
        self._rows_without_value: RowsWithoutValue | None = None
        missing = {name: int(column.missing.sum()) for name, column in columns.items()}
        notes = (note.text(name) for name in columns if (note := cell_note_of(table, name)))
        self.cell_notes = tuple(filter(None, (line_note(table), *notes)))
        self._set_counts(missing, int(self.complete.sum()))
        self._interpret_values(self.value_column, self._largest())
        self._values: dict[bool, Values] = {}
        # Shared with the executors over selected rows.
        self._name_indexes: dict[int, NameIndex] = {}
        self._present_names: PresentNames | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.query_columns, self._value_column)

    @property
    def value_column(self) -> Column:
        return self._value_column

    @property
    def values(self) -> Values:
        """The values, which are averaged or vote."""
        if self.votes not in self._values:
            self._values[self.votes] = Values.of(self._value_column, self.votes)
        return self._values[self.votes]

    def _largest(self) -> float:
        """Return the largest magnitude of the selected values if they are whole numbers, otherwise 0."""
        if not is_whole_number(self._value_column):
            return 0.0
        return float(np.abs(self._value_column.cells[self.complete]).max(initial=0.0))

    @property
    def chooser(self) -> ComparisonChooser:
        """The `ComparisonChooser`, which chooses the comparison from all selected rows with key and value."""

        def build() -> ComparisonChooser:
            columns, targets = (self.query_columns, self._value_column), self.values.targets
            return ComparisonChooser(*columns, self.complete, targets, self.choices, self.votes)

        return self._cached("chooser", None, build)

    def restrict(self, selected: Bool[np.ndarray, " rows"], progress: Progress | None) -> Self:
        out = copy.copy(self)
        out.complete, out.without_value = self.complete & selected, self.without_value & selected
        out._rows_without_value = None
        out.selected_rows, out.selected_count = int(out.complete.sum()), int(selected.sum())
        missing = {each.name: int((each.missing & selected).sum()) for each in self.columns}
        out.selected_missing = self._by_source(missing)
        out._present_names = None
        out._forget()
        out.choices = self.choices.with_rows(out.complete)
        out._interpret_values(out.value_column, out._largest())
        return out

    def complete_positions(self) -> Int[np.ndarray, " n"]:
        return np.flatnonzero(self.complete)

    def run(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], Plan]:
        """Answer queries by attention over all selected rows in memory; see `Executor.run`.

        If only the best rows by `Names` take part, they are found by an index, and attention is over these rows. So it
        is over the rows in reach of a query, outside of which the weights of all rows are lost in rounding.
        """
        calibration = partial(self.calibration, comparison, normalizer, options)
        size = self._queries_found_at_once(comparison, normalizer, options)
        whole = comparison, normalizer, self.values, self.complete
        if not (size and len(queries)):
            return attend_to_rows(queries, *whole, options, calibration, self.rows_text)
        quiet, text = replace(options, progress=None), self.rows_text
        entries: list[Entry] = []
        plans = []
        for start in range(0, len(queries), size):
            group = queries.slice(start, start + size)
            rows = self._find(comparison, group, normalizer, options)
            found: list[Entry] = []
            plan = None
            if rows is not None:
                # The Arrow cells of numbers are for the text of keys that do not match.
                columns = [column.take(rows, isinstance(comparison, NameComparison)) for column in self.columns]
                some = comparison, normalizer, rows, columns, self.votes
                found, plan = attend_to_some(group, *some, quiet, calibration, text)
            if plan is None or not (isinstance(comparison, NameComparison) or all(entry.found for entry in found)):
                found, plan = attend_to_rows(group, *whole, quiet, calibration, text)
            entries += found
            plans.append(plan)
            report(options.progress, "answering", len(entries), len(queries))
        return entries, plans[0]

    def _queries_found_at_once(self, comparison: Comparison, normalizer: Normalizer, options: AskOptions) -> int:
        """Return the number of queries whose rows are found together; 0 if all rows are compared."""
        if len(self.complete) < self.indexed_rows or not self.complete.any() or options.mask is not None:
            return 0
        if isinstance(comparison, NameComparison):
            by_index = isinstance(comparison.score, Names) and normalizer.top_k is not None
            return _QUERIES_FOUND_AT_ONCE * (by_index and not normalizer.stochastic)
        in_reach = isinstance(comparison, DistanceComparison) and not (options.linear or self.votes)
        return max(1, _MOST_WEIGHTS // len(self.complete)) if in_reach and len(self.complete) >= _LARGE_TABLE else 0

    def _find(
        self, comparison: Comparison, queries: Queries, normalizer: Normalizer, options: AskOptions
    ) -> Int[np.ndarray, " n"] | None:
        """Return the rows that take part in the answers to some queries in ascending order; None for all rows.

        By names, these are the rows that are among the best of some query or equal it.
        """
        if isinstance(comparison, DistanceComparison):
            query = comparison.query_array(queries.columns)
            return comparison.rows_in_reach(query, normalizer, self.complete, options.top)
        key, score, count = comparison.columns[0], comparison.score, normalizer.top_k or 1
        assert isinstance(comparison, NameComparison)
        assert isinstance(score, Names)
        if self._present_names is None:
            if key not in self._name_indexes:
                column = self.query_columns[key]
                names, rows = column.distinct
                self._name_indexes[key] = NameIndex(names, np.where(column.missing, -1, rows))
            self._present_names = PresentNames(self._name_indexes[key], self.complete)
        texts = comparison.query_array(queries.columns).tolist()
        least = comparison.min_similarity
        found = [self._present_names.best_rows(text, score, count, least) for text in texts]
        # Of a group of missing queries, the first row is compared.
        return np.unique(np.concatenate([np.flatnonzero(self.complete)[:1], *found]))

    def group_rows(
        self, comparison: MixedComparison, options: AskOptions
    ) -> Iterator[tuple[MixedComparison, Bool[np.ndarray, " rows"]]]:
        yield comparison, self.selection(options)

    def selection(self, options: AskOptions) -> Bool[np.ndarray, " rows"]:
        array = options.allowed_keys
        return self.complete if array is None else np.asarray(self.complete & array)

    def rows_without_value(self, options: AskOptions) -> Iterator[RowsWithoutValue]:
        if self._rows_without_value is None and self.without_value.any():
            rows = np.flatnonzero(self.without_value)
            self._rows_without_value = RowsWithoutValue(
                self, rows, [column.take(rows) for column in self.query_columns]
            )
        if self._rows_without_value is not None:
            yield self._rows_without_value.masked_by(options)

    def read_rows(self, rows: Int[np.ndarray, " n"]) -> tuple[Column, ...]:
        return tuple(column.take(rows) for column in self.columns)

    def sample(self, comparison: Comparison) -> tuple[Comparison, Column]:
        rows = self.chooser.sample
        return comparison.with_rows([column.take(rows) for column in self.query_columns]), self.columns[-1].take(rows)


class RowsWithoutValue(InMemoryExecutor):
    """Executor over some rows of a table that have a key and no value, which finds the keys that queries mean.

    Args:
        like: the executor over the rows of the table that have a value.
        places: the indices of the rows in the table.
        columns: the key columns of the rows.

    Attributes:
        masked: whether `complete` excludes the rows that the mask of a call excludes.
    """

    masked, indexed_rows = False, 256

    def __init__(self, like: Executor, places: Int[np.ndarray, " rows"], columns: Sequence[Column]) -> None:
        Executor.__init__(self, like.key, like.value, like.name, like.fold)
        self.places, self.query_columns = places, tuple(columns)
        zeros = np.zeros(len(places))
        self._value_column = Column(like.value, "number", zeros, zeros > 0, pa.float64())
        self.complete, self.without_value = zeros == 0, zeros > 0
        self._rows_without_value, self._present_names = None, None
        self._values, self._name_indexes = {}, {}
        self._by_key: dict[object, dict[tuple[object, ...], list[int]]] = {}
        self.rows_text = f"the rows without {like.value}"

    def masked_by(self, options: AskOptions) -> RowsWithoutValue:
        """Return an executor over the rows that a mask of keys allows; the rows themselves for another mask."""
        if (array := options.allowed_keys) is None:
            return self
        out = copy.copy(self)
        out.complete = np.broadcast_to(array if len(array) == 1 else array[self.places], len(self.places))
        out.masked, out._present_names, out._by_key = True, None, {}
        return out

    def rows_by_key(self, comparison: Comparison, columns: tuple[int, ...]) -> dict[tuple[object, ...], list[int]]:
        """Return the indices in the table of the rows by their cells in some columns, see `key_cells`."""
        name = type(comparison), getattr(comparison, "folded", None), columns
        if name not in self._by_key:
            found: dict[tuple[object, ...], list[int]] = {}
            self._by_key[name] = found
            rows = zip(key_cells(comparison, self.query_columns), self.places.tolist(), self.complete, strict=True)
            for key, row, present in rows:
                if present:
                    found.setdefault(tuple(key[column] for column in columns), []).append(row)
        return self._by_key[name]

    def calibration(self, comparison: Comparison, normalizer: Normalizer, options: AskOptions) -> Calibration:
        """Return the factors of the normal distribution, because the database has no values."""
        return Calibration()


def attend_to_rows(
    queries: Queries,
    comparison: Comparison,
    normalizer: Normalizer,
    values: Values,
    present: Bool[np.ndarray, " rows"],
    options: AskOptions,
    calibration: Callable[[], Calibration],
    rows_text: str = "all rows",
) -> tuple[list[Entry], Plan]:
    """Compute attention over the present rows for chunks of queries, and return the entries and the first chunk's plan.

    Of the options, mask, top, seed and progress are used.
    """
    mask = options.mask if present.all() else and_masks(AllowedKeys(present), options.mask)
    line = find_coordinates(comparison) if options.linear else None
    call = _Call(comparison, normalizer, values, present, mask, options, calibration, line, rows_text)
    equal = comparison.lookup() if normalizer is comparison.normalizer else None
    lookup = None if equal is None else replace(call, comparison=equal, normalizer=equal.normalizer or normalizer)
    chunk = max(1, min(_QUERIES_AT_ONCE, _MOST_WEIGHTS // len(present)))

    def answer(start: int) -> tuple[list[Entry], Plan]:
        part = queries.slice(start, start + chunk)
        answered, plan = (lookup or call).answer(part)
        others = np.array([index for index, entry in enumerate(answered) if not entry.found], np.int64)
        if lookup is not None and (len(others) or not len(part)):
            rest = part.take(others)
            similar, plan = call.answer(rest)
            if comparison.one_key:
                similar = _with_rows_of_one_key(lookup, rest, similar)
            for index, entry in zip(others.tolist(), similar, strict=True):
                answered[index] = replace(entry, calls=(*answered[index].calls, *entry.calls))
        return answered, plan

    entries: list[Entry] = []
    plans = []
    # Once also for no queries, so that there is a plan.
    for answered, plan in on_cores(answer, range(0, max(1, len(queries)), chunk)):
        entries += answered
        plans.append(plan)
        report(options.progress, "answering", len(entries), len(queries))
    return entries, plans[0]


def attend_to_some(
    queries: Queries,
    comparison: Comparison,
    normalizer: Normalizer,
    rows: Int[np.ndarray, " n"],
    columns: Sequence[Column],
    votes: bool,
    options: AskOptions,
    calibration: Callable[[], Calibration],
    rows_text: str = "all rows",
) -> tuple[list[Entry], Plan]:
    """Return `attend_to_rows` over some rows of a table.

    Args:
        queries: as in `attend_to_rows`.
        comparison: a comparison over any rows of the table.
        normalizer: as in `attend_to_rows`.
        rows: the indices of the rows in the table.
        columns: the key columns and the value column of these rows.
        votes: whether the values vote.
        options, calibration, rows_text: as in `attend_to_rows`.
    """
    own, values = comparison.with_rows(columns[:-1]), Values.of(columns[-1], votes)
    every = np.ones(len(rows), bool)
    entries, plan = attend_to_rows(queries, own, normalizer, values, every, options, calibration, rows_text)
    return [entry.at(rows) for entry in entries], plan


def _with_rows_of_one_key(lookup: _Call, queries: Queries, entries: list[Entry]) -> list[Entry]:
    """Return entries in which each value comes from all rows whose key equals that of the row of largest weight."""
    found = [index for index, entry in enumerate(entries) if entry.found]
    if not found:
        return entries
    keys = lookup.comparison.key[[entries[index].rows[0] for index in found]]
    one = "the rows of one key" if lookup.rows_text == "all rows" else f"{lookup.rows_text}, of one key"
    lookup = replace(lookup, rows_text=one)
    answered, _ = lookup.answer(queries.take(np.array(found, np.int64)), keys)
    out = list(entries)
    for index, entry in zip(found, answered, strict=True):
        nearness = entries[index].nearness
        similarity = None if nearness is None else np.full(len(entry.rows), nearness[0])
        out[index] = replace(entry, nearness=similarity, calls=(*entries[index].calls, *entry.calls))
    return out


@dataclass(frozen=True, eq=False)
class _Call:
    """The arguments of `attend_to_rows` that are the same for all chunks of queries."""

    comparison: Comparison
    normalizer: Normalizer
    values: Values
    present: Bool[np.ndarray, " rows"]
    mask: Mask | None
    options: AskOptions
    calibration: Callable[[], Calibration]
    line: Coordinates | None
    rows_text: str

    @property
    def allowed(self) -> Bool[np.ndarray, " rows"] | None:
        """The rows that take part; None if they differ between queries."""
        if (array := self.options.allowed_keys) is not None:
            return np.asarray(self.present & array)
        return self.present if self.options.mask is None else None

    def answer(self, queries: Queries, query: Shaped[np.ndarray, "q ..."] | None = None) -> tuple[list[Entry], Plan]:
        """Return the entries that answer some queries, and the plan.

        Args:
            queries: the queries.
            query: the engine's query array; None for that of the queries.
        """
        query = self.comparison.query_array(queries.columns) if query is None else query
        top = min(max(self.options.top, self.comparison.candidate_rows), len(self.present))
        key, mask, normalizer, value = self.comparison.key, self.mask, self.normalizer, self.values.column
        score, ones = from_differences(self.comparison.score, normalizer, query.shape[-1]), np.ones((len(key), 1))
        seed = self.options.seed
        try:
            observed = observe(
                query, key, ones, score=score, normalizer=normalizer, mask=mask, readouts=[Dense()], seed=seed
            )
        except (KindError, ShapeError) as error:
            # The score is the user's choice, and does not fit the cells of the key.
            raise self.comparison.unsupported(error) from None
        weights, allowed = np.asarray(observed.readouts[0]), self.allowed
        first = None if normalizer.top_k is None or normalizer.stochastic else self.comparison.first_equal
        if first is not None and allowed is not None:
            weights = with_first_rows(weights, first, allowed)
        rows, heaviest = largest_weights(weights, top)
        nearest = rows[:, 0]
        perplexities = effective = None
        if normalizer.sums_to_one:
            perplexities, effective = perplexity(weights), effective_rows(weights)
        if self.line is None:
            aggregates = self.values.aggregate(weights)
        else:
            place, at = self.line.of(key), self.line.of(query)
            fits = fit_rows(weights, place, at, value.cells, value.limits)
            aggregates, perplexities, effective = line_aggregates(fits, self.line, value), None, fits.rows
            rows, heaviest = largest_effective(effective_evidence(fits, weights, place, at), top)
        if normalizer.stochastic:
            # The sampled row need not be the nearest, so the nearest row is found separately.
            score = from_differences(self.comparison.score, Hard(), query.shape[-1])
            hard = observe(query, key, ones, score=score, normalizer=Hard(), mask=mask, readouts=[TopWeights(1)])
            nearest = np.asarray(hard.readouts[0].keys)[:, 0]
        results = QueryResults(rows, heaviest, nearest, perplexities, effective, aggregates)
        no_row = "" if self.present.any() else NO_MATCHING_ROW
        shown = queries, query, self.comparison, results, normalizer, value, self.calibration, no_row
        entries = build_entries(*shown, top=self.options.top, rows_text=self.rows_text)
        return entries, observed.plan
