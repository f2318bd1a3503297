"""Conversion of tables to the schema of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["fit_table"]


def fit_table(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return a table with its columns in the order and of the types of a schema.

    Args:
        table: a pyarrow table.
        schema: a pyarrow schema.
        name: names the store in errors.

    Raises:
        DataError: A column is missing or unknown, or its cells do not fit the type.
    """
    import pyarrow as pa

    given, expected = set(table.column_names), set(schema.names)
    if given != expected:
        lacking = ", ".join(sorted(expected - given)) or "none"
        unknown = ", ".join(sorted(given - expected)) or "none"
        raise DataError(
            f"rows for {name!r} must have the columns {', '.join(schema.names)}; "
            f"missing: {lacking}; unknown: {unknown}. Pass each column of the store once."
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        first = str(error).strip().split("\n")[0].rstrip(". ")
        raise DataError(
            f"rows must fit the column types of {name!r}, but their conversion failed: {first}. "
            f"Convert the columns to {', '.join(f'{f.name} {f.type}' for f in schema)}."
        ) from None
