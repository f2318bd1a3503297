"""Cells that are no finite numbers or no dates in a column of numbers or dates, such as "n/a" among prices.

A CSV or JSON file does not state the types of its columns, so one such cell makes a whole column texts. If more than
half of the cells of a key or value column are numbers, apart from marks of missing cells such as "-", the column is
read as numbers, and the other cells are missing. Dates and numbers in other formats, such as 15-Jun-06 and $1,203, are
read in the same way. The count of the bad cells is stored in the metadata of the column, from which it gets into
the notes of answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from qkv.core.cell_kinds import cell_kind
from qkv.core.printable import quoted_name, sql_text
from qkv.core.times import is_compact_date
from qkv.core.typing import Num
from qkv.database.io.cell_notes import CellNote, with_cell_note
from qkv.database.io.identifiers import as_integers, has_identifier_name, is_mostly_whole, whole_sql
from qkv.database.io.predicates import mentioned_columns
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.text_readings import (
    FIRST_TEXTS,
    LEAST_SHARE,
    MISSING,
    TextReading,
    boolean_reading,
    detect_reading,
    first_texts,
    number_reading,
    numbers_remark,
    text_remark,
)
from qkv.encoders.arrow_columns import (
    READING,
    beyond_python,
    metadata_text,
    null_mask,
    stored_numbers,
    to_python,
    with_metadata,
)
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    import duckdb

    from qkv.database.execute.row_reader import StoredRows


@dataclass(frozen=True)
class WholeFloats(TextReading):
    """The reading of a column of floats, most of which are whole numbers, as whole numbers."""

    def sql(self, cell: str) -> str:
        """Return the SQL expression of the converted cell, which is null for other numbers."""
        return f"case when {whole_sql(cell)} then {cell}::bigint end"

    def bad(self, cell: str) -> str:
        """Return the SQL condition that a cell is a number, but no whole number."""
        return f"not isnan({cell}) and not coalesce({whole_sql(cell)}, false)"


_WRITTEN_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Conversions:
    """The conversion of the columns of a file that hold mostly numbers or dates.

    Attributes:
        readings: how the converted columns are read, by name.
        notes: counts of the bad cells of columns, by name.
    """

    readings: Mapping[str, TextReading] = field(default_factory=dict)
    notes: Mapping[str, CellNote] = field(default_factory=dict)

    def relation(self, relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """Return a relation with converted columns."""
        replaced = ", ".join(
            f"({reading.sql(quoted_name(name))}) as {quoted_name(name)}" for name, reading in self.readings.items()
        )
        return relation.project(f"* replace ({replaced})") if replaced else relation

    def mark(self, table: pa.Table) -> pa.Table:
        """Return a converted table with the notes and formats in the metadata of its columns."""
        for name, reading in self.readings.items():
            for key, text in reading.metadata.items():
                table = with_metadata(table, name, key, text)
        for name, note in self.notes.items():
            table = with_cell_note(table, name, note)
        return table


def detect_conversions(
    relation: duckdb.DuckDBPyRelation,
    names: Sequence[str],
    options: ReadOptions,
    source: str,
    stated: Sequence[str] = (),
    delimiter: str = ",",
    numeric: Sequence[str] = (),
) -> Conversions:
    """Return how the columns of a file are converted that hold mostly numbers or dates.

    Args:
        relation: all rows of the file, which are read once or twice.
        names: the columns that are used.
        options: what to do with bad cells, the decimal separator and the format of dates. Cells that are no finite
            numbers are made missing by "exclude", raise an error by "refuse", and leave a column of texts by "text".
        source: the name of the file, for errors.
        stated: columns of texts in a file that states that they are texts; only dates are converted.
        delimiter: the delimiter of the file; decimal commas are more likely beside ";".
        numeric: columns of texts, in some of which DuckDB detected numbers.

    Raises:
        DataError: A cell is no finite number or no date, and bad cells are refused.
        OptionError: No column has the format of dates that is given.
    """
    readings: dict[str, TextReading] = {}
    notes = {}
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    policy = options.on_bad_cell
    for name in dict.fromkeys(names):
        text, found, dated = types.get(name) == "VARCHAR", None, None
        assumed = dict(options.assumed).get(name, "")
        if text and assumed == "text":
            continue
        if text and name in numeric and not options.as_written:
            booleans = boolean_reading(relation, name, assumed)
            if booleans is not None:
                readings[name] = booleans
                continue
        if text and (name in numeric or (name not in stated and options.date_format is None)):
            dated = _reading_in_format(relation, name, name in stated, options, delimiter)
        if text and name in numeric and dated is None:
            found = number_reading(relation, name, options, delimiter, policy == "text")
        if found is not None:
            readings[name] = found
            bad = f"{found.bad('x')} and lower(trim(x)) not in ('nan', '-nan')"
            some = found.bad_cells or found.type not in ("bigint", "double") or found.noun != "finite number"
            note = _count_bad(relation, name, bad, found.noun, policy, source) if some else None
        elif types.get(name) in ("FLOAT", "DOUBLE") and is_mostly_whole(relation, name, "x", policy == "text"):
            readings[name] = WholeFloats("whole number", "bigint")
            note = _count_bad(relation, name, readings[name].bad("x"), "whole number", policy, source)
        elif types.get(name) in ("FLOAT", "DOUBLE"):
            note = _count_bad(relation, name, "isinf(x)", "finite number", policy, source)
        elif text and not options.as_written:
            reading, note = dated or detect_reading(relation, name, name in stated, options, delimiter)
            if reading is not None:
                digits = reading.type == "bigint" and reading.noun == "finite number" and not reading.said
                remark = numbers_remark(first_texts(relation, name)) if digits else ""
                reading = replace(reading, said=remark) if remark else reading
                counted = "count" if policy == "text" else policy
                if reading.bad_cells:
                    note = _count_bad(relation, name, reading.bad("x"), reading.noun, counted, source)
                if policy == "text" and note:
                    continue
                readings[name] = reading
        elif types.get(name) == "BIGINT" and not options.as_written:
            firsts = relation.project(quoted_name(name)).limit(FIRST_TEXTS).fetchall()
            remark = numbers_remark(number for (number,) in firsts)
            note = CellNote(remark=remark) if remark else None
        else:
            continue
        if note:
            notes[name] = note
    read = any(reading.date_format == options.date_format for reading in readings.values())
    if options.date_format and not read and relation.limit(1).fetchall():
        raise OptionError(
            f"date_format must be the format of most cells of a key or value column, got {options.date_format!r}, "
            f"which fits {' and '.join(names) or 'no column'} of {source} in few cells or none. Correct or omit it."
        )
    return Conversions(readings, notes)


def _reading_in_format(
    relation: duckdb.DuckDBPyRelation, name: str, stated: bool, options: ReadOptions, delimiter: str
) -> tuple[TextReading, CellNote | None] | None:
    """Return the reading of a column of digits as dates in the given format and its note, or None for other columns."""
    if options.as_written:
        return None
    form = options.date_format
    if form is None and not has_identifier_name(name) and dict(options.assumed).get(name) != "number":
        firsts = [text.strip() for (text,) in relation.project(quoted_name(name)).limit(10).fetchall() if text]
        if all(text.lower() in MISSING or is_compact_date(text) for text in firsts):
            written = first_texts(relation, name)
            form = "%Y%m%d" if written and all(map(is_compact_date, written)) else None
    if form is None:
        return None
    reading, note = detect_reading(relation, name, stated, replace(options, date_format=form), delimiter)
    if reading is None or reading.date_format != form:
        return None
    # Digits are surely dates if nearly all are.
    if options.date_format is None:
        marks = f"lower(trim({quoted_name(name)})) in ({', '.join(map(sql_text, MISSING[1:]))})"
        ((missing,),) = relation.aggregate(f"count(*) filter ({marks})").fetchall()
        if (reading.bad_cells - missing) * (1 if options.on_bad_cell == "text" else 20) > len(relation) - missing:
            return None
        reading = reading if missing else replace(reading, said=f"{reading.said}; read_csv in --sql reads numbers")
    return reading, note


def _count_bad(
    relation: duckdb.DuckDBPyRelation, name: str, test: str, noun: str, on_bad_cell: str, source: str
) -> CellNote | None:
    """Return a note that counts the cells of a column that satisfy `test`, or None if there are none."""
    bad = f"filter ({test})"
    column = relation.project(f"{quoted_name(name)} as x")
    ((count, example),) = column.aggregate(f"count(*) {bad}, min(x::varchar) {bad}").fetchall()
    return _bad_note(name, count, example, noun, on_bad_cell, source)


def _bad_note(name: str, count: int, example: str, noun: str, on_bad_cell: str, source: str) -> CellNote | None:
    note = CellNote(count, noun, example)
    if count and on_bad_cell == "refuse":
        raise DataError(
            f"the cells of {name!r} must be {note.plural} in {source}, got {example!r}"
            + (f", one of {count:,} cells that are not" if count > 1 else "")
            + ". Correct the cells, or pass --on-bad-cell exclude (in Python: on_bad_cell='exclude')."
        )
    return note if count else None


def add_cell_notes(table: pa.Table, names: Sequence[str], on_bad_cell: str, source: str) -> pa.Table:
    """Return a table of stated types with notes about bad cells: infinite ones, texts that look like numbers or dates.

    Args:
        table: the table.
        names: the columns that are used.
        on_bad_cell: "refuse" raises an error for infinite cells.
        source: the name of the table, for errors.

    Raises:
        DataError: A cell is infinite, and `on_bad_cell` is "refuse".
    """
    for name in dict.fromkeys(names):
        if name not in table.column_names:
            continue
        column = table.column(name)
        note = None
        if pa.types.is_floating(column.type) and has_identifier_name(name):
            table, note = _with_whole_numbers(table, name, on_bad_cell, source)
            column = table.column(name)
        if pa.types.is_floating(column.type):
            infinite = [_infinite_cells(chunk) for chunk in column.chunks]
            found = np.concatenate([np.zeros(0), *infinite])
            example = str(found[0]) if len(found) else ""
            note = _bad_note(name, len(found), example, "finite number", on_bad_cell, source)
        elif pa.types.is_temporal(column.type) and not pa.types.is_interval(column.type):
            note = _bad_note(name, *_beyond_python(column), on_bad_cell, source)
        elif note is None and pa.types.is_integer(column.type):
            remark = numbers_remark(column.slice(0, FIRST_TEXTS).to_pylist())
            note = CellNote(remark=remark) if remark else None
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            note = _text_note(column)
        if note:
            table = with_cell_note(table, name, note)
    return table


def _text_note(column: pa.ChunkedArray) -> CellNote | None:
    """Return a note about a column of texts of which some are numbers, or which look like numbers or dates."""
    texts = [text for text in column.slice(0, FIRST_TEXTS).to_pylist() if text]
    if remark := text_remark(texts, stated=True):
        return CellNote(remark=remark)
    numbers = sum(_WRITTEN_NUMBER.fullmatch(text.strip()) is not None for text in texts)
    return CellNote(numbers, total=len(texts)) if LEAST_SHARE * len(texts) <= numbers < len(texts) else None


def predicate_notes(rows: pa.Table | StoredRows, predicate: str, others: Sequence[str] = ()) -> tuple[str, ...]:
    """Return how a predicate reads the columns that it names: their formats, and texts that it compares as texts.

    Args:
        rows: the rows of a table.
        predicate: a SQL predicate.
        others: columns that are left out.
    """
    names = [name for name in mentioned_columns(rows.column_names, predicate) if name not in others]
    if not names:
        return ()
    count = min(FIRST_TEXTS, rows.num_rows)
    # Of an object store, only these columns are read.
    first = rows.select(names).slice(0, count) if isinstance(rows, pa.Table) else rows.take(np.arange(count), names)
    notes = []
    for name, column in zip(names, first.columns, strict=True):
        note = _text_note(column) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else None
        reading = metadata_text(first.schema, name, READING)
        notes += [f"{name} {reading}"] * bool(reading) + ([note.text(name)] if note else [])
    return tuple(notes)


def _with_whole_numbers(table: pa.Table, name: str, on_bad_cell: str, source: str) -> tuple[pa.Table, CellNote | None]:
    """Return a table in which floats that are mostly whole numbers are integers, and a note about the other cells.

    Raises:
        DataError: A cell is no whole number, and `on_bad_cell` is "refuse".
    """
    integers, other = as_integers(table.column(name))
    if integers is None or (len(other) and on_bad_cell == "text"):
        return table, None
    example = repr(float(other[0])) if len(other) else ""
    note = _bad_note(name, len(other), example, "whole number", on_bad_cell, source)
    field = table.schema.field(name).with_type(integers.type)
    return table.set_column(table.column_names.index(name), field, integers), note


def _beyond_python(column: pa.ChunkedArray) -> tuple[int, str, str]:
    """Return the number of dates or durations that Python cannot represent, one of them, and what the others are."""
    masks = [beyond_python(stored_numbers(chunk), chunk.type) & ~null_mask(chunk) for chunk in column.chunks]
    found = np.flatnonzero(np.concatenate([np.zeros(0, bool), *masks]))
    example = str(to_python(column.slice(int(found[0]), 1))[0]) if len(found) else ""
    nouns = {"time": "time of day", "duration": "duration of at most 999,999,999 days"}
    return len(found), example, nouns.get(cell_kind(column.type), "date of the years 1 to 9999")


def _infinite_cells(chunk: pa.Array) -> Num[np.ndarray, " infinite"]:
    cells: Num[np.ndarray, " rows"] = stored_numbers(chunk)
    infinite: Num[np.ndarray, " infinite"] = cells[np.isinf(cells) & ~null_mask(chunk)]
    return infinite
