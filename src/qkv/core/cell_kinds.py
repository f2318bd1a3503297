"""What cells mean, without their size and unit: of an Arrow type, and of Python objects."""

from __future__ import annotations

import datetime as dt
import numbers
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.nanoseconds import with_nanoseconds

if TYPE_CHECKING:
    import pyarrow as pa


_OBJECTS: dict[str, tuple[type, ...]] = {
    "text": (str, uuid.UUID),
    "bytes": (bytes, bytearray, memoryview),
    "boolean": (bool, np.bool_),
    "date": (dt.date, np.datetime64),
    "time": (dt.time,),
    "duration": (dt.timedelta, np.timedelta64),
    "number": (numbers.Number,),  # NumPy's durations are among them
}


def object_kind(type_: type) -> str:
    """Return the kind of cell that Python objects of a type are; "" for other types, "missing cell" for NaT.

    Example:
        >>> object_kind(int), object_kind(dt.datetime), object_kind(list)
        ('number', 'date', '')
    """
    if type_.__name__ == "NaTType":
        return "missing cell"
    return next((kind for kind, types in _OBJECTS.items() if issubclass(type_, types)), "")


def cell_kind(type_: pa.DataType) -> str:
    """Return the kind of the cells of an Arrow type; "" for a type that has no name here.

    Example:
        >>> import pyarrow as pa
        >>> cell_kind(pa.int8()), cell_kind(pa.timestamp("us", "UTC")), cell_kind(pa.list_(pa.float64()))
        ('number', 'date with a time zone', 'list of number')
    """
    from pyarrow import types

    if types.is_dictionary(type_):
        return cell_kind(type_.value_type)
    if types.is_timestamp(type_):
        return "date" if type_.tz is None else "date with a time zone"
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return f"list of {cell_kind(type_.value_type)}"
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "text"
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    named = {types.is_boolean: "boolean", types.is_date: "date", types.is_time: "time", types.is_duration: "duration"}
    return next((name for test, name in named.items() if test(type_)), "null" if types.is_null(type_) else "")


def is_missing(cell: object) -> bool:
    """Return whether a cell is None, NaN, NaT or `pandas.NA`.

    Example:
        >>> [is_missing(cell) for cell in (None, float("nan"), np.datetime64("NaT"), 0.0, "")]
        [True, True, True, False, False]
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | Decimal | np.generic) and bool(cell != cell)


def plain_scalar(value: object) -> object:
    """Return a NumPy scalar or a duration of pandas as a Python object; times have all their digits.

    Dates and durations that Python cannot represent, such as months, are returned as they are.
    """
    value = value.to_timedelta64() if hasattr(value, "to_timedelta64") else value
    if not isinstance(value, np.generic):
        return value
    if not isinstance(value, np.datetime64 | np.timedelta64) or np.isnat(value):
        return value.item()
    fine = np.datetime_data(value.dtype)[0] == "ns"
    plain = (value.astype(f"{value.dtype.kind}8[us]") if fine else value).item()
    return value if isinstance(plain, int) else with_nanoseconds(plain, fine * int(value.astype(np.int64)) % 1000)
