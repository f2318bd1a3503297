"""Functions of DuckDB connections that answer one query per row by a database."""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from qkv.core.printable import first_line
from qkv.database.execute.ask_options import AskOptions
from qkv.database.relations.answer_relation import AnswerRelation, samples
from qkv.database.relations.query_relation import QueryRelation
from qkv.encoders.columns import Column
from qkv.encoders.exact_cells import MOST_DIGITS
from qkv.errors import OptionError, QueryError

if TYPE_CHECKING:
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

    from qkv.database.protocol import Queryable


_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_EXACT_FLOATS = 2**53
"""Integers up to this size are float64 without rounding."""
_EXACT_DIGITS = 15
"""Number of digits up to which different decimals are different float64 numbers."""


def create_function(
    database: Queryable, connection: duckdb.DuckDBPyConnection, name: str, options: AskOptions, id: str | None
) -> None:
    """Register a function that answers queries; see `Queryable.create_function`.

    Raises:
        OptionError: The normalizer samples, or the name is taken.
    """
    import duckdb

    if samples(database, options.normalizer):
        raise OptionError(
            f"normalizer must not sample in a function of DuckDB, got {options.normalizer}. Use ask_batches."
        )
    schema = pa.schema([(key, _parameter(database.column(key), database.largest(key))) for key in database.key])
    relation = AnswerRelation(database, QueryRelation(name, schema, iter(()), database.key), options, id)
    fields = list(relation.answer_schema)
    lock = threading.Lock()

    def answer(*columns: pa.ChunkedArray) -> pa.Array:
        table = pa.table(list(map(_with_durations, columns)), schema.names)
        # DuckDB calls the function from several threads.
        with lock:
            return pa.StructArray.from_arrays(relation.answer(table), fields=fields)

    # DuckDB counts the parameters of the signature.
    parameters = [inspect.Parameter(f"key_{index}", _POSITIONAL) for index in range(len(schema))]
    answer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    types = _duckdb_types(schema)
    (struct,) = _duckdb_types(pa.schema([("", pa.struct(fields))]))
    try:
        connection.create_function(name, answer, types, struct, type="arrow", null_handling="special")
    except (duckdb.Error, ValueError) as error:
        raise OptionError(
            f"name must be that of a new function, got {name!r}, but DuckDB refused it: {first_line(error)}. Choose "
            "another name."
        ) from None


def _parameter(column: Column, largest: float) -> pa.DataType:
    """Return the type of the parameter for a key column whose largest magnitude is given.

    Numbers are float64, to which DuckDB converts every number, unless that would round the keys. DuckDB rounds a query
    to the type of the parameter, which therefore has more digits than the keys.
    """
    type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.traits.text:
        return pa.string()
    if column.kind == "vector":
        return pa.list_(pa.float64())
    if pa.types.is_duration(type_) and type_.unit == "ns" and ((column.cells + column.origin) % 1000).any():
        raise OptionError(
            f"the key {column.name!r} must have whole microseconds in a function of DuckDB, whose intervals have no "
            "nanoseconds, got others. Use ask_batches."
        )
    if column.kind == "timestamp" and (pa.types.is_date(type_) or type_ in (pa.timestamp("s"), pa.timestamp("ms"))):
        return pa.timestamp("us")
    if pa.types.is_decimal(type_) and type_.precision > _EXACT_DIGITS:
        return pa.decimal128(MOST_DIGITS, type_.scale + MOST_DIGITS - type_.precision)
    if column.kind not in ("number", "cyclic"):
        return type_
    return type_ if pa.types.is_integer(type_) and largest >= _EXACT_FLOATS else pa.float64()


def _with_durations(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with durations in place of intervals, which DuckDB passes for them."""
    if not pa.types.is_interval(column.type):
        return column
    cells = column.to_pylist()
    if any(cell is not None and cell.months for cell in cells):
        raise QueryError("durations must have no months, which differ in length, got some. Pass days or shorter units.")
    lengths = [None if cell is None else 86_400_000_000 * cell.days + cell.nanoseconds // 1000 for cell in cells]
    return pa.chunked_array([pa.array(lengths, pa.int64()).cast(pa.duration("us"))])


def _duckdb_types(schema: pa.Schema) -> list[DuckDBPyType]:
    """Return the DuckDB types of the columns of an Arrow schema."""
    import duckdb

    with duckdb.connect() as connection:
        types: list[DuckDBPyType] = connection.from_arrow(schema.empty_table()).types
        return types
