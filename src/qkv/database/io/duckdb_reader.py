"""DuckDB, closed: no extension is fetched, and a predicate sees one table and nothing else.

Reading (files, SQL) needs the file system; filtering does not, so `matching_rows` runs on a connection that
may open no file and whose settings are locked.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from qkv.database.io import arrow_columns
from qkv.errors import DataError, QueryError

__all__ = ["DELIMITED", "JSON", "PARQUET", "read_file", "read_parts", "run_sql", "matching_rows"]

DELIMITED = (".csv", ".tsv", ".txt")
JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")

# DuckDB would otherwise download a missing extension the first time a query names it.
_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_CLOSED = {**_OFFLINE, "enable_external_access": "false", "lock_configuration": "true"}
_PART = 131_072
_ROW = "__qkv_row"
_THERE = "__qkv_there"


def _connect(settings: dict[str, str]) -> Any:
    import duckdb

    return duckdb.connect(config=settings)


def _sentence(error: Exception) -> str:
    """The first line of a DuckDB message, without its kind: `Referenced column "x" not found …`."""
    first = str(error).strip().split("\n")[0]
    head, colon, rest = first.partition("Error: ")
    return (rest if colon and len(head) < 40 else first).rstrip(".!: ")


def read_file(path: str, kind: str, wanted: tuple[str, ...] = ()) -> Any:
    """The pyarrow table in a delimited, JSON or Parquet file, gzipped or not.

    Args:
        path: an existing file.
        kind: its suffix without `.gz`, one of `DELIMITED`, `JSON`, `PARQUET`.
        wanted: the columns that will be asked for. A delimited file whose first line holds them has a header,
            whatever its sniffed types suggest.

    Raises:
        DataError: the file cannot be read as what its name says.
    """
    with _reading(path, kind) as relation:
        table = relation().to_arrow_table()
        absent = [name for name in wanted if name not in table.column_names]
        if kind in DELIMITED and absent and wanted and table.num_rows:
            first = {str(table.column(i)[0].as_py()) for i in range(table.num_columns)}
            if set(wanted) <= first:
                return relation(header=True).to_arrow_table()
        return table


def read_parts(path: str, kind: str) -> Iterator[Any]:
    """The rows of such a file in tables of about a hundred thousand.

    Raises:
        DataError: as `read_file`.
    """
    import pyarrow as pa

    with _reading(path, kind) as relation:
        reader = relation().to_arrow_reader(_PART)
        yield pa.Table.from_batches([], reader.schema)
        for batch in reader:
            yield pa.Table.from_batches([batch])


@contextmanager
def _reading(path: str, kind: str) -> Iterator[Any]:
    """A function that opens the file, while the connection lasts."""
    import duckdb

    connection = _connect(_OFFLINE)
    # A name that holds glob characters means that one file: each is written as a class of one character.
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in path)
    options: dict[str, Any] = {"delimiter": "\t"} if kind == ".tsv" else {}

    def relation(**more: Any) -> Any:
        if kind in PARQUET:
            return connection.read_parquet(literal)
        return connection.read_json(literal) if kind in JSON else connection.read_csv(literal, **options, **more)

    try:
        yield relation
    except duckdb.Error as error:
        raise DataError(
            f"{path!r} cannot be read as {kind[1:]}: {_sentence(error)}. "
            "Check the file, or give it the suffix of what it holds."
        ) from None
    finally:
        connection.close()


def run_sql(query: str, tables: Mapping[str, Any]) -> Any:
    """The pyarrow table that a SQL query gives; files may be named in it, and `tables` by their names.

    Raises:
        QueryError: the query does not parse, is not one SELECT, or does not run.
    """
    import duckdb

    connection = _connect(_OFFLINE)
    try:
        for name, table in tables.items():
            connection.register(name, table)
        statements = connection.extract_statements(query)
        # Asking reads: COPY, CREATE and their like are refused rather than run for their row count.
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise QueryError(f"the SQL {query!r} is not one SELECT. Write one that gives the rows to ask.")
        return connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise QueryError(f"the SQL query does not run: {_sentence(error)}. Correct it and ask again.") from None
    finally:
        connection.close()


def matching_rows(table: Any, predicate: str, there: np.ndarray | None = None) -> np.ndarray:
    """Which rows of a pyarrow table satisfy a SQL predicate, as booleans `(rows,)`.

    The predicate may refer to the whole table as `data`: `income > (select avg(income) from data)`. Null is
    not true, as in SQL.

    Args:
        table: the table; it is read where it lies.
        predicate: one SQL expression.
        there: `(rows,)` booleans; the other rows are not in the table. None: all are.

    Raises:
        QueryError: the predicate does not parse, names an unknown column, or reaches outside the table.
    """
    import duckdb

    numbered = table.append_column(_ROW, arrow_columns.row_numbers(table.num_rows))
    if there is not None:
        import pyarrow as pa

        numbered = numbered.append_column(_THERE, pa.array(there))
    connection = _connect(_CLOSED)
    try:
        relation = connection.from_arrow(numbered)
        if there is not None:
            relation = relation.filter(_THERE).project(f"* exclude ({_THERE})")
        relation.create_view("data")
        # `filter` parses one expression, so a predicate cannot end the statement and begin another.
        kept = relation.filter(predicate).select(_ROW).to_arrow_table()
    except duckdb.Error as error:
        raise QueryError(
            f"the predicate {predicate!r} does not run: {_sentence(error)}. "
            f"It is SQL over the columns {', '.join(table.column_names)}, such as city = 'Oslo'."
        ) from None
    finally:
        connection.close()
    mask = np.zeros(table.num_rows, bool)
    for chunk in kept.column(0).chunks:
        mask[arrow_columns.units(chunk)] = True
    return mask
