"""Relations of queries: files, data frames and SQL results whose rows are queries, read part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from qkv.core.printable import first_line
from qkv.database.io.paths import is_paths
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.sources import describe, is_delimited, read, read_parts, suggest_name
from qkv.encoders.columns import split_names
from qkv.errors import DataError, QkvError, QueryError
from qkv.store.base import cast_table


@dataclass(frozen=True, eq=False)
class QueryRelation:
    """A relation whose rows are queries.

    Attributes:
        name: its name in messages.
        schema: the schema of its rows.
        tables: its rows, part by part; they can be read once.
        columns: the columns that hold the cells of a query, one per key column, or one column of texts with commas.
        reasons: the column that says why a row cannot be read, and is null for other rows; "" if there is none.
    """

    name: str
    schema: pa.Schema
    tables: Iterator[pa.Table]
    columns: tuple[str, ...]
    reasons: str = ""


def open_relation(source: object, keys: Sequence[str], on: Mapping[str, str] | str | None = None) -> QueryRelation:
    """Open a relation of queries without reading all its rows.

    Args:
        source: a source of `Database.open` except a store, or an object with an Arrow stream, such as a DuckDB
            relation or a record batch reader.
        keys: the names of the key columns.
        on: the names of columns of queries by key column, as a mapping or a text such as `"name=guest,city=town"`;
            None: those of the key columns. The only column of a relation may have any name if there is one key.

    Raises:
        DataError: The source cannot be read, or is no table.
        QueryError: A column does not exist, or `on` names a column that is no key.

    Example:
        >>> relation = open_relation({"guest": ["Li", "Hu"], "age": [30, 40]}, ["name"], on="name=guest")
        >>> relation.columns, [table.num_rows for table in relation.tables]
        (('guest',), [2])
    """
    name, names = describe(source), _names(keys, on)
    if is_paths(source):
        # A cell that is no number is answered by the reason, and dates are read in the format of the key.
        parts = read_parts(source, tuple(names.values()), ReadOptions(as_written=True))
        first = next(parts)
        schema, tables = first.schema, _parts_of(first, parts, name)
    elif not isinstance(source, pa.Table) and hasattr(source, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(source)
        except Exception as error:  # each library raises its own kinds
            raise _unreadable(name, error) from None
        schema, tables = reader.schema, _batches_of(reader, name)
    else:
        table = read(source)
        schema, tables = table.schema, iter([table])
    # The first line of a delimited file with one column may be a query or the name of the column.
    if on is None and len(keys) == 1 and len(schema.names) == 1 and not (is_paths(source) and is_delimited(source)):
        names = {keys[0]: schema.names[0]}
    _check_names(schema, names, name)
    return QueryRelation(name, schema, tables, tuple(names.values()))


def _names(keys: Sequence[str], on: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return the name of the column of queries for each key column."""
    if isinstance(on, str):
        pairs = [
            (key.strip(), (column or key).strip()) for key, _, column in (p.partition("=") for p in split_names(on))
        ]
        if len(dict(pairs)) < len(pairs):
            raise QueryError(f"on must name each key column once, got {on!r}. Write one KEY=COLUMN per key column.")
        on = dict(pairs)
    given = dict(on or {})
    for key in given:
        if key not in keys:
            raise QueryError(
                f"on must name the key columns {', '.join(keys)}, got {key!r}. "
                "Write KEY=COLUMN for a column of the queries with another name."
            )
    return {key: given.get(key, key) for key in keys}


def _check_names(schema: pa.Schema, names: Mapping[str, str], source: str) -> None:
    """Raise a `QueryError` if a column of queries does not exist, or if there are several of its name."""
    for key, column in names.items():
        count = schema.names.count(column)
        if not count:
            listed = ", ".join(schema.names[:20]) + (", …" if len(schema.names) > 20 else "")
            raise QueryError(
                f"the queries must have the column {column!r}, got the columns {listed} in {source}."
                f"{suggest_name(column, schema.names, '')} Name the column of the queries: on='{key}=COLUMN' in "
                f"Python, --on '{key}=COLUMN' on the command line."
            )
        if count > 1:
            raise QueryError(
                f"the queries must have one column {column!r}, got {count} in {source}. Rename the others."
            )


def _parts_of(first: pa.Table, rest: Iterator[pa.Table], name: str) -> Iterator[pa.Table]:
    """Yield the tables of files, with the columns and types of the first table."""
    yield first
    for table in rest:
        yield table if table.schema == first.schema else _cast(table, first.schema, name)


def _batches_of(reader: pa.RecordBatchReader, name: str) -> Iterator[pa.Table]:
    """Yield the batches of a stream as tables, and raise the errors of its producer as `DataError`."""
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except QkvError:
            raise
        except Exception as error:  # each library raises its own kinds
            raise _unreadable(name, error) from None
        yield pa.Table.from_batches([batch])


def _cast(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return the columns of a table in the types of the first file."""
    try:
        return cast_table(table, schema)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"the files of queries must have the same columns with the same types, got others in {name}: "
            f"{first_line(error)}. Convert the columns, or answer the files one by one."
        ) from None


def _unreadable(name: str, error: Exception) -> DataError:
    return DataError(f"the queries in {name} cannot be read: {first_line(error)}. Check the source.")
