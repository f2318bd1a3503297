"""Functions that read files and run SQL queries and predicates with DuckDB. No DuckDB extension is downloaded.

Reading needs the file system and filtering does not, so `matching_rows` uses a connection that cannot open files
and whose settings are locked.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from qkv.core.typing import Bool
from qkv.database.io import arrow_columns
from qkv.database.io.bad_cells import Conversions, add_cell_notes, detect_conversions
from qkv.database.io.date_formats import has_format
from qkv.database.io.read_options import ReadOptions, check_complete, first_delimiter, guess_encoding, in_utf_8
from qkv.database.io.text_readings import first_texts, quoted_name
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
_ISO = re.compile("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?![0-9])")
_TRIED_ROWS = 20_480


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
    with _reading(path, kind, options) as file:
        if kind in PARQUET:
            return add_cell_notes(file.open().to_arrow_table(), required, options.on_bad_cell, repr(path))
        table, rows, dates = _run_typed(file, required, options, lambda rows: rows.to_arrow_table())
        mixed = _mixed_columns(rows)
        memory = _without_quotes(file.connection.from_arrow(table), mixed)
        conversions = _conversions(file, memory, mixed, required, dates, options)
        if mixed or conversions.readings:
            table = conversions.relation(memory).to_arrow_table()
        return conversions.mark(table)


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

    with _reading(path, kind, options) as file:
        if kind in PARQUET:
            rows = file.open()
            texts = {name for name, type_ in zip(rows.columns, rows.types, strict=True) if str(type_) == "VARCHAR"}
            required = tuple(name for name in required if name not in texts)
            conversions = detect_conversions(rows, required, options, repr(path))
        else:
            # Counting the cells of all columns finds cells that contradict the detected types.
            _, opened, dates = _run_typed(file, required, options, _count_cells)
            mixed = _mixed_columns(opened)
            rows = _without_quotes(opened, mixed)
            conversions = _conversions(file, rows, mixed, required, dates, options)
        rows = conversions.relation(rows)
        first = conversions.mark(rows.limit(0).to_arrow_table())
        yield first
        for batch in rows.to_arrow_reader(_ROWS_PER_PART):
            yield pa.Table.from_arrays(batch.columns, schema=first.schema)


@dataclass(frozen=True)
class _File:
    """A file that is open in DuckDB.

    Attributes:
        path: the path, for errors.
        kind: its suffix without that of the compression.
        open: a function that opens the file as a relation, with options of DuckDB.
        connection: the connection.
        delimiter: for delimited files, the delimiter that is most frequent in the first line.
    """

    path: str
    kind: str
    open: Callable[..., duckdb.DuckDBPyRelation]
    connection: duckdb.DuckDBPyConnection
    delimiter: str


def _conversions(
    file: _File,
    rows: duckdb.DuckDBPyRelation,
    mixed: Sequence[str],
    required: tuple[str, ...],
    dates: Sequence[str],
    options: ReadOptions,
) -> Conversions:
    """Return how the required columns of a file are converted, and the columns `dates`, which were read as texts."""
    stated = () if file.kind in DELIMITED else [name for name in required if name not in mixed]
    found = detect_conversions(rows, required, options, repr(file.path), stated, file.delimiter)
    others = [name for name in dates if name not in required]
    if not others:
        return found
    # Bad cells of columns that are only shown are missing, and not counted.
    more = detect_conversions(rows, others, ReadOptions(assumed=options.assumed), repr(file.path))
    return Conversions({**found.readings, **more.readings}, found.notes)


@contextmanager
def _reading(path: str, kind: str, given: ReadOptions) -> Iterator[_File]:
    """Yield a file that DuckDB can open."""
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

            def open_relation(**more: object) -> duckdb.DuckDBPyRelation:
                if kind in PARQUET:
                    return connection.read_parquet(literal)
                if kind in JSON:
                    return connection.read_json(literal, **more)
                return connection.read_csv(literal, **{**options, **more})

            try:
                delimiter = given.delimiter or (first_delimiter(file) if kind in DELIMITED else "")
                yield _File(path, kind, open_relation, connection, delimiter)
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
    file: _File, required: tuple[str, ...], options: ReadOptions, run: Callable[[duckdb.DuckDBPyRelation], _T]
) -> tuple[_T, duckdb.DuckDBPyRelation, list[str]]:
    """Open a file with types that all its cells have, and return the result of `run`, the relation and some columns.

    DuckDB detects types from the first 20,480 rows. If a later cell contradicts them, they are detected from all rows.
    The columns are those that are read as texts although DuckDB would read them as dates, see `_open_typed`.
    """
    import duckdb

    rows = file.open()
    dialect: dict[str, object] = {}
    if file.kind in DELIMITED and required and not set(required) <= set(rows.columns):
        first = rows.limit(1).fetchall()
        if first and set(required) <= set(map(str, first[0])):
            dialect = {"header": True}
        else:
            dialect = _dialect(file, required, options)
    contradictions = (duckdb.ConversionException, duckdb.InvalidInputException)
    with contextlib.suppress(contradictions):
        rows, dates = _open_typed(file, required, options, dialect, None if dialect else rows)
        return run(rows), rows, dates
    try:
        rows, dates = _open_typed(file, required, options, {**dialect, "sample_size": -1})
        return run(rows), rows, dates
    except contradictions:
        # DuckDB takes the apostrophe of "1'203" for a quotation mark.
        if file.kind not in DELIMITED or options.delimiter is not None or not required:
            raise
        dialect = {"header": True, "delimiter": file.delimiter, "quotechar": '"', "escapechar": '"', "skiprows": 0}
        rows, dates = _open_typed(file, required, options, {**dialect, "sample_size": -1})
        if not set(required) <= set(rows.columns):
            raise
        return run(rows), rows, dates


def _open_typed(
    file: _File,
    required: tuple[str, ...],
    options: ReadOptions,
    dialect: dict[str, object],
    opened: duckdb.DuckDBPyRelation | None = None,
) -> tuple[duckdb.DuckDBPyRelation, list[str]]:
    """Open a file, and read columns as texts whose dates this package reads, which are returned."""
    rows = file.open(**dialect) if opened is None else opened
    if file.kind not in DELIMITED:
        return rows, []
    types = dict(zip(rows.columns, map(str, rows.types), strict=True))
    tested = [name for name, type_ in types.items() if type_ == "DATE" or type_.startswith("TIMESTAMP")]
    form = options.date_format
    tested += [name for name in required if form and types.get(name) == "BIGINT"]
    if not tested:
        return rows, []
    texts = file.open(**dialect, dtype=dict.fromkeys(tested, "VARCHAR"))
    dates = []
    for name in tested:
        written = first_texts(texts, name)
        if types[name] == "BIGINT":
            read = bool(form) and sum(map(partial(has_format, form=str(form)), written)) > len(written) / 2
        elif name in required and types[name] != "DATE":
            # DuckDB converts timestamps with and without time zones in one column without a word.
            read = not options.as_written
        else:
            read = not all(map(_ISO.match, written))
        dates += [name] if read else []
    if len(dates) < len(tested):
        texts = file.open(**dialect, dtype=dict.fromkeys(dates, "VARCHAR")) if dates else rows
    return texts, dates


def _dialect(file: _File, required: tuple[str, ...], options: ReadOptions) -> dict[str, object]:
    """Return the delimiter with which the first line holds the required columns; empty if there is none.

    Raises:
        DataError: The first line holds them, but the other lines do not have as many cells.
    """
    import duckdb

    names = file.open(header=True, skiprows=0).columns
    cells = {cell.strip(" \"'") for cell in re.split(r"[,;\t|]", names[0])}
    if options.delimiter is None and file.delimiter:
        # DuckDB takes the decimal comma of 1,5;2,5 for the delimiter.
        dialect: dict[str, object] = {"header": True, "delimiter": file.delimiter}
        with contextlib.suppress(duckdb.Error):
            opened = file.open(**dialect)
            if set(required) <= set(opened.columns) and opened.limit(_TRIED_ROWS).fetchall():
                return dialect
    if len(names) == 1 and len(cells) > 1 and set(required) <= cells:
        raise DataError(
            f"{file.path!r} cannot be read as {file.kind[1:]}: its rows do not have the {len(cells)} cells of the "
            "first line. Check quotation marks and separators."
        )
    return {}


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
