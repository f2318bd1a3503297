"""Read the columns of pyarrow tables, data frames and dicts, and convert their cells to NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from qkv.core.typing import Bool, Shaped
from qkv.errors import DataError, KindError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Kind", "Table", "is_missing", "read_cells", "read_columns"]

Kind = Literal["number", "timestamp", "category", "text", "vector"]

Table: TypeAlias = Any
"""A pyarrow table, a pandas or polars data frame, or a dict of columns."""


def read_columns(source: Table, names: tuple[str, ...] | None) -> dict[str, pa.ChunkedArray]:
    """Return the columns of a table by name: those in `names`, in the same order, or all if `names` is None.

    Raises:
        KindError: the source is not a table, data frame or dict.
        DataError: a column is missing, or the columns differ in length.
    """
    import pyarrow as pa

    try:
        if isinstance(source, pa.Table):
            table = source
        elif type(source).__module__.split(".")[0] == "pandas":
            table = pa.Table.from_pandas(source, preserve_index=False)
        elif isinstance(source, dict) or hasattr(source, "__arrow_c_stream__"):
            table = pa.table(source)
        else:
            raise KindError(
                f"table must be a pyarrow table, a data frame or a dict of columns, got a {type(source).__name__}."
            )
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"table must have columns of equal length, of types that pyarrow supports, got a {type(source).__name__}, "
            f"but reading it with pyarrow failed: {str(error).splitlines()[0]}."
        ) from None
    absent = [name for name in names or () if name not in table.column_names]
    if absent:
        raise DataError(
            f"table must have a column {absent[0]!r}, got the columns {', '.join(table.column_names)}. Add or rename a "
            "column."
        )
    return {name: table.column(name) for name in (table.column_names if names is None else names)}


def read_cells(name: str, column: pa.ChunkedArray) -> tuple[Kind, Shaped[np.ndarray, " rows"]]:
    """Return the kind of a column, such as `"number"`, and its cells as a NumPy array.

    Numbers and timestamps have dtype float64, with NaN for missing cells. Texts, categories and vectors have dtype
    object, with None for missing cells.

    Raises:
        DataError: the column has a type that cannot be encoded.
    """
    import pyarrow as pa
    from pyarrow import types

    type_ = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        cells = np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()], float)
        return "number", np.where(np.isfinite(cells), cells, np.nan)
    if types.is_date(type_) or types.is_timestamp(type_):
        stamps = column.cast(pa.timestamp("us", getattr(type_, "tz", None)), safe=False).cast(pa.int64()).to_pylist()
        return "timestamp", np.array([np.nan if cell is None else cell / 86_400e6 for cell in stamps], float)
    values = column.to_pylist()
    cells = np.empty(len(values), object)
    if types.is_boolean(type_):
        cells[:] = [None if cell is None else str(cell) for cell in values]
        return "category", cells
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        cells[:] = [None if cell is None or None in cell else np.array(cell, float) for cell in values]
        return "vector", cells
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_) or types.is_null(type_):
        cells[:] = [cell or None for cell in values]
        return "category" if types.is_dictionary(column.type) else "text", cells
    raise DataError(
        f"column {name!r} must hold numbers, timestamps, booleans, texts, categories or vectors, got {type_}. "
        "Leave this column out of the argument columns."
    )


def is_missing(cells: Shaped[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for missing cells, which are None or NaN in an array of `read_cells`."""
    if cells.dtype == object:
        return np.array([cell is None for cell in cells], bool)
    return np.asarray(np.isnan(cells))
