"""Functions that read files and run SQL queries and predicates with DuckDB. No DuckDB extension is downloaded.

Reading needs the file system and filtering does not, so `matching_rows` uses a connection that cannot open files
and whose settings are locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool
from qkv.database.io import arrow_columns
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
_CLOSED = {**_OFFLINE, "enable_external_access": "false", "lock_configuration": "true"}
_ROWS_PER_PART = 131_072
_ROW = "__qkv_row"
_PRESENT = "__qkv_present"
_DEFAULTS = ReadOptions()


@contextmanager
def _connection(
    settings: dict[str, str], error_class: type[QkvError], failure: str, remedy: str
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a DuckDB connection, and raise its errors as `error_class` with the texts `failure` and `remedy`."""
    import duckdb

    connection = duckdb.connect(config=settings)
    try:
        yield connection
    except duckdb.Error as error:
        raise error_class(f"{failure}: {_first_sentence(error)}. {remedy}") from None
    finally:
        connection.close()


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
        options: the encoding and the separators.

    Raises:
        DataError: The file cannot be read in the format of its suffix.
    """
    with _reading(path, kind, options) as relation:
        return _with_header(relation, kind, required).to_arrow_table()


def read_parts(
    path: str,
    kind: str,
    required: tuple[str, ...] = (),
    options: ReadOptions = _DEFAULTS,
    *,
    whole_file: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows of a delimited, JSON or Parquet file as pyarrow tables of at most 131,072 rows.

    Args:
        path: an existing file.
        kind: its suffix without that of the compression.
        required: as in `read_file`.
        options: the encoding and the separators.
        whole_file: whether types are detected from all rows rather than from the first 20,480.

    Raises:
        DataError: As in `read_file`.
    """
    import pyarrow as pa

    with _reading(path, kind, options, whole_file) as relation:
        reader = _with_header(relation, kind, required).to_arrow_reader(_ROWS_PER_PART)
        yield pa.Table.from_batches([], reader.schema)
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _with_header(
    relation: Callable[..., duckdb.DuckDBPyRelation], kind: str, required: tuple[str, ...]
) -> duckdb.DuckDBPyRelation:
    """Return the relation of a file, whose first line is the header if it holds the required columns."""
    opened = relation()
    if kind in DELIMITED and required and not set(required) <= set(opened.columns):
        first = opened.limit(1).fetchall()
        if first and set(required) <= set(map(str, first[0])):
            return relation(header=True)
    return opened


@contextmanager
def _reading(
    path: str, kind: str, given: ReadOptions, whole_file: bool = False
) -> Iterator[Callable[..., duckdb.DuckDBPyRelation]]:
    """Yield a function that opens a file as a DuckDB relation, and close the connection afterwards."""
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
            sample = {"sample_size": -1} if whole_file else {}

            def relation(**more: bool) -> duckdb.DuckDBPyRelation:
                if kind in PARQUET:
                    return connection.read_parquet(literal)
                if kind in JSON:
                    return connection.read_json(literal, **sample)
                return connection.read_csv(literal, **options, **sample, **more)

            try:
                yield relation
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
