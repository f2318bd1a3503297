"""Arrow columns as NumPy arrays, read from their buffers.

Not by `to_numpy`, which imports pandas where that is installed, nor by `pyarrow.compute`: together they
take longer than a small table takes to answer.
"""

import datetime as dt
from typing import Any

import numpy as np

__all__ = [
    "decoded_chunks",
    "float_dtype",
    "from_units",
    "matrix",
    "nulls",
    "with_microseconds",
    "row_numbers",
    "to_units",
    "units",
    "units_per_day",
]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = dt.datetime(1970, 1, 1)
_DAY = 86_400


def decoded_chunks(column: Any) -> list[Any]:
    """The arrays of a chunked column, dictionaries decoded."""
    import pyarrow as pa

    return [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in column.chunks]


def nulls(chunk: Any) -> np.ndarray:
    """Which cells of an array are null, as booleans."""
    valid = chunk.buffers()[0]
    if valid is None or not chunk.null_count:
        return np.full(len(chunk), chunk.null_count == len(chunk) > 0)
    return ~_bits(valid, chunk)


def units(chunk: Any) -> np.ndarray:
    """The numbers of a fixed-width array as they are stored: timestamps in their unit, booleans as 0 and 1.

    What stands at a null is undefined.
    """
    import pyarrow as pa

    type_, data = chunk.type, chunk.buffers()[1]
    if data is None:
        return np.zeros(len(chunk))
    if pa.types.is_boolean(type_):
        return _bits(data, chunk).astype(np.int8)
    if pa.types.is_decimal(type_):
        return units(chunk.cast(pa.float64(), safe=False))
    letter = "f" if pa.types.is_floating(type_) else "u" if pa.types.is_unsigned_integer(type_) else "i"
    dtype = np.dtype(f"{letter}{type_.bit_width // 8}")
    return np.frombuffer(data, dtype)[chunk.offset : chunk.offset + len(chunk)]


def float_dtype(type_: Any) -> np.dtype[Any] | None:
    """The type of the numbers in a column of vectors of one length that are float32 or float64; else None."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(type_):
        return None
    if pa.types.is_float32(type_.value_type):
        return np.dtype(np.float32)
    return np.dtype(np.float64) if pa.types.is_float64(type_.value_type) else None


def matrix(chunk: Any) -> np.ndarray | None:
    """Vectors of one length as they lie in memory; None where a number is null."""
    width = chunk.type.list_size
    values = chunk.values.slice(chunk.offset * width, len(chunk) * width)
    return None if values.null_count else units(values).reshape(len(chunk), width)


def row_numbers(count: int) -> Any:
    """The Arrow array 0, 1, 2 …"""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(count))])


def with_microseconds(table: Any) -> Any:
    """The table with nanosecond timestamps cut to microseconds, the finest that Python's datetime holds."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            cut = table.column(index).cast(pa.timestamp("us", field.type.tz), safe=False)
            table = table.set_column(index, field.name, cut)
    return table


def _bits(buffer: Any, chunk: Any) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].astype(bool)


def units_per_day(type_: Any) -> float:
    """How many units of a moment's type make a day."""
    import pyarrow as pa

    if pa.types.is_date32(type_):
        return 1.0
    return float(_DAY * _PER_SECOND["ms" if pa.types.is_date64(type_) else type_.unit])


def to_units(value: Any, type_: Any) -> int:
    """A date, time, timestamp or duration, or its ISO text, in the units of a type.

    Raises:
        ValueError: the text is none of these.
        TypeError: the value is another kind of moment than the type.
    """
    import pyarrow as pa

    if pa.types.is_duration(type_):
        length = dt.timedelta(days=float(value)) if isinstance(value, str | int | float) else value
        return _whole(length, type_.unit)
    if pa.types.is_time(type_):
        clock = dt.time.fromisoformat(value.strip()) if isinstance(value, str) else value
        if isinstance(clock, dt.datetime):
            clock = clock.time()
        return _whole(dt.datetime.combine(_EPOCH, clock) - _EPOCH, type_.unit)
    moment = dt.datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
    if not isinstance(moment, dt.date):
        raise TypeError(f"{value!r} is no date")
    if not isinstance(moment, dt.datetime):
        moment = dt.datetime.combine(moment, dt.time())
    if moment.tzinfo is not None:
        moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
    if pa.types.is_date32(type_):
        return (moment - _EPOCH).days
    return _whole(moment - _EPOCH, "ms" if pa.types.is_date64(type_) else type_.unit)


def from_units(number: int, type_: Any) -> Any:
    """The date, time, timestamp or duration that a number of units is."""
    import pyarrow as pa

    if pa.types.is_date32(type_):
        return dt.date(1970, 1, 1) + dt.timedelta(days=number)
    if pa.types.is_date64(type_):
        return (_EPOCH + dt.timedelta(milliseconds=number)).date()
    length = dt.timedelta(microseconds=number * 10**6 // _PER_SECOND[type_.unit])
    if pa.types.is_duration(type_):
        return length
    if pa.types.is_time(type_):
        return (_EPOCH + length).time()
    moment = _EPOCH + length
    if type_.tz is None:
        return moment
    return moment.replace(tzinfo=dt.UTC).astimezone(_zone(type_.tz))


def _zone(name: str) -> dt.tzinfo:
    import zoneinfo

    if name[:1] in "+-":
        hours, minutes = int(name[:3]), int(name[0] + name[4:6])
        return dt.timezone(dt.timedelta(hours=hours, minutes=minutes))
    return dt.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def _whole(length: dt.timedelta, unit: str) -> int:
    return length // dt.timedelta(microseconds=1) * _PER_SECOND[unit] // 10**6
