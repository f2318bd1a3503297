"""Cells that are no finite numbers or no dates in a column of numbers or dates, such as "n/a" among prices.

A CSV or JSON file does not state the types of its columns, so one such cell makes a whole column texts. If more than
half of the cells of a key or value column are numbers, apart from marks of missing cells such as "-", the column is
read as numbers, and the other cells are missing. Dates are read in the same way. The count of these cells is stored
in the metadata of the column, from which it gets into the notes of answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Num
from qkv.database.io.arrow_columns import DATE_FORMAT, null_mask, stored_numbers, with_metadata
from qkv.errors import DataError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = [
    "CellNote",
    "Conversions",
    "add_cell_notes",
    "cell_note_of",
    "collect_notes",
    "detect_conversions",
    "join_cell_notes",
    "quoted_name",
    "without_notes",
]

_NOTE = b"qkv cell note"
_MISSING: tuple[str, ...] = (
    "",
    "-",
    "--",
    "—",
    "–",
    ".",
    "..",
    "...",
    "?",
    "*",
    "na",
    "n/a",
    "#n/a",
    "#na",
    "n.a.",
    "nan",
    "null",
)
_MISSING += ("none", "nil", "missing", "unknown", "not available", "#ref!", "#value!", "#div/0!", "inf", "-inf")
_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y.%m.%d")
_CLOCKS = ("", " %H:%M", " %H:%M:%S")
_FIRST_ROWS = 20_480
_FIRST_TEXTS = 1_000
_WRITTEN_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?")
_LEAST_SHARE = 0.1
"""A column of texts with a larger share of numbers is mentioned in a note."""

_CELL = "lower(trim(x))"


@dataclass(frozen=True)
class CellNote:
    """A count of cells that are not what the column holds.

    Attributes:
        count: the number of bad cells; of cells that are numbers, if the column holds texts.
        noun: what the other cells are, "finite number" or "date"; "" if the column holds texts.
        example: one of the bad cells.
        total: the number of all cells of a column of texts.
    """

    count: int
    noun: str = ""
    example: str = ""
    total: int = 0

    def text(self, name: str) -> str:
        """Return the count as a sentence about the column `name`."""
        if not self.noun:
            return f"{name} holds texts, although {self.count:,} of {self.total:,} cells are numbers"
        counted = f"1 cell is not a {self.noun}" if self.count == 1 else f"{self.count:,} cells are not {self.noun}s"
        return f"{name}: {counted}, such as {self.example!r}, left out"

    def dump(self) -> str:
        """Return the count as JSON text, for the metadata of a column."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Conversions:
    """The conversion of the columns of a file that hold mostly numbers or dates.

    Attributes:
        expressions: SQL expressions of the converted columns, by name.
        notes: counts of the bad cells of columns, by name.
        formats: the format of dates that are not in ISO 8601, by name.
    """

    expressions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, CellNote] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)

    def relation(self, relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """Return a relation with converted columns."""
        replaced = ", ".join(f"({sql}) as {quoted_name(name)}" for name, sql in self.expressions.items())
        return relation.project(f"* replace ({replaced})") if replaced else relation

    def mark(self, table: pa.Table) -> pa.Table:
        """Return a converted table with the notes and formats in the metadata of its columns."""
        for name, form in self.formats.items():
            table = with_metadata(table, name, DATE_FORMAT, form)
        for name, note in self.notes.items():
            table = with_metadata(table, name, _NOTE, note.dump())
        return table


def detect_conversions(
    relation: duckdb.DuckDBPyRelation,
    names: Sequence[str],
    on_bad_cell: str,
    source: str,
    stated: Sequence[str] = (),
    decimal: str | None = None,
) -> Conversions:
    """Return how the columns of a file are converted that hold mostly numbers or dates.

    Args:
        relation: all rows of the file, which are read once or twice.
        names: the columns that are used.
        on_bad_cell: "exclude" makes cells that are no finite numbers missing, "refuse" raises an error, "text" leaves
            columns with texts unchanged.
        source: the name of the file, for errors.
        stated: columns of texts in a file that states that they are texts; only dates are converted.
        decimal: the decimal separator of numbers; None: ".".

    Raises:
        DataError: A cell is no finite number or no date, and `on_bad_cell` is "refuse".
    """
    expressions, notes, formats = {}, {}, {}
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    for name in dict.fromkeys(names):
        if types.get(name) in ("FLOAT", "DOUBLE"):
            note = _count_bad(relation, name, "isinf(x)", "finite number", on_bad_cell, source)
        elif types.get(name) == "VARCHAR" and on_bad_cell != "text":
            target, note = _target(relation, name, name in stated, decimal or ".")
            if target is not None:
                expressions[name] = target.sql(quoted_name(name))
                if target.date_format:
                    formats[name] = target.date_format
                bad = f"{_CELL} <> '' and ({target.sql('x')}) is null"
                note = _count_bad(relation, name, bad, target.noun, on_bad_cell, source)
        else:
            continue
        if note:
            notes[name] = note
    return Conversions(expressions, notes, formats)


@dataclass(frozen=True)
class _Target:
    """A type as which a column of texts is read.

    Attributes:
        noun: what the cells are, "finite number" or "date".
        type: the DuckDB type.
        date_format: the format of dates; "" for numbers and dates in ISO 8601.
        decimal: the decimal separator of numbers.
    """

    noun: str
    type: str
    date_format: str = ""
    decimal: str = "."

    def sql(self, cell: str) -> str:
        """Return the SQL expression of the converted cell, which is null for bad cells."""
        if self.date_format:
            return f"{_parsed(cell, self.date_format)}::{self.type}"
        if self.noun == "date":
            return f"case when {_in_iso(cell)} then try_cast(trim({cell}) as {self.type}) end"
        text = _with_point(cell, self.decimal)
        return f"case when {_is_number(text)} then try_cast({text} as {self.type}) end"


def _target(
    relation: duckdb.DuckDBPyRelation, name: str, stated: bool, decimal: str
) -> tuple[_Target | None, CellNote | None]:
    """Return the type as which a column of texts is read, or None and a note."""
    column = relation.project(f"{quoted_name(name)} as x")
    formats = [date + clock for date in _DATES for clock in _CLOCKS]
    is_number, is_whole, in_iso = (
        _is_number(_with_point("x", decimal)),
        "regexp_full_match(trim(x), '[+-]?[0-9]+')",
        _in_iso("x"),
    )
    tests = (
        f"{_CELL} <> ''",
        f"{_CELL} not in ({', '.join(map(_literal, _MISSING))})",
        is_number,
        "regexp_full_match(trim(x), '[+-]?0[0-9].*')",
        is_whole,
        f"{is_whole} and try_cast(trim(x) as bigint) is null",
        f"{in_iso} and try_cast(x as timestamp) is not null",
        f"{in_iso} and contains(x, ':')",
        f"{in_iso} and regexp_matches(trim(x), ':[0-9.]+(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)$')",
        *(f"{_parsed('x', form)} is not null" for form in formats),
    )
    counts = ", ".join(f"count(*) filter ({test})" for test in tests)
    for part in (column.limit(_FIRST_ROWS), column):
        found = part.aggregate(counts).fetchall()[0]
        filled, present, numbers, leading_zeros, whole, beyond_int64, iso, clocks, zones, *dates = found
        best = max(numbers, iso, *dates)
        # The first rows decide about names and other texts.
        if present and best < 0.01 * present:
            return None, None
    if 2 * best > present:
        # Texts of digits with a leading zero are codes, such as postal codes.
        if numbers == best and not leading_zeros and not stated and numbers < filled:
            type_ = "double" if whole < numbers else "hugeint" if beyond_int64 else "bigint"
            return _Target("finite number", type_, decimal=decimal), None
        if iso == best:
            return _Target("date", "timestamptz" if 2 * zones > iso else "timestamp" if clocks else "date"), None
        if best in dates:
            form = formats[dates.index(best)]
            return _Target("date", "timestamp" if "%H" in form else "date", form), None
    if _LEAST_SHARE * filled <= numbers < filled and not leading_zeros:
        return None, CellNote(numbers, total=filled)
    return None, None


def _is_number(cell: str) -> str:
    return f"isfinite(try_cast({cell} as double))"


def _with_point(cell: str, decimal: str) -> str:
    return f"trim({cell})" if decimal == "." else f"replace(trim({cell}), {_literal(decimal)}, '.')"


def _in_iso(cell: str) -> str:
    return f"regexp_matches(trim({cell}), '^[0-9]{{4}}-[0-9]')"


def _parsed(cell: str, form: str) -> str:
    return f"(case when regexp_matches(trim({cell}), '^[0-9]') then try_strptime(trim({cell}), {_literal(form)}) end)"


def _count_bad(
    relation: duckdb.DuckDBPyRelation, name: str, test: str, noun: str, on_bad_cell: str, source: str
) -> CellNote | None:
    """Return a note that counts the cells of a column that satisfy `test`, or None if there are none."""
    bad = f"filter ({test})"
    column = relation.project(f"{quoted_name(name)} as x")
    ((count, example),) = column.aggregate(f"count(*) {bad}, min(x::varchar) {bad}").fetchall()
    return _bad_note(name, count, example, noun, on_bad_cell, source)


def _bad_note(name: str, count: int, example: str, noun: str, on_bad_cell: str, source: str) -> CellNote | None:
    if count and on_bad_cell == "refuse":
        raise DataError(
            f"the cells of {name!r} must be {noun}s in {source}, got {example!r}"
            + (f", one of {count:,} cells that are not" if count > 1 else "")
            + ". Correct the cells, or pass --on-bad-cell exclude (in Python: on_bad_cell='exclude')."
        )
    return CellNote(count, noun, example) if count else None


def add_cell_notes(table: pa.Table, names: Sequence[str], on_bad_cell: str, source: str) -> pa.Table:
    """Return a table of stated types with notes about infinite cells, and about texts that are partly numbers.

    Args:
        table: the table.
        names: the columns that are used.
        on_bad_cell: "refuse" raises an error for infinite cells.
        source: the name of the table, for errors.

    Raises:
        DataError: A cell is infinite, and `on_bad_cell` is "refuse".
    """
    import pyarrow as pa

    for name in dict.fromkeys(names):
        if name not in table.column_names:
            continue
        column = table.column(name)
        note = None
        if pa.types.is_floating(column.type):
            infinite = [_infinite_cells(chunk) for chunk in column.chunks]
            found = np.concatenate([np.zeros(0), *infinite])
            example = str(found[0]) if len(found) else ""
            note = _bad_note(name, len(found), example, "finite number", on_bad_cell, source)
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = [text for text in column.slice(0, _FIRST_TEXTS).to_pylist() if text]
            numbers = sum(_WRITTEN_NUMBER.fullmatch(text.strip()) is not None for text in texts)
            if _LEAST_SHARE * len(texts) <= numbers < len(texts):
                note = CellNote(numbers, total=len(texts))
        if note:
            table = with_metadata(table, name, _NOTE, note.dump())
    return table


def _infinite_cells(chunk: pa.Array) -> Num[np.ndarray, " infinite"]:
    cells: Num[np.ndarray, " rows"] = stored_numbers(chunk)
    infinite: Num[np.ndarray, " infinite"] = cells[np.isinf(cells) & ~null_mask(chunk)]
    return infinite


def cell_note_of(table: pa.Table, name: str) -> CellNote | None:
    """Return the note about the cells of a column that were found when it was read."""
    dumped = (table.schema.field(name).metadata or {}).get(_NOTE)
    return CellNote(**json.loads(dumped)) if dumped else None


def join_cell_notes(table: pa.Table, parts: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Return the concatenation of tables with the sums of their notes about the columns `names`."""
    for name in dict.fromkeys(names):
        each = [part for part in parts if name in part.column_names]
        notes = [note for part in each if (note := cell_note_of(part, name))]
        if notes:
            bad = [note for note in notes if note.noun] or notes
            total = sum(note.total for note in bad)
            joined = replace(bad[0], count=sum(note.count for note in bad), total=total)
            table = with_metadata(table, name, _NOTE, joined.dump())
    return table


def collect_notes(tables: Iterable[pa.Table], names: Sequence[str], notes: list[str]) -> Iterator[pa.Table]:
    """Yield the tables, and append the notes about cells of the columns `names` to a list, each once."""
    for table in tables:
        for name in names:
            note = cell_note_of(table, name) if name in table.column_names else None
            if note and note.text(name) not in notes:
                notes.append(note.text(name))
        yield table


def without_notes(schema: pa.Schema) -> pa.Schema:
    """Return a schema without notes about cells, which hold for the rows of one file only."""
    for index, each in enumerate(schema):
        metadata = {name: text for name, text in (each.metadata or {}).items() if name != _NOTE}
        schema = schema.set(index, each.with_metadata(metadata or None))
    return schema


def quoted_name(name: str) -> str:
    """Return a column name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
