"""Output files of `qkv ask` and `qkv join`: rows are written part by part into one file, which is complete or absent.

Durations are written as numbers of days, except to Arrow files.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa

from qkv.core.files import write_atomic
from qkv.core.printable import first_line, quoted_formula
from qkv.core.untrusted_json import to_json
from qkv.encoders.arrow_columns import to_python, units_per_day
from qkv.errors import DataError, OptionError

SUFFIXES = (".csv", ".parquet", ".arrow", ".jsonl")
_ROWS_PER_GROUP = 65_536

_Write = Callable[[pa.Table], object]


def check_distinct(output: Path, inputs: list[str]) -> None:
    """Raise an error if answers would replace a file from which they are computed."""
    from qkv.database.io.paths import source_files

    for path in source_files(inputs) if output.exists() else ():
        if path.exists() and output.samefile(path):
            name = str(output)
            raise OptionError(
                f"--output must be another file than the table and the queries, got {name!r}. Choose another name."
            )


def write_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    output: Path,
    quote_formulas: bool = False,
    option: str = "--output",
    noun: str = "the answers",
) -> None:
    """Write batches of rows to a file in the format of its suffix, as they are computed.

    Args:
        batches: the rows.
        schema: their schema.
        output: the file.
        quote_formulas: whether texts that spreadsheets execute are quoted in CSV.
        option: names the file in errors.
        noun: what is written, for errors.

    Raises:
        DataError: The file cannot be written, or its format does not support a column.
    """

    def fill(stream: IO[bytes]) -> None:
        kind = output.suffix.lower()
        written = pa.schema([field.with_type(_written_type(field.type, kind)) for field in schema])
        try:
            with _writer(kind, written, stream, quote_formulas) as write:
                for table in _groups(batches, schema):
                    write(table if written == schema else _converted(table, written))
        except pa.ArrowException as error:
            raise DataError(
                f"{option} must have a format that can store {noun}, got {kind}, but writing it failed: "
                f"{first_line(error)}. Name a file that ends in .arrow."
            ) from None

    write_atomic(output, fill, noun)


@contextmanager
def _writer(kind: str, schema: pa.Schema, stream: IO[bytes], quote_formulas: bool) -> Iterator[_Write]:
    """Yield a function that writes a table to a stream in the format of a suffix."""
    if kind == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetWriter(stream, schema) as writer:
            yield writer.write_table
    elif kind == ".arrow":
        with pa.ipc.new_file(stream, schema) as writer:
            yield writer.write_table
    else:
        text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
        yield _text_writer(kind, schema, text, quote_formulas)
        text.detach()


def _text_writer(kind: str, schema: pa.Schema, text: io.TextIOWrapper, quote_formulas: bool) -> _Write:
    from qkv.cli.answer_writers import to_csv

    if kind == ".csv":
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(schema.names)
        convert = (lambda cell: quoted_formula(to_csv(cell))) if quote_formulas else to_csv
        return lambda table: lines.writerows(map(convert, row) for row in _rows(table))

    def write_json(table: pa.Table) -> None:
        for row in _rows(table):
            record = dict(zip(schema.names, map(to_json, row), strict=True))
            text.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    return write_json


def _rows(table: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(to_python(column) for column in table.columns), strict=True)


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield batches as tables of some 65,536 rows, because a small row group of Parquet compresses badly."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(each.num_rows for each in group) >= _ROWS_PER_GROUP:
            yield pa.Table.from_batches(group, schema)
            group = []
    yield pa.Table.from_batches(group, schema)


def _written_type(type_: pa.DataType, kind: str) -> pa.DataType:
    """Return the type in which a column is written to a file with a suffix."""
    if kind != ".arrow":
        return pa.float64() if pa.types.is_duration(type_) else type_
    # All batches of an Arrow file have the same dictionary; those of queries may differ.
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _converted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the types of a schema, durations as numbers of days."""
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        if pa.types.is_duration(column.type) and field.type != column.type:
            units, day = column.cast(pa.int64()).to_pylist(), units_per_day(column.type)
            column = pa.chunked_array(
                [pa.array([None if unit is None else unit / day for unit in units], pa.float64())]
            )
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.table(columns, schema=schema)
