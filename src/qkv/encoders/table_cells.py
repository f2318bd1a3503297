"""The columns of a table of any library, and their cells by kind, before vectors are made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.errors import DataError, KindError

__all__ = ["is_missing", "read_cells", "read_columns"]


def read_columns(source: Any, names: tuple[str, ...] | None) -> dict[str, Any]:
    """The columns of a table as pyarrow arrays, those wanted in their order."""
    import pyarrow as pa

    try:
        if isinstance(source, dict):
            table = pa.table(source)
        elif isinstance(source, pa.Table):
            table = source
        elif type(source).__module__.split(".")[0] == "pandas":
            table = pa.Table.from_pandas(source, preserve_index=False)
        elif hasattr(source, "__arrow_c_stream__"):
            table = pa.table(source)
        else:
            raise KindError(
                f"a {type(source).__name__} is no table. Give a pyarrow table, a frame or a dict of columns."
            )
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"the {type(source).__name__} makes no table: {str(error).splitlines()[0]}.") from None
    absent = [name for name in names or () if name not in table.column_names]
    if absent:
        raise DataError(f"there is no column {absent[0]!r}; the table has {', '.join(table.column_names)}.")
    return {name: table.column(name) for name in names or table.column_names}


def read_cells(name: str, column: Any) -> tuple[str, np.ndarray]:
    """The kind of a column, and its cells: float64 with NaN, or strings or lists with None."""
    import pyarrow as pa
    from pyarrow import types

    type_ = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        cells = np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()], float)
        return "number", np.where(np.isfinite(cells), cells, np.nan)
    if types.is_date(type_) or types.is_timestamp(type_):
        stamps = column.cast(pa.timestamp("us", getattr(type_, "tz", None)), safe=False).cast(pa.int64()).to_pylist()
        return "moment", np.array([np.nan if cell is None else cell / 86_400e6 for cell in stamps], float)
    found = column.to_pylist()
    cells = np.empty(len(found), object)
    if types.is_boolean(type_):
        cells[:] = [None if cell is None else str(cell) for cell in found]
        return "category", cells
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        cells[:] = [None if cell is None or None in cell else np.array(cell, float) for cell in found]
        return "vector", cells
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_) or types.is_null(type_):
        cells[:] = [cell or None for cell in found]
        return "category" if types.is_dictionary(column.type) else "text", cells
    raise DataError(f"column {name!r} holds {type_}, of which no vector is made. Leave it out by columns=….")


def is_missing(cells: np.ndarray) -> np.ndarray:
    """Which cells are missing."""
    if cells.dtype == object:
        return np.array([cell is None for cell in cells], bool)
    return np.asarray(np.isnan(cells))
