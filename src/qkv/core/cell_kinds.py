"""What the cells of an Arrow type mean, without their size and unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["cell_kind"]


def cell_kind(type_: pa.DataType) -> str:
    """Return what the cells of an Arrow type mean; "" for a type that has no name here.

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
