"""Conversion of Arrow columns to NumPy arrays and Python objects, which are read directly from the Arrow buffers.

The `to_numpy` method of pyarrow imports pandas if it is installed, and `pyarrow.compute` is slow to import. Both
imports together take longer than a query over a small table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from qkv.core.cell_kinds import cell_kind
from qkv.core.formatting import format_key
from qkv.core.nanoseconds import nanoseconds_below, plain_time, with_nanoseconds
from qkv.core.times import in_zone, read_time
from qkv.core.typing import Bool, Int, Num


def to_python(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return the cells of an Arrow array as Python objects, with all nanoseconds, also within lists and records.

    Dates and durations that Python cannot represent are texts.
    """
    type_, types = column.type, pa.types
    if types.is_dictionary(type_) and types.is_temporal(type_.value_type):
        return to_python(column.cast(type_.value_type))
    if types.is_struct(type_):
        flat = column.flatten() if column.type.num_fields else []
        records = zip(*map(to_python, flat), strict=True) if flat else [()] * len(column)
        names = [field.name for field in type_]
        given = zip(records, column.is_valid().to_pylist(), strict=True)
        return [dict(zip(names, record, strict=True)) if valid else None for record, valid in given]
    lists = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    if lists and (types.is_temporal(type_.value_type) or types.is_nested(type_.value_type)):
        return [to_python(cell.values) if cell.is_valid else None for cell in column]
    if not types.is_temporal(type_) or types.is_interval(type_):
        return list(column.to_pylist())
    if getattr(type_, "unit", "") != "ns":
        return _representable(column)
    units = column.cast(pa.int64()).to_pylist()
    whole = pa.array([None if unit is None else unit // 1000 for unit in units], pa.int64())
    coarse = {"time": pa.time64("us"), "duration": pa.duration("us")}.get(cell_kind(type_))
    cells = _representable(whole.cast(coarse or pa.timestamp("us", type_.tz)))
    pairs = zip(cells, units, strict=True)
    return [cell if unit is None else with_nanoseconds(cell, unit % 1000) for cell, unit in pairs]


def _representable(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return dates, times or durations as Python objects, and those that Python cannot represent as texts."""
    type_, kind = column.type, cell_kind(column.type)
    if kind != "time":  # pyarrow takes times modulo a day
        with contextlib.suppress(OverflowError, ValueError):
            return list(column.to_pylist())
    first, last = temporal_range(type_)
    unit = "D" if pa.types.is_date32(type_) else getattr(type_, "unit", "ms")
    text: Any = np.datetime64 if kind.startswith("date") else np.timedelta64
    units = column.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).to_pylist()
    known = pa.array([None if each is None or not first <= each <= last else each for each in units], type_)
    pairs = zip(known.to_pylist(), units, strict=True)
    return [str(text(each, unit)) if cell is None and each is not None else cell for cell, each in pairs]


def to_records(table: pa.Table) -> list[dict[str, object]]:
    """Return the rows of a table as dicts of Python objects."""
    columns = [to_python(column) for column in table.columns]
    return [dict(zip(table.column_names, cells, strict=True)) for cells in zip(*columns, strict=True)]


class RecordRows(Protocol):
    """A table that reads its rows itself, such as that of a store."""

    def records(self, rows: Sequence[int]) -> list[dict[str, object]]:
        """Return some rows in any order as dicts of Python objects."""


def records_of(table: pa.Table | RecordRows, rows: Sequence[int]) -> list[dict[str, object]]:
    """Return some rows of a pyarrow table, or of a table that reads its rows itself, as dicts of Python objects."""
    if not isinstance(table, pa.Table):
        return table.records(rows)
    # Slices, not `take`, which imports pyarrow.compute, at a tenth of the time of a small query.
    return [to_records(table.slice(row, 1))[0] for row in rows]


Temporal = dt.date | dt.datetime | dt.time | dt.timedelta

DATE_FORMAT = b"qkv date format"
"""The name in the metadata of an Arrow field of the format of the dates or times in a text file."""

NUMBER_FORMAT = b"qkv number format"
"""The name of the format of the numbers in a text file, as `NumberFormat.dump` writes it."""

READING = b"qkv reading"
"""The name of the end of a sentence that says how a column of a text file is read."""

ASSUMED = b"qkv assumed format"
"""The name of a format that no cell of a text file decided."""

BOOLEAN_SPELLING = b"qkv boolean spelling"
"""The name of the spelling of true in a column of booleans of a text file."""

HALF = b"qkv float16"
"""The name of a mark of float32 cells that are float16 in the source, to which queries are rounded."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = dt.datetime(1970, 1, 1)
_SECONDS_PER_DAY = 86_400
_FIRST_YEAR, _LAST_YEAR = (int((dt.datetime(year, 1, 1) - _EPOCH).total_seconds()) for year in (1, 9999))
_LONGEST = dt.timedelta.max.days * _SECONDS_PER_DAY
_FRACTION = re.compile(r":\d\d[.,]\d{6}(\d+)")


def decoded_chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return the chunks of an Arrow column, with dictionary-encoded chunks decoded."""
    return [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in column.chunks]


def null_mask(chunk: pa.Array) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for the null cells of an Arrow array."""
    valid = chunk.buffers()[0]
    if valid is None or not chunk.null_count:
        return np.full(len(chunk), chunk.null_count == len(chunk) > 0)
    return ~_bits(valid, chunk)


def stored_numbers(chunk: pa.Array) -> Num[np.ndarray, " rows"]:
    """Return the cells of a fixed-width Arrow array as numbers: timestamps as stored integers, booleans as 0 and 1.

    The number of a null cell is undefined.
    """
    type_, data = chunk.type, chunk.buffers()[1]
    if data is None:
        return np.zeros(len(chunk))
    if pa.types.is_boolean(type_):
        return _bits(data, chunk).astype(np.int8)
    if pa.types.is_decimal(type_):
        return stored_numbers(chunk.cast(pa.float64(), safe=False))
    letter = "f" if pa.types.is_floating(type_) else "u" if pa.types.is_unsigned_integer(type_) else "i"
    dtype = np.dtype(f"{letter}{type_.bit_width // 8}")
    return np.frombuffer(data, dtype)[chunk.offset : chunk.offset + len(chunk)]


def float_dtype(type_: pa.DataType) -> np.dtype[np.floating] | None:
    """Return the NumPy dtype of the elements of fixed-size lists of floats, or None for any other Arrow type.

    Floats are float32 or float64.
    """
    if not pa.types.is_fixed_size_list(type_):
        return None
    if pa.types.is_float32(type_.value_type):
        return np.dtype(np.float32)
    return np.dtype(np.float64) if pa.types.is_float64(type_.value_type) else None


def vector_matrix(chunk: pa.Array) -> Num[np.ndarray, "rows width"] | None:
    """Return an Arrow array of fixed-size lists as a matrix, or None if an element is null. Floats are not copied."""
    width = chunk.type.list_size
    values = chunk.values.slice(chunk.offset * width, len(chunk) * width)
    return None if values.null_count else stored_numbers(values).reshape(len(chunk), width)


def row_numbers(count: int) -> pa.Array:
    """Return an Arrow array of the integers from 0 to `count` − 1."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(count, dtype=np.int64))])


def with_microseconds(table: pa.Table) -> pa.Table:
    """Return a table with timestamps in microseconds, the unit of Python's datetime, for those in nanoseconds.

    A column with a digit below the microsecond is unchanged.
    """
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            with contextlib.suppress(pa.ArrowInvalid):
                cut = table.column(index).cast(pa.timestamp("us", field.type.tz))
                table = table.set_column(index, field.with_type(cut.type), cut)
    return table


def with_uuid_texts(table: pa.Table) -> pa.Table:
    """Return a table with texts in place of UUIDs of the Arrow extension type."""
    for index, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", "") == "arrow.uuid":
            texts = [None if cell is None else str(cell) for cell in table.column(index).to_pylist()]
            table = table.set_column(index, field.with_type(pa.string()), pa.chunked_array([texts], pa.string()))
    return table


def with_category_texts(table: pa.Table) -> pa.Table:
    """Return a table with texts as the values of dictionaries, so that numbers and times in them are not averaged."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and cell_kind(field.type) not in ("text", "boolean", "null", ""):
            type_ = pa.dictionary(field.type.index_type, pa.string())
            chunks = []
            for chunk in table.column(index).chunks:
                texts = [None if cell is None else category_text(cell) for cell in to_python(chunk.dictionary)]
                chunks.append(pa.DictionaryArray.from_arrays(chunk.indices, pa.array(texts, pa.string())))
            said = f"holds categories, whose {cell_kind(field.type)}s are texts and not averaged"
            table = table.set_column(index, field.with_type(type_), pa.chunked_array(chunks, type_))
            table = with_metadata(table, field.name, READING, said)
    return table


def category_text(cell: object) -> str:
    """Return a category as a text: a timestamp at midnight as its day, texts and others as `format_key` does.

    Example:
        >>> category_text(dt.datetime(2024, 5, 1)), category_text(2.0)
        ('2024-05-01', '2')
    """
    text = format_key(cell)
    return text if isinstance(cell, str) else text.removesuffix(" 00:00:00")


def metadata_text(schema: pa.Schema, name: str, key: bytes) -> str:
    """Return a text in the metadata of the field `name`, or "" if there is no such field or text."""
    metadata: Mapping[bytes, bytes] = (schema.field(name).metadata or {}) if name in schema.names else {}
    return metadata.get(key, b"").decode()


def with_metadata(table: pa.Table, name: str, key: bytes, text: str) -> pa.Table:
    """Return a table with a text in the metadata of the column `name`."""
    field = table.schema.field(name)
    marked = field.with_metadata({**(field.metadata or {}), key: text.encode()})
    return table.set_column(table.column_names.index(name), marked, table.column(name))


def temporal_range(type_: pa.DataType) -> tuple[int, int]:
    """Return the first and the last integer of an Arrow type that Python represents: dates of the years 1 to 9999.

    Example:
        >>> import pyarrow as pa
        >>> temporal_range(pa.date32()), temporal_range(pa.time32("s"))
        ((-719162, 2932896), (0, 86399))
    """
    if pa.types.is_date32(type_):
        return _FIRST_YEAR // _SECONDS_PER_DAY, _LAST_YEAR // _SECONDS_PER_DAY + 364
    per_second = _PER_SECOND["ms" if pa.types.is_date64(type_) else type_.unit]
    if pa.types.is_time(type_):
        return 0, _SECONDS_PER_DAY * per_second - 1
    if pa.types.is_duration(type_):
        return max(-_LONGEST * per_second, -(2**63) + 1), min(_LONGEST * per_second, 2**63 - 1)
    # In its time zone, a timestamp may be a day earlier or later.
    margin = 0 if getattr(type_, "tz", None) in (None, "UTC") else _SECONDS_PER_DAY
    first = (_FIRST_YEAR + margin) * per_second
    last = (_LAST_YEAR + 365 * _SECONDS_PER_DAY - margin) * per_second - 1
    return max(first, -(2**63) + 1), min(last, 2**63 - 1)


def beyond_python(units: Int[np.ndarray, " rows"], type_: pa.DataType) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for the integers outside of `temporal_range`."""
    first, last = temporal_range(type_)
    return np.asarray((units < first) | (units > last))


def units_per_day(type_: pa.DataType) -> float:
    """Return the length of one day in the units of an Arrow date, time, timestamp or duration type."""
    if pa.types.is_date32(type_):
        return 1.0
    return float(_SECONDS_PER_DAY * _PER_SECOND["ms" if pa.types.is_date64(type_) else type_.unit])


def to_units(value: Any, type_: pa.DataType, date_format: str = "", exact: bool = False) -> int:
    """Convert a date, time, timestamp or duration, or a text of one, to an integer in the units of an Arrow type.

    A text is in `date_format` or in ISO format, except that durations are numbers of days. A timestamp without a
    time zone is in the time zone of the Arrow type.

    Args:
        value: the date, time, timestamp or duration.
        type_: an Arrow type of dates, times, timestamps or durations.
        date_format: the format of the column, as in `times.read_time`; "" for none.
        exact: whether a value that is not a whole number of units raises an error instead of being rounded down.
            The date of a timestamp is a whole number of days.

    Raises:
        ValueError: The text is not a date, time or duration.
        TypeError: The value does not fit the Arrow type, or has a time zone and the Arrow type has none.
        ArithmeticError: The value is not a whole number of units, and `exact` is True.
    """
    if pa.types.is_duration(type_):
        if isinstance(value, str | int | float):
            return _units_of_days(value, type_.unit, exact)
        if not isinstance(value, dt.timedelta):
            raise TypeError(f"value must be a duration, got {value!r}. Pass a timedelta or a number of days.")
        return _whole_units(_nanoseconds(value), type_.unit, exact)
    if pa.types.is_time(type_):
        clock = dt.time.fromisoformat(value.strip()) if isinstance(value, str) else value
        below, rest = _digits_below(value) if isinstance(value, str) else (nanoseconds_below(value), False)
        if exact and rest:
            raise ArithmeticError(value)
        if isinstance(clock, dt.datetime):
            clock = clock.time()
        return _whole_units(_nanoseconds(dt.datetime.combine(_EPOCH, clock) - _EPOCH) + below, type_.unit, exact)
    if isinstance(value, int) and date_format:
        value = str(value)  # 20240131
    timestamp = read_time(value, date_format) if isinstance(value, str) else value
    below = nanoseconds_below(timestamp)
    if isinstance(value, str) and not date_format:
        below, rest = _digits_below(value)
        if exact and rest:
            raise ArithmeticError(value)
    if not isinstance(timestamp, dt.date):
        raise TypeError(f"value must be a date or timestamp, got {value!r}. Pass a datetime or an ISO text.")
    if not isinstance(timestamp, dt.datetime):
        timestamp = dt.datetime.combine(timestamp, dt.time())
    zone = type_.tz if pa.types.is_timestamp(type_) else None
    if timestamp.tzinfo is None and zone is not None:
        timestamp = in_zone(timestamp, _time_zone(zone))
    if timestamp.tzinfo is not None:
        timestamp = timestamp.astimezone(dt.UTC).replace(tzinfo=None)
    if pa.types.is_date32(type_):
        return (timestamp - _EPOCH).days
    if below and exact and (pa.types.is_date64(type_) or type_.unit != "ns"):
        raise ArithmeticError(value)
    if below:
        timestamp = plain_time(timestamp)
    units = _whole_units(_nanoseconds(timestamp - _EPOCH), "ms" if pa.types.is_date64(type_) else type_.unit, exact)
    return units + below if pa.types.is_timestamp(type_) and type_.unit == "ns" else units


def _digits_below(text: str) -> tuple[int, bool]:
    """Return the nanoseconds in the digits of a text after the sixth of a second, and whether more digits follow."""
    found = _FRACTION.search(text)
    digits = found[1] if found else ""
    return int(digits[:3].ljust(3, "0") or 0), bool(digits[3:].strip("0"))


def has_time_zone(value: object, date_format: str = "") -> bool:
    """Return whether a timestamp, or a text of one in `date_format` or in ISO format, has a time zone."""
    if isinstance(value, str):
        try:
            value = read_time(value, date_format)
        except ValueError:
            return False
    return isinstance(value, dt.datetime) and value.tzinfo is not None


def from_units(number: int, type_: pa.DataType) -> Temporal:
    """Convert an integer in the units of an Arrow type to a Python date, time, datetime or timedelta.

    Raises:
        OverflowError: It is outside of `temporal_range`.
    """
    # An average has the digits of float64, and Python's types have microseconds.
    if getattr(type_, "unit", "") == "ns":
        coarse = {"time": pa.time64("us"), "duration": pa.duration("us")}.get(cell_kind(type_))
        number, type_ = (number + 500) // 1000, coarse or pa.timestamp("us", type_.tz)
    first, last = temporal_range(type_)
    if not first <= number <= last:
        raise OverflowError(number)
    stored = pa.int32() if type_.bit_width == 32 else pa.int64()
    converted: Temporal = pa.array([number], stored).view(type_)[0].as_py()
    return converted


def _bits(buffer: pa.Buffer, chunk: pa.Array) -> Bool[np.ndarray, " rows"]:
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].astype(bool)


def time_zone(type_: pa.DataType) -> dt.tzinfo | None:
    """Return the time zone of an Arrow type, or None if it has none."""
    name = getattr(type_, "tz", None)
    return _time_zone(name) if name else None


@cache
def _time_zone(name: str) -> dt.tzinfo:
    """Return the time zone of an Arrow type, which is the name of a zone or an offset such as "+05:30"."""
    if name[:1] in "+-":
        return dt.datetime.fromisoformat(f"1970-01-01T00:00{name}").tzinfo or dt.UTC
    return zoneinfo.ZoneInfo(name)


def _units_of_days(value: str | float, unit: str, exact: bool) -> int:
    """Return a number of days, or a text of one, in a unit, from which it may differ by the rounding of a float64."""
    if not np.isfinite(float(value)):
        raise ValueError(f"could not convert {value!r} to a number of days")
    number = Fraction(value.strip() if isinstance(value, str) else value) * (_SECONDS_PER_DAY * _PER_SECOND[unit])
    nearest = round(number)
    if abs(number - nearest) <= abs(number) / 2**52:
        return nearest
    if exact:
        raise ArithmeticError(value)
    return math.floor(number)


def _nanoseconds(length: dt.timedelta) -> int:
    """Return a duration in nanoseconds; durations of pandas have digits below the microsecond."""
    seconds = length.days * _SECONDS_PER_DAY + length.seconds
    return (seconds * 10**6 + length.microseconds) * 1000 + nanoseconds_below(length)


def _whole_units(nanoseconds: int, unit: str, exact: bool) -> int:
    units, rest = divmod(nanoseconds * _PER_SECOND[unit], 10**9)
    if exact and rest:
        raise ArithmeticError(nanoseconds)
    return units
