"""Base class of executors, which answer queries over a table."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from qkv.core.formatting import counted, format_key
from qkv.core.progress import Progress
from qkv.core.times import clock_changes
from qkv.core.typing import Bool, Int
from qkv.database.answer import Answer, Call, Entry, RanCalls
from qkv.database.candidates.recall import CandidatePlan
from qkv.database.choice_cache import NO_CACHE, ChoiceCache
from qkv.database.execute.aggregates import check_average, identifier_note, is_vote, value_reason
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.entries import ambiguous_reason, with_missing_entries
from qkv.database.execute.interval_factors import calibrate
from qkv.database.execute.line_fit import check_line, comparison_note
from qkv.database.execute.missing_values import KeysWithoutValue
from qkv.database.execute.row_reader import StoredRows
from qkv.database.execute.uncertainty import Calibration
from qkv.database.io.bad_cells import predicate_notes
from qkv.database.io.predicates import matching_rows
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.comparisons import Comparison, MixedComparison
from qkv.database.keys.find_group import GroupFinder, compare_texts_by_equality, with_texts
from qkv.database.keys.part_registry import parse_normalizer
from qkv.database.keys.queries import Queries
from qkv.encoders.arrow_columns import records_of
from qkv.encoders.columns import Column
from qkv.errors import DataError
from qkv.normalizers import NORMALIZERS
from qkv.normalizers.base import Normalizer

if TYPE_CHECKING:
    from qkv.database.execute.in_memory import RowsWithoutValue
    from qkv.database.execute.stream_plan import StreamedPlan
    from qkv.plan.plan import Plan


_MOST_CALIBRATIONS = 64
_Result = TypeVar("_Result")


class Executor(ABC):
    """Base class of executors, which answer queries over the rows of a table.

    Attributes:
        table: the rows.
        key, value: names of the key columns and the value column.
        name: the name of the table in messages.
        title: the name of the table in notes.
        fold: whether texts are folded.
        missing_cells: number of missing cells by column; rows with a missing cell are excluded.
        cell_notes: sentences about cells that are not what the column holds, such as "n/a" among prices.
        complete_rows: number of rows with key and value.
        selected_rows: number of these rows that satisfy the predicate; None without a predicate.
        selected_count, selected_missing: number of all rows that satisfy the predicate, and of their missing cells.
        query_columns: the key columns by which queries are parsed.
        choices: the cache of what is chosen from the rows of a file.
        votes: whether answers are votes rather than averages, see `qkv.database.execute.aggregates`.
        value_reason: why the values are read as identifiers; "" if they are not.
        encoded: the key columns whose vectors are compared; empty if the cells of the key columns are.
    """

    table: pa.Table | StoredRows
    missing_cells: dict[str, int]
    cell_notes: tuple[str, ...] = ()
    complete_rows: int
    selected_rows: int | None = None
    selected_count: int = 0
    selected_missing: Mapping[str, int] = MappingProxyType({})
    query_columns: tuple[Column, ...]
    choices: ChoiceCache = NO_CACHE
    votes: bool = False
    value_reason: str = ""
    encoded: tuple[str, ...] = ()

    def __init__(self, key: tuple[str, ...], value: str, name: str, fold: bool) -> None:
        self.key, self.value, self.fold = key, value, fold
        self.name = self.title = name
        self._last: dict[str, tuple[object, Any]] = {}
        self._calibrations: dict[str, Calibration] = {}

    def _set_counts(self, missing: dict[str, int], complete_rows: int) -> None:
        """Set `missing_cells` and `complete_rows`, and raise a `DataError` if no row is complete."""
        if not complete_rows:
            raise DataError(
                f"{self.name} must have at least one row with a value in each of {', '.join(missing)}, got none. "
                "Choose other columns, or fill in missing cells."
            )
        self.missing_cells = {name: count for name, count in missing.items() if count}
        self.complete_rows = complete_rows

    def _interpret_values(self, value: Column, largest: float) -> None:
        self.value_reason = value_reason(value, largest)
        self.votes = is_vote(value, self.value_reason, None)

    def _with_votes(self, votes: bool) -> Self:
        """Return an executor over the same rows whose answers are votes if `votes` is True."""
        copied = partial(self._copy_with_votes, votes)
        return self if votes == self.votes else self._cached("executor of votes or averages", votes, copied)

    def _copy_with_votes(self, votes: bool) -> Self:
        out = copy.copy(self)
        out.votes, out.choices = votes, self.choices.with_options(by_vote=votes)
        out._forget()
        return out

    def _cached(self, name: str, key: object, compute: Callable[[], _Result]) -> _Result:
        """Return the cached result of `name` if it was computed for an equal key; otherwise compute and cache it."""
        found = self._last.get(name)
        if found is None or found[0] != key:
            found = self._last[name] = key, compute()
        result: _Result = found[1]
        return result

    def _forget(self) -> None:
        """Discard all cached results, because the rows have changed."""
        self._last, self._calibrations = {}, {}

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The key columns and the value column as arrays, of all rows or of a sample of the rows."""

    @property
    @abstractmethod
    def chooser(self) -> ComparisonChooser:
        """The `ComparisonChooser`, which chooses the score, the normalizer and the limits for the key columns."""

    @abstractmethod
    def run(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], Plan | StreamedPlan]:
        """Return the entries that answer the queries, and the plan."""

    @abstractmethod
    def group_rows(
        self, comparison: MixedComparison, options: AskOptions
    ) -> Iterator[tuple[MixedComparison, Bool[np.ndarray, " rows"]]]:
        """Yield a comparison over each part of the rows, and which of its rows are selected, have key and value."""

    @abstractmethod
    def selection(self, options: AskOptions) -> Bool[np.ndarray, " rows"] | None:
        """Return which rows predicate and mask select, or None for all; rows with a missing cell may be among them."""

    @abstractmethod
    def read_rows(self, rows: Int[np.ndarray, " n"]) -> tuple[Column, ...]:
        """Return the key columns and the value column of some rows, whose indices are in ascending order."""

    @abstractmethod
    def rows_without_value(self, options: AskOptions) -> Iterator[RowsWithoutValue]:
        """Yield the selected rows that have a key and no value, in parts."""

    def _by_source(self, missing: Mapping[str, int]) -> dict[str, int]:
        """Return numbers of missing cells by column, with the texts in place of the column of their vectors."""
        names = dict.fromkeys(self.key, ", ".join(self.encoded)) if self.encoded else {}
        return {names.get(name, name): count for name, count in missing.items()}

    def key_text(self, row: int, columns: tuple[int, ...] | None = None) -> str:
        """Return the key of a row of the table, or its cells in some key columns, as answers print them."""
        (record,) = records_of(self.table, [row])
        names = self.encoded or self.key
        return ", ".join(format_key(record[name]) for name in (names[i] for i in columns or range(len(names))))

    @abstractmethod
    def sample(self, comparison: Comparison) -> tuple[Comparison, Column]:
        """Return a comparison over a sample of the selected rows, and the value column of the sample."""

    def calibration(self, comparison: Comparison, normalizer: Normalizer, options: AskOptions) -> Calibration:
        """Return the factors of prediction intervals, which are estimated from a sample of the rows and cached.

        With a mask, they are those of normal values.
        """
        if options.mask is not None:
            return Calibration()
        aggregate = "local-linear" if options.linear else "mean"
        name = f"{aggregate} {comparison.score} {normalizer}"
        if name not in self._calibrations:
            named = all(part is None or isinstance(part, str) for part in (options.score, options.normalizer))
            item = f"interval by {options.score!r}, {options.normalizer!r}, {options.limits!r}, {aggregate}"

            def estimate() -> Calibration:
                return calibrate(*self.sample(comparison), normalizer, options.linear)

            cache = self.choices if named else NO_CACHE
            found = cache.calibration(item, estimate)
            if len(self._calibrations) >= _MOST_CALIBRATIONS:
                self._calibrations.clear()
            self._calibrations[name] = found
            return found
        return self._calibrations[name]

    @abstractmethod
    def restrict(self, selected: Bool[np.ndarray, " rows"], progress: Progress | None) -> Self:
        """Return an executor over the selected rows, which alone determine comparisons, bandwidths and distances."""

    def ask(self, queries: object, options: AskOptions) -> Answer:
        """Choose a comparison and answer queries by it; see `Database.ask` for the arguments."""
        own = self if options.where is None else self._where(options.where, options.progress)
        own = own._with_votes(is_vote(own.value_column, own.value_reason, options.aggregate))
        parsed = queries
        if not isinstance(parsed, Queries):
            parsed = Queries.parse(queries, own.query_columns, own.fold, options.on_bad_query)
        # Streams of queries repeat the same options.
        score, limits, linear = options.score, options.limits, options.linear
        choose = partial(own.chooser.choose, score, limits, options.progress, linear)
        comparison = own._cached("comparison", (score, limits, linear), choose)
        given = options.normalizer
        normalizer = parse_normalizer(given) if isinstance(given, str) else given
        normalizer = normalizer or comparison.normalizer or NORMALIZERS[comparison.score.default_normalizer]()
        if not own.votes:
            check_average(own.value_column, normalizer)
        if options.linear:
            check_line(comparison, normalizer, own.columns[-1])
        # What is drawn for a query depends on its place.
        left_out = parsed.missing.any() and (parsed.missing.all() or not normalizer.stochastic)
        asked = parsed.take(np.flatnonzero(~parsed.missing)) if left_out else parsed
        arguments = asked, comparison, normalizer, options
        plan: Plan | StreamedPlan
        if options.candidates is not None:
            entries, plan = options.candidates.run(own, *arguments)
            entries = own._with_missing_values(*arguments, entries)
        elif finds_groups(comparison, normalizer, options):
            entries, plan = own._run_by_group(*arguments)
        else:
            entries, plan = own.run(*arguments)
            entries = own._with_missing_values(*arguments, entries)
        if left_out:
            entries = with_missing_entries(parsed, entries)
        notes, column_notes = own._notes(comparison, normalizer, options, plan)
        names = own.key, own.value, comparison.measure
        plan = replace(plan, calls=RanCalls(entries))
        return Answer(tuple(entries), parsed.single, own.table, *names, plan, notes, column_notes, own.votes)

    def _with_missing_values(
        self,
        queries: Queries,
        comparison: Comparison,
        normalizer: Normalizer,
        options: AskOptions,
        entries: list[Entry],
    ) -> list[Entry]:
        """Return the entries of queries, corrected by a comparison with the rows that have a key but no value."""
        if len(queries) and not normalizer.constant:
            for rows in self.rows_without_value(options):
                entries = KeysWithoutValue(self, rows, queries, comparison, normalizer).answer(options, entries)
        return entries

    def _run_by_group(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], Plan | StreamedPlan]:
        """Return `run` for keys with texts beside others: each query is answered from the rows that it asks for."""
        assert isinstance(comparison, MixedComparison)
        finder = GroupFinder(comparison, queries)
        for rows, present in self.group_rows(comparison, options):
            finder.update(rows, present)
        for without_value in self.rows_without_value(options):
            finder.update(comparison.with_rows(without_value.query_columns), without_value.complete)
        groups = finder.find()
        search = (Call(finder.score, "the largest sum", "all rows"),)
        entries_by_index: dict[int, Entry] = {}
        with_group: list[int] = []
        others: list[int] = []
        for index, (group, original) in enumerate(zip(groups, queries.originals, strict=True)):
            if group.candidates or group.reason:
                reason = ambiguous_reason(group.candidates) if group.candidates else group.reason
                ambiguous = Entry(original, False, reason=reason, candidates=group.candidates, calls=search)
                entries_by_index[index] = ambiguous
            else:
                (with_group if group.texts else others).append(index)
        chosen = queries.take(np.array(with_group, np.int64))
        chosen = with_texts(comparison, chosen, [groups[index] for index in with_group])
        equal = compare_texts_by_equality(comparison)
        parts = [(chosen, with_group, equal)]
        if others:
            parts.append((queries.take(np.array(others, np.int64)), others, comparison))
        plans = []
        for some, indices, own in parts:
            answered, plan = self.run(some, own, normalizer, options)
            answered = self._with_missing_values(some, own, normalizer, options, answered)
            plans.append(plan)
            for index, entry in zip(indices, answered, strict=True):
                entries_by_index[index] = replace(entry, calls=(*search, *entry.calls))
        return [entries_by_index[index] for index in range(len(queries))], plans[0]

    def _notes(
        self, comparison: Comparison, normalizer: Normalizer, options: AskOptions, plan: Plan | StreamedPlan
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return all notes of an answer, and those about its columns."""
        column_notes = (*comparison.readings, *_reading_notes(self.columns, self.query_columns), *self.cell_notes)
        if self.value_reason and self.votes and options.aggregate is None:
            column_notes += (identifier_note(self.value_column, self.value_reason),)
        if self.selected_rows == 0:
            return (self._rows_note(), *column_notes), column_notes  # nothing was chosen from rows that do not exist
        notes = (self._rows_note(), *comparison.notes, *column_notes)
        default = normalizer is comparison.normalizer
        if comparison.normalizer_note and default:
            notes += (comparison.normalizer_note,)
        if comparison.lookup() is not None and default and not comparison.one_key:
            notes += ("a query that equals a key is answered from the rows of this key alone",)
        if comparison.mixes_keys and not (default and comparison.one_key) and normalizer.top_k != 1:
            notes += ("rows of different keys take part in one answer; omit score and normalizer for those of one key",)
        if isinstance(plan, CandidatePlan):
            notes += (f"candidates: {plan.candidates}",)
        if options.linear:
            notes += (
                "answers by local linear regression; the weights of rows are effective weights, which can be negative",
            )
        elif (options.score, options.mask, options.normalizer) == (None, None, None) and not self.votes:
            notes += self._compare_fits(comparison)
        return notes, column_notes

    def _compare_fits(self, comparison: Comparison) -> tuple[str, ...]:
        """Return a sentence if a line predicts the value clearly better than the mean; otherwise an empty tuple."""
        compare = partial(comparison_note, comparison, self.value_column, self.sample)
        item = "comparison of fits"
        return self._cached(item, comparison, partial(self.choices.texts, item, compare))

    @property
    @abstractmethod
    def value_column(self) -> Column:
        """The value column as an array, of all rows or of a few of them."""

    def column(self, name: str) -> Column:
        """Return the key or value column `name` as NumPy arrays, of all rows or of a sample of the rows.

        Raises:
            DataError: The column is neither a key column nor the value column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise DataError(
            f"name must be a key column or the value column of {self.name}, got {name!r}. "
            f"Choose from {', '.join((*self.key, self.value))}."
        )

    def complete_columns(self, where: str | None = None) -> tuple[Column, ...]:
        """Return the key columns and the value column of the selected rows that have all of them, or of a sample."""
        executor = self if where is None else self._where(where, None)
        rows = executor.complete_positions()
        named = {column.name: column for column in executor.columns}
        return tuple(named[name].take(rows) for name in (*executor.key, executor.value))

    def complete_positions(self) -> Int[np.ndarray, " n"]:
        """Return the positions in `columns` of the selected rows with key and value. Samples hold only such rows."""
        return np.arange(len(self.columns[0].missing))

    def _where(self, predicate: str, progress: Progress | None) -> Self:
        """Return an executor over the rows that satisfy a SQL predicate."""
        return self._cached("executor of a predicate", predicate, partial(self._select, predicate, progress))

    def _select(self, predicate: str, progress: Progress | None) -> Self:
        rows = self.table
        selected = rows.match(predicate) if isinstance(rows, StoredRows) else matching_rows(rows, predicate)
        restricted = self.restrict(selected, progress)
        restricted.cell_notes += predicate_notes(rows, predicate, (*self.key, self.value))
        return restricted

    def _rows_note(self) -> str:
        note = f"{counted(self.complete_rows, 'row', 'rows')} of {self.title}"
        if self.missing_cells:
            missing = ", ".join(f"{name} missing in {count:,}" for name, count in self.missing_cells.items())
            note += f"; {self.table.num_rows - self.complete_rows:,} left out ({missing})"
        if self.selected_rows is None:
            return note
        every, lacking = self.selected_count, self.selected_missing
        note += f"; {counted(every, 'row satisfies', 'rows satisfy')} the predicate"
        if every == self.selected_rows:
            return note
        missing = ", ".join(f"{name} missing in {count:,}" for name, count in lacking.items() if count)
        return f"{note}, of which {every - self.selected_rows:,} left out ({missing})"


def _reading_notes(columns: Sequence[Column], keys: Sequence[Column]) -> tuple[str, ...]:
    """Return a sentence about each column in the format of a file or of times of day, and each key with a time zone."""
    zones = ((column.name, getattr(column.type, "tz", None)) for column in keys if column.kind == "timestamp")
    notes = [
        f"{name} is in the time zone {zone}; queries without a time zone are read in it{clock_changes([zone])}"
        for name, zone in zones
        if zone
    ]
    notes += [
        f"{column.name} holds times of day, which do not go round: 23:50 and 00:10 are 23 hours and 40 minutes apart; "
        "write them as numbers of hours, and pass cyclic"
        for column in columns
        if column.type is not None and pa.types.is_time(column.type)
    ]
    readings = {column.name: column.reading for column in columns if column.reading}
    # Stores of earlier versions have the format alone.
    dates = {column.name: f"is read in the format {column.date_format}" for column in keys if column.date_format}
    return (*notes, *(f"{name} {reading}" for name, reading in {**dates, **readings}.items()))


def finds_groups(comparison: Comparison, normalizer: Normalizer, options: AskOptions) -> bool:
    """Whether the rows of each query are those with the most similar texts alone."""
    plain = options.mask is None or options.allowed_keys is not None
    mixed = isinstance(comparison, MixedComparison) and comparison.one_key
    return mixed and normalizer is comparison.normalizer and plain
