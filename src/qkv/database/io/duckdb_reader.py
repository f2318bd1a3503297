"""Functions that read files and run SQL queries and predicates with DuckDB. No DuckDB extension is downloaded.

Reading needs the file system and filtering does not, so `matching_rows` uses a connection that cannot open files
and whose settings are locked.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from qkv.core.typing import Bool
from qkv.database.io import arrow_columns
from qkv.database.io.arrow_columns import with_metadata
from qkv.database.io.bad_cells import add_cell_notes, detect_conversions, quoted_name
from qkv.database.io.read_options import ReadOptions, check_complete, guess_encoding, in_utf_8
from qkv.errors import DataError, QkvError, QueryError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["DELIMITED", "JSON", "PARQUET", "matching_rows", "read_file", "read_parts", "run_sql"]

DELIMITED = (".csv", ".tsv", ".txt")
JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")

# By default DuckDB downloads a missing extension the first time a query names it.
_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_CLOSED = {**_OFFLINE, "enable_external_access": "false"}
_ROWS_PER_PART = 131_072
_ROW = "__qkv_row"
_PRESENT = "__qkv_present"
_DEFAULTS = ReadOptions()
_T = TypeVar("_T")
_Open = Callable[..., "duckdb.DuckDBPyRelation"]


@contextmanager
def _connection(
    settings: dict[str, str], error_class: type[QkvError], failure: str, remedy: str
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a DuckDB connection, and raise its errors as `error_class` with the texts `failure` and `remedy`."""
    with _signals_deferred():
        import duckdb

    connection = duckdb.connect(config=settings)
    try:
        # DuckDB prints the progress of slow reads to standard output, where answers are.
        connection.execute("set enable_progress_bar = false")
        if settings is _CLOSED:
            connection.execute("set lock_configuration = true")
        yield connection
    except (duckdb.Error, RuntimeError) as error:
        if isinstance(error, duckdb.InterruptException) or str(error) == "Query interrupted":
            raise KeyboardInterrupt from None  # Ctrl-C
        if not isinstance(error, duckdb.Error):
            raise
        raise error_class(f"{failure}: {_first_sentence(error)}. {remedy}") from None
    finally:
        connection.close()


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: DuckDB aborts the process if its import is interrupted."""
    if not hasattr(signal, "pthread_sigmask") or "duckdb" in sys.modules:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_sentence(error: Exception) -> str:
    """Return the first line of the message of a DuckDB error, without the name of the error class."""
    first = str(error).strip().split("\n")[0]
    head, colon, rest = first.partition("Error: ")
    return (rest if colon and len(head) < 40 else first).rstrip(".!: ")


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
    with _reading(path, kind, options) as (open_relation, literal, connection):
        table, rows = _run_typed(open_relation, path, kind, required, lambda rows: rows.to_arrow_table())
        if kind in PARQUET:
            return add_cell_notes(table, required, options.on_bad_cell, repr(path))
        mixed = _mixed_columns(rows)
        rows = _without_quotes(connection.from_arrow(table), mixed)
        stated = () if kind in DELIMITED else [name for name in required if name not in mixed]
        conversions = detect_conversions(
            rows, required, options.on_bad_cell, repr(path), stated, options.decimal or "."
        )
        if mixed or conversions.expressions:
            table = conversions.relation(rows).to_arrow_table()
        return conversions.mark(_with_date_formats(table, literal, kind, connection))


def read_parts(
    path: str, kind: str, required: tuple[str, ...] = (), options: ReadOptions = _DEFAULTS
) -> Iterator[pa.Table]:
    """Yield the rows of a delimited, JSON or Parquet file as pyarrow tables of at most 131,072 rows.

    Args:
        path: an existing file.
        kind: its suffix without that of the compression.
        required: as in `read_file`.
        options: as in `read_file`.

    Raises:
        DataError: As in `read_file`, before the first table.
    """
    import pyarrow as pa

    with _reading(path, kind, options) as (open_relation, literal, connection):
        if kind in PARQUET:
            rows = open_relation()
            texts = {name for name, type_ in zip(rows.columns, rows.types, strict=True) if str(type_) == "VARCHAR"}
            required = tuple(name for name in required if name not in texts)
            conversions = detect_conversions(rows, required, options.on_bad_cell, repr(path))
        else:
            # Counting the cells of all columns finds cells that contradict the detected types.
            _, rows = _run_typed(open_relation, path, kind, required, _count_cells)
            mixed = _mixed_columns(rows)
            rows = _without_quotes(rows, mixed)
            stated = () if kind in DELIMITED else [name for name in required if name not in mixed]
            conversions = detect_conversions(
                rows, required, options.on_bad_cell, repr(path), stated, options.decimal or "."
            )
        rows = conversions.relation(rows)
        first = conversions.mark(_with_date_formats(rows.limit(0).to_arrow_table(), literal, kind, connection))
        yield first
        for batch in rows.to_arrow_reader(_ROWS_PER_PART):
            yield pa.Table.from_arrays(batch.columns, schema=first.schema)


@contextmanager
def _reading(path: str, kind: str, given: ReadOptions) -> Iterator[tuple[_Open, str, duckdb.DuckDBPyConnection]]:
    """Yield a function that opens a file as a DuckDB relation, the path for DuckDB, and the connection."""
    options = {"delimiter": "\t"} if kind == ".tsv" else {}
    options |= {"delimiter": given.delimiter} if given.delimiter else {}
    options |= {"decimal": given.decimal} if given.decimal else {}
    failure = f"{path!r} cannot be read as {kind[1:]}"
    remedy = "Check the file, or rename it with the suffix of its format."
    encoding = None if kind in PARQUET else given.encoding
    if encoding is None:
        check_complete(Path(path))
    with in_utf_8(Path(path), encoding) as file:
        # Glob characters in a path are escaped as character classes, so that the path names one file.
        literal = "".join(f"[{c}]" if c in "*?[" else c for c in str(file))

        with _connection(_OFFLINE, DataError, failure, remedy) as connection:

            def open_relation(**more: int) -> duckdb.DuckDBPyRelation:
                if kind in PARQUET:
                    return connection.read_parquet(literal)
                if kind in JSON:
                    return connection.read_json(literal, **more)
                return connection.read_csv(literal, **options, **more)

            try:
                yield open_relation, literal, connection
            except _duckdb_error() as error:
                if kind in PARQUET or encoding is not None or not _names_encoding(str(error)):
                    raise
                guess = guess_encoding(Path(path))
                windows = " (or cp1252, if it is from Windows)" if guess == "latin-1" else ""
                raise DataError(
                    f"{path!r} must be text in UTF-8, got other bytes, probably {guess}{windows}. Pass "
                    f"--encoding {guess} to qkv ask (in Python: encoding={guess!r} to Database.open), or convert the "
                    "file with iconv."
                ) from None


def _duckdb_error() -> type[Exception]:
    import duckdb

    error: type[Exception] = duckdb.Error
    return error


def _names_encoding(message: str) -> bool:
    return any(part in message.lower() for part in ("utf-8", "utf8", "unicode"))


def _run_typed(
    open_relation: _Open, path: str, kind: str, required: tuple[str, ...], run: Callable[[duckdb.DuckDBPyRelation], _T]
) -> tuple[_T, duckdb.DuckDBPyRelation]:
    """Open a file with types that all its cells have, and return the result of `run` with the relation.

    DuckDB detects types from the first 20,480 rows. If a later cell contradicts them, they are detected from all rows.
    """
    import duckdb

    rows = open_relation()
    header: dict[str, int] = {}
    if kind in DELIMITED and required and not set(required) <= set(rows.columns):
        first = rows.limit(1).fetchall()
        if first and set(required) <= set(map(str, first[0])):
            header = {"header": True}
            rows = open_relation(**header)
        else:
            _check_dialect(open_relation, path, kind, required)
    try:
        return run(rows), rows
    except (duckdb.ConversionException, duckdb.InvalidInputException):
        if kind in PARQUET:
            raise
        rows = open_relation(**header, sample_size=-1)
        return run(rows), rows


def _check_dialect(open_relation: _Open, path: str, kind: str, required: tuple[str, ...]) -> None:
    """Raise an error if the first line holds the required columns, but DuckDB skipped it to read uneven rows."""
    names = open_relation(header=True, skiprows=0).columns
    cells = {cell.strip(" \"'") for cell in re.split(r"[,;\t|]", names[0])}
    if len(names) == 1 and len(cells) > 1 and set(required) <= cells:
        raise DataError(
            f"{path!r} cannot be read as {kind[1:]}: its rows do not have the {len(cells)} cells of the first line. "
            "Check quotation marks and separators."
        )


def _count_cells(rows: duckdb.DuckDBPyRelation) -> int:
    ((*counts,),) = rows.aggregate(", ".join(f"count({quoted_name(name)})" for name in rows.columns)).fetchall()
    return max(map(int, counts))


def _mixed_columns(rows: duckdb.DuckDBPyRelation) -> list[str]:
    """Return the columns of a JSON file with values of several types, such as numbers and texts."""
    return [name for name, type_ in zip(rows.columns, rows.types, strict=True) if str(type_) == "JSON"]


def _without_quotes(rows: duckdb.DuckDBPyRelation, names: Sequence[str]) -> duckdb.DuckDBPyRelation:
    """Return a relation in which columns of JSON values are texts without quotation marks."""
    texts = ", ".join(f"json_extract_string({quoted_name(n)}, '$') as {quoted_name(n)}" for n in names)
    return rows.project(f"* replace ({texts})") if texts else rows


def _with_date_formats(table: pa.Table, literal: str, kind: str, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Return a table with the formats of dates that are not in ISO 8601, see `arrow_columns.DATE_FORMAT`."""
    import pyarrow as pa

    columns = [each for each in table.schema if pa.types.is_date(each.type) or pa.types.is_timestamp(each.type)]
    if kind not in DELIMITED or not columns:
        return table
    sniffed = "select DateFormat, TimestampFormat from sniff_csv(?)"
    ((date, timestamp),) = connection.execute(sniffed, [literal]).fetchall()
    for each in columns:
        form = date if pa.types.is_date(each.type) else timestamp
        if form and not form.startswith("%Y-%m-%d"):
            table = with_metadata(table, each.name, arrow_columns.DATE_FORMAT, form)
    return table


def run_sql(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Run one SELECT statement, which may read files and `tables`, and return its result as a pyarrow table.

    Raises:
        QueryError: The query does not parse, is not one SELECT statement, or fails.
    """
    import duckdb

    remedy = "Correct the query."
    with _connection(_OFFLINE, QueryError, "the SQL query failed", remedy) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        statements = connection.extract_statements(query)
        # Statements such as COPY and CREATE would write, so only SELECT is accepted.
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise QueryError(
                f"query must be one SELECT statement, got {query!r}. Pass the SELECT statement that returns the rows."
            )
        return connection.sql(query).to_arrow_table()


def matching_rows(
    table: pa.Table, predicate: str, present: Bool[np.ndarray, " rows"] | None = None
) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for each row of a table that satisfies a SQL predicate.

    The predicate may refer to the whole table as `data`: `income > (select avg(income) from data)`. Null is not
    true, as in SQL.

    Args:
        table: the table, read without a copy.
        predicate: one SQL expression.
        present: True for the rows that exist; other rows are not visible to the predicate. None: all rows exist.

    Raises:
        QueryError: The predicate does not parse, names an unknown column, or accesses other data.
    """
    numbered = table.append_column(_ROW, arrow_columns.row_numbers(table.num_rows))
    if present is not None:
        import pyarrow as pa

        numbered = numbered.append_column(_PRESENT, pa.array(present))
    failure = f"the predicate {predicate!r} failed"
    remedy = f"Write SQL over the columns {', '.join(table.column_names)}, such as city = 'Oslo'."
    with _connection(_CLOSED, QueryError, failure, remedy) as connection:
        relation = connection.from_arrow(numbered)
        if present is not None:
            relation = relation.filter(_PRESENT).project(f"* exclude ({_PRESENT})")
        relation.create_view("data")
        # `filter` parses one expression, so a predicate cannot end the statement and begin another.
        matches = relation.filter(predicate).select(_ROW).to_arrow_table()
    mask = np.zeros(table.num_rows, bool)
    for chunk in matches.column(0).chunks:
        mask[arrow_columns.stored_numbers(chunk)] = True
    return mask
