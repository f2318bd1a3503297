"""Functions that read files and run SQL queries with DuckDB. No DuckDB extension is downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from qkv.core.cell_kinds import cell_kind
from qkv.core.printable import quoted_name
from qkv.database.io.bad_cells import Conversions, add_cell_notes, detect_conversions
from qkv.database.io.cell_notes import with_line_note
from qkv.database.io.duckdb_file import DELIMITED, OFFLINE, PARQUET, OpenFile, open_connection, open_file, run_typed
from qkv.database.io.exact_types import with_microsecond_columns
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.text_readings import TextReading
from qkv.encoders.arrow_columns import with_category_texts
from qkv.errors import DataError, QueryError

if TYPE_CHECKING:
    import duckdb


def json_columns(rows: duckdb.DuckDBPyRelation) -> list[str]:
    """Return the columns of a JSON file with values of several types, such as numbers and texts."""
    return [name for name, type_ in zip(rows.columns, rows.types, strict=True) if str(type_) == "JSON"]


def with_json_texts(
    rows: duckdb.DuckDBPyRelation, names: Sequence[str], distinct: Sequence[str]
) -> duckdb.DuckDBPyRelation:
    """Return a relation in which columns of JSON values are texts.

    Args:
        rows: the relation.
        names: the columns of JSON values.
        distinct: the columns in which different values are different texts. In others, all texts are as they are.
    """
    texts = [f"{_sql(quoted_name(name), name in distinct)} as {quoted_name(name)}" for name in names]
    return rows.project(f"* replace ({', '.join(texts)})") if texts else rows


def with_counted_texts(rows: duckdb.DuckDBPyRelation, names: Sequence[str], found: Conversions) -> Conversions:
    """Return conversions whose readings of numbers say how many of the numbers are written as texts in a JSON file.

    Args:
        rows: the relation of JSON values.
        names: the columns of values of several types in which such a text is read as the number.
        found: how the columns are converted.
    """
    readings = dict(found.readings)
    for name in names:
        reading = readings.get(name)
        if not isinstance(reading, TextReading) or "number" not in reading.noun:
            continue
        cell = quoted_name(name)
        text = f"json_extract_string({cell}, '$')"
        written = f"filter (json_type({cell}) = 'VARCHAR' and ({reading.sql(text)}) is not null)"
        ((count, example),) = rows.aggregate(f"count(*) {written}, min({text}) {written}").fetchall()
        if count:
            counted = "1 of which is a text" if count == 1 else f"{count:,} of which are texts"
            said = f"is read as numbers, {counted}, such as {example!r}"
            readings[name] = replace(reading, said=f"{reading.said}; it {said}" if reading.said else said)
    return replace(found, readings=readings)


def _sql(cell: str, distinct: bool) -> str:
    text = f"json_extract_string({cell}, '$')"
    if not distinct:
        return text
    # DuckDB takes nan and inf for JSON, which are marks of missing cells.
    alike = f"json_valid({text}) and not regexp_matches(lower({text}), '^[-+]?(nan|inf)')"
    return f"case when json_type({cell}) = 'VARCHAR' and {alike} then {cell}::varchar else {text} end"


_ROWS_PER_PART = 131_072
_DEFAULTS = ReadOptions()


def read_file(path: str, kind: str, required: tuple[str, ...] = (), options: ReadOptions = _DEFAULTS) -> pa.Table:
    """Read a delimited, JSON or Parquet file, which may be compressed, as a pyarrow table.

    Args:
        path: an existing file.
        kind: its suffix without that of the compression, one of `DELIMITED`, `JSON`, `PARQUET`.
        required: the columns that will be used. If the first line of a delimited file holds them, it is the
            header, whatever types are detected.
        options: the encoding, the separators, and what to do with bad cells of the required columns.

    Raises:
        DataError: The file cannot be read in the format of its suffix, or has a bad cell that is refused.
    """
    with open_file(path, kind, options, required) as file:
        if kind in PARQUET:
            table = _with_types(file.open().to_arrow_table(), _stated_types(path))
            return add_cell_notes(table, required, options.on_bad_cell, repr(path))
        table, rows, dates = run_typed(file, required, options, lambda rows: rows.to_arrow_table())
        mixed = json_columns(rows)
        memory, conversions = _conversions(file, file.connection.from_arrow(table), mixed, required, dates, options)
        # The other columns are not copied.
        changed = list(dict.fromkeys([*mixed, *conversions.readings]))
        if changed:
            converted = conversions.relation(memory).select(*map(quoted_name, changed)).to_arrow_table()
            for name in changed:
                place = table.schema.get_field_index(name)
                table = table.set_column(place, converted.schema.field(name), converted.column(name))
        return with_line_note(conversions.mark(table), file.layout.note)


def read_parts(
    path: str, kind: str, required: tuple[str, ...] = (), options: ReadOptions = _DEFAULTS
) -> Iterator[pa.Table]:
    """Yield the rows of a delimited, JSON or Parquet file as pyarrow tables of at most 131,072 rows.

    Raises:
        DataError: As in `read_file`, before the first table.
    """
    with open_file(path, kind, options, required) as file:
        if kind in PARQUET:
            rows = with_microsecond_columns(file.open())
            stated = _stated_types(path)
            texts = {name for name, type_ in zip(rows.columns, rows.types, strict=True) if str(type_) == "VARCHAR"}
            required = tuple(name for name in required if name not in texts and name not in stated)
            conversions = detect_conversions(rows, required, options, repr(path))
        else:
            stated = {}
            # Counting the cells of all columns finds cells that contradict the detected types.
            _, opened, dates = run_typed(file, required, options, _count_cells)
            cells, mixed = with_microsecond_columns(opened), json_columns(opened)
            rows, conversions = _conversions(file, cells, mixed, required, dates, options)
        rows = conversions.relation(rows)
        first = conversions.mark(_with_types(rows.limit(0).to_arrow_table(), stated))
        first = with_line_note(first, file.layout.note)
        yield first
        for batch in rows.to_arrow_reader(_ROWS_PER_PART):
            part = _with_types(pa.Table.from_batches([batch]), stated)
            yield pa.Table.from_arrays(part.columns, schema=first.schema)


def _stated_types(path: str) -> dict[str, pa.DataType]:
    """Return the types of the columns of a Parquet file that DuckDB reads as another: durations, zones, categories.

    Raises:
        DataError: A column has decimals of more than 38 digits, which DuckDB rounds.
    """
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (pa.ArrowException, OSError):  # DuckDB reads some files that pyarrow does not
        return {}
    for field in schema:
        if pa.types.is_decimal256(field.type):
            raise DataError(
                f"decimals of a Parquet file must have at most 38 digits, got {field.type} in the column "
                f"{field.name!r} of {path!r}. Write the file again as .arrow, or cast the column."
            )
    zoned = {field.name for field in schema if getattr(field.type, "tz", None) not in (None, "UTC")}
    stated = {field.name: field.type for field in schema if field.name in zoned or pa.types.is_duration(field.type)}
    stated |= {field.name: field.type for field in schema if pa.types.is_dictionary(field.type)}
    # Parquet has dictionaries of texts alone.
    pandas = (schema.pandas_metadata or {}).get("columns", ())
    categories = {column["field_name"] for column in pandas if column["pandas_type"] == "categorical"}
    others = [
        field for field in schema if cell_kind(field.type) not in ("text", "boolean") and field.name in categories
    ]
    return stated | {field.name: pa.dictionary(pa.int32(), field.type) for field in others}


def _with_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return a table in which columns are durations or categories, and timestamps have their time zones."""
    for name, type_ in types.items():
        place = table.schema.get_field_index(name)
        if place >= 0:
            column = table.column(name)
            category = pa.types.is_dictionary(type_)
            plain = type_.value_type if category else type_
            if pa.types.is_timestamp(column.type):
                plain = pa.timestamp(column.type.unit, plain.tz)
            column = column.cast(plain)
            table = table.set_column(place, name, column.dictionary_encode() if category else column)
    return with_category_texts(table)


def _conversions(
    file: OpenFile,
    cells: duckdb.DuckDBPyRelation,
    mixed: Sequence[str],
    required: tuple[str, ...],
    dates: Sequence[str],
    options: ReadOptions,
) -> tuple[duckdb.DuckDBPyRelation, Conversions]:
    """Return the rows of a file with texts in place of JSON values, and how their columns are converted.

    Args:
        file: the file.
        cells: its rows.
        mixed: the columns of JSON values.
        required: the columns that are used.
        dates: the columns that were read as texts.
        options: what to do with bad cells.
    """
    # The key columns are all but the last; a file of queries has none.
    keys = () if options.as_written else required[:-1]
    rows = with_json_texts(cells, mixed, keys)
    stated = () if file.kind in DELIMITED else [name for name in required if name not in (*mixed, *dates)]
    found = detect_conversions(rows, required, options, repr(file.path), stated, file.layout.delimiter, dates)
    others = [name for name in dates if name not in required]
    if others:
        # Bad cells of columns that are only shown are missing, and not counted.
        given = ReadOptions(assumed=options.assumed)
        more = detect_conversions(rows, others, given, repr(file.path), (), file.layout.delimiter)
        found = Conversions({**found.readings, **more.readings}, found.notes)
    if options.decimal and file.kind in DELIMITED and not options.as_written:
        # DuckDB reads 1.203,5 as a text, which a predicate could not compare.
        texts = [name for name, type_ in zip(cells.columns, cells.types, strict=True) if str(type_) == "VARCHAR"]
        given = ReadOptions(assumed=options.assumed, decimal=options.decimal, on_bad_cell="text")
        more = detect_conversions(rows, [name for name in texts if name not in (*required, *others)], given, file.path)
        numbers = {name: each for name, each in more.readings.items() if each.noun == "finite number"}
        found = Conversions({**numbers, **found.readings}, found.notes)
    values = [name for name in dict.fromkeys(required) if name in mixed and name not in keys]
    return rows, with_counted_texts(cells, values, found)


def _count_cells(rows: duckdb.DuckDBPyRelation) -> int:
    ((*counts,),) = rows.aggregate(", ".join(f"count({quoted_name(name)})" for name in rows.columns)).fetchall()
    return max(map(int, counts))


def run_sql(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Run one SELECT statement, which may read files and `tables`, and return its result as a pyarrow table.

    Raises:
        QueryError: The query does not parse, is not one SELECT statement, or fails.
    """
    import duckdb

    remedy = "Correct the query."
    with open_connection(OFFLINE, QueryError, "the SQL query failed", remedy) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        statements = connection.extract_statements(query)
        # Statements such as COPY and CREATE would write, so only SELECT is accepted.
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise QueryError(
                f"query must be one SELECT statement, got {query!r}. Pass the SELECT statement that returns the rows."
            )
        return connection.sql(query).to_arrow_table()
