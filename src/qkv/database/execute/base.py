"""Base class of executors, which answer queries over a table, and conversion of their results to answers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from qkv.core.formatting import format_key
from qkv.core.progress import Progress, checkpoint
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.database.answer import Answer, Call, Entry, RanCalls
from qkv.database.candidates.recall import CandidatePlan
from qkv.database.choice_cache import NO_CACHE, ChoiceCache
from qkv.database.execute.aggregates import Aggregate
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.calibration import calibrate
from qkv.database.execute.group_answers import run_by_group
from qkv.database.execute.interpretation import identifier_note, is_vote, reading_notes, value_reason
from qkv.database.execute.line_fit import check_line, comparison_note
from qkv.database.execute.match_reasons import ambiguous_reason, no_match_reasons
from qkv.database.execute.row_reader import StoredRows
from qkv.database.execute.uncertainty import Calibration, mean_precision, prediction_interval, standard_error
from qkv.database.io.predicates import matching_rows
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.comparisons import Comparison, MixedComparison, find_coordinates
from qkv.database.keys.part_registry import parse_normalizer
from qkv.database.keys.queries import Queries
from qkv.encoders.arrow_columns import records_of
from qkv.encoders.columns import Column
from qkv.errors import DataError
from qkv.normalizers import NORMALIZERS
from qkv.normalizers.base import Normalizer
from qkv.plan.cost import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.execute.in_memory import RowsWithoutValue
    from qkv.database.execute.stream_plan import StreamedPlan
    from qkv.plan.plan import Plan

__all__ = ["Executor", "QueryResults", "build_entries"]

NO_MATCHING_ROW = "no row satisfies the predicate"
_MOST_CALIBRATIONS = 64


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
        votes: whether answers are votes rather than averages, see `qkv.database.execute.interpretation`.
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
        self._comparison: tuple[object, Comparison] | None = None
        self._restricted: tuple[str, Self] | None = None
        self._otherwise: Self | None = None
        self._calibrations: dict[str, Calibration] = {}
        self._fit_note: tuple[Comparison, tuple[str, ...]] | None = None

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
        """Return an executor over the same rows whose answers are votes if `votes` is True. The last one is cached."""
        if votes != self.votes and self._otherwise is None:
            self._otherwise = other = copy.copy(self)
            other.votes = votes
            other._forget()
        return self if votes == self.votes or self._otherwise is None else self._otherwise

    def _forget(self) -> None:
        self._comparison = self._restricted = self._otherwise = self._fit_note = None
        self._calibrations = {}

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The key columns and the value column as arrays, of all rows or of a sample of the rows."""

    @property
    @abstractmethod
    def chooser(self) -> ComparisonChooser:
        """The `ComparisonChooser`, which chooses the score, the normalizer and the threshold for the key columns."""

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
        fit = "local-linear" if options.linear else "mean"
        name = f"{fit} {comparison.score} {normalizer}"
        if name not in self._calibrations:
            named = all(part is None or isinstance(part, str) for part in (options.score, options.normalizer))
            item = f"interval by {options.score!r}, {options.normalizer!r}, {options.threshold!r}, {fit}"

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
        if options.where is not None:
            restricted = self._where(options.where, options.progress)
            return restricted.ask(queries, replace(options, where=None))
        return self._with_votes(is_vote(self.value_column, self.value_reason, options.fit))._answer(queries, options)

    def _answer(self, queries: object, options: AskOptions) -> Answer:
        parsed = queries
        if not isinstance(parsed, Queries):
            parsed = Queries.parse(queries, self.query_columns, self.fold, options.on_bad_query)
        # The last comparison is cached, as streams of queries repeat the same options.
        choice = (options.score, options.threshold, options.linear)
        if self._comparison is None or self._comparison[0] != choice:
            score, threshold, linear = choice
            self._comparison = (choice, self.chooser.choose(score, threshold, options.progress, linear))
        comparison = self._comparison[1]
        given = options.normalizer
        normalizer = parse_normalizer(given) if isinstance(given, str) else given
        normalizer = normalizer or comparison.normalizer or NORMALIZERS[comparison.score.default_normalizer]()
        if options.linear:
            check_line(comparison, normalizer, self.columns[-1])
        entries, plan = self._run_valid(parsed, comparison, normalizer, options)
        column_notes = (*comparison.readings, *reading_notes(self.columns, self.query_columns), *self.cell_notes)
        if self.value_reason and self.votes and options.fit is None:
            column_notes += (identifier_note(self.value_column, self.value_reason),)
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
        if self.selected_rows == 0:
            # Nothing was chosen from rows that do not exist.
            notes = (self._rows_note(),)
        names = self.key, self.value, comparison.measure
        plan = replace(plan, calls=RanCalls(entries))
        return Answer(tuple(entries), parsed.single, self.table, *names, plan, notes, column_notes, self.votes)

    def _run_valid(
        self, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], Plan | StreamedPlan]:
        """Answer the queries, of which no row is compared with those that are missing or do not fit the key."""
        # What is drawn for a query depends on its place.
        if not queries.missing.any() or (normalizer.stochastic and not queries.missing.all()):
            return run_by_group(self, queries, comparison, normalizer, options)
        valid = np.flatnonzero(~queries.missing)
        found, plan = run_by_group(self, queries.take(valid), comparison, normalizer, options)
        entries = list(map(missing_entry, queries.originals, queries.errors or ("",) * len(queries)))
        for index, entry in zip(valid.tolist(), found, strict=True):
            entries[index] = entry
        return entries, plan

    def _compare_fits(self, comparison: Comparison) -> tuple[str, ...]:
        """Return a sentence if a line is clearly better than the mean. The last result is cached."""
        if self._fit_note is None or self._fit_note[0] is not comparison:
            compare = partial(self._compare_sampled_fits, comparison)
            self._fit_note = comparison, self.choices.texts("comparison of fits", compare)
        return self._fit_note[1]

    def _compare_sampled_fits(self, comparison: Comparison) -> tuple[str, ...]:
        return comparison_note(*self.sample(comparison))

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
            f"name must be one of {', '.join((*self.key, self.value))}, the key and value columns of {self.name}, "
            f"got {name!r}."
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
        """Return an executor over the rows that satisfy a SQL predicate. The last one is cached."""
        if self._restricted is None or self._restricted[0] != predicate:
            rows = self.table
            streamed = isinstance(rows, StoredRows)
            selected = rows.match(predicate) if streamed else matching_rows(rows, predicate)
            self._restricted = predicate, self.restrict(selected, progress)
        return self._restricted[1]

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


def missing_entry(query: object, error: str) -> Entry:
    """Return the entry of a query that is missing, or does not fit the key for the reason `error`."""
    checkpoint()
    return Entry(query, False, reason=error or "the query is missing", invalid=bool(error))


@dataclass(frozen=True, eq=False)
class QueryResults:
    """The rows with the largest weights, their weights, and the aggregated value of each query of a group.

    Attributes:
        rows: `(q, n)` indices of the rows with the largest weights, in descending order; −1 in unused places.
        weights: `(q, n)` weights of these rows.
        nearest: `(q,)`, the nearest row; −1 where there is none.
        support: `(q,)`, exp(entropy) of the weights; None if they do not sum to 1.
        effective_rows: `(q,)`, 1 / Σ w² of the weights, or NaN if one is negative; None if they do not sum to 1.
        aggregates: the aggregated value of each query.
    """

    rows: Int[np.ndarray, "q n"]
    weights: Float[np.ndarray, "q n"]
    nearest: Int[np.ndarray, " q"]
    support: Float[np.ndarray, " q"] | None
    effective_rows: Float[np.ndarray, " q"] | None
    aggregates: list[Aggregate]


def build_entries(
    queries: Queries,
    query: Shaped[np.ndarray, "q ..."],
    comparison: Comparison,
    results: QueryResults,
    normalizer: Normalizer,
    value: Column,
    calibration: Callable[[], Calibration],
    no_row_reason: str = "",
    table_rows: Int[np.ndarray, " n"] | None = None,
    top: int | None = None,
    rows_text: str = "all rows",
) -> list[Entry]:
    """Return an `Entry` for each query, with its value and evidence or with the reason for "no match".

    Args:
        queries: the parsed queries.
        query: the engine's query array.
        comparison: the comparison over the rows to which `results` refers.
        results: the results.
        normalizer: the normalizer.
        value: the value column, or some rows of it.
        calibration: returns the factors of prediction intervals.
        no_row_reason: the reason why all rows are excluded; "" if some are included.
        table_rows: the indices of these rows in the table; None if they are the whole table.
        top: number of rows in each entry; None for all.
        rows_text: the rows over which the call ran, in words.
    """
    reasons = no_match_reasons(queries, query, comparison, results.nearest, results.weights, normalizer, no_row_reason)
    safe = np.maximum(results.rows, 0)
    nearness = comparison.nearness(query, safe) if len(comparison.key) else None

    @cache
    def factors() -> Float[np.ndarray, "q 2"]:
        """Return the factors of the prediction interval of each query, which are estimated if one has an interval."""
        found, coordinates = calibration(), find_coordinates(comparison)
        scale = found.scale_at(None if coordinates is None else coordinates.of(query), len(query))
        return np.asarray(scale[:, None] * [found.lower, found.upper])

    def factors_of(index: int) -> tuple[float, float]:
        lower, upper = factors()[index].tolist()
        return lower, upper

    nearest = np.where(results.weights[:, 0] == 0, -1, results.nearest).tolist()
    call = Call(comparison.score, normalizer, rows_text, comparison.bandwidths(0) if len(comparison.key) else {})
    entries = []
    for i, original in enumerate(queries.originals):
        checkpoint()
        own, remarks = _call_of_row(call, comparison, nearest[i])
        near = nearest[i] if table_rows is None or nearest[i] < 0 else int(table_rows[nearest[i]])
        if reasons[i]:
            invalid = bool(queries.errors and queries.errors[i])
            calls = () if queries.missing[i] or no_row_reason else (own,)
            entries.append(Entry(original, False, reason=reasons[i], invalid=invalid, calls=calls, nearest=near))
            continue
        weighted = np.flatnonzero((results.rows[i] >= 0) & (results.weights[i] != 0))
        candidates: tuple[str, ...] = ()
        weighted_rows = safe[i][weighted]
        if not normalizer.constant:
            default = normalizer is comparison.normalizer
            candidates = comparison.candidates(query[i], weighted_rows, default)
        weighted = weighted[:top]
        rows, aggregate = safe[i][weighted], results.aggregates[i]
        table_index = rows if table_rows is None else table_rows[rows]
        evidence = table_index, results.weights[i][weighted], None if nearness is None else nearness[i][weighted]
        if candidates:
            # The rows are shown, but their average is no answer.
            more = len(weighted_rows) >= comparison.candidate_rows > 0 and len(candidates) == len(
                set(comparison.key[weighted_rows].tolist())
            )
            reason = ambiguous_reason(candidates, more)
            ambiguous = Entry(original, False, None, None, 0.0, reason, {}, *evidence, candidates=candidates)
            entries.append(replace(ambiguous, calls=(own,), nearest=near))
            continue
        effective = np.nan if results.effective_rows is None else float(results.effective_rows[i])
        fit = aggregate.fit
        precision = mean_precision(aggregate.deviation, effective) if fit is None else fit.precision
        entry = Entry(
            original,
            True,
            aggregate.value,
            aggregate.spread,
            None if results.support is None else float(results.support[i]),
            "",
            aggregate.probabilities,
            *evidence,
            standard_error=standard_error(precision, value),
            prediction_interval=prediction_interval(aggregate.center, precision, value, partial(factors_of, i)),
            effective_rows=None if np.isnan(effective) else effective,
            gradient={} if fit is None else fit.gradient,
            gradient_error={} if fit is None else fit.gradient_error,
            fit_note="" if fit is None else fit.note,
            remarks=remarks,
            calls=(own,),
            nearest=near,
        )
        entries.append(entry)
    return entries


def _call_of_row(call: Call, comparison: Comparison, row: int) -> tuple[Call, tuple[str, ...]]:
    """Return a call with the bandwidth of the group of a row, and a sentence that states a bandwidth of its own."""
    score = comparison.score if row < 0 else comparison.score_of(row)
    if score is comparison.score:
        return call, ()
    widths = comparison.bandwidths(row)
    parts = [part for _, part in comparison.parts] if isinstance(comparison, MixedComparison) else [comparison]
    days = {column.name for part in parts for column in part.key_columns if column.kind == "timestamp"}
    text = ", ".join(f"{width:.3g} {'days of ' * (name in days)}{name}" for name, width in widths.items())
    return replace(call, score=score, bandwidth=widths), (f"bandwidth of the group of this answer: {text}",)
