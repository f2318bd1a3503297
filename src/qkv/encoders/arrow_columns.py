"""Conversion of Arrow columns to NumPy arrays, which are read directly from the Arrow buffers.

The `to_numpy` method of pyarrow imports pandas if it is installed, and `pyarrow.compute` is slow to import. Both
imports together take longer than a query over a small table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from qkv.core.times import read_time
from qkv.core.typing import Bool, Num

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = [
    "ASSUMED",
    "BOOLEAN_SPELLING",
    "DATE_FORMAT",
    "decoded_chunks",
    "float_dtype",
    "from_units",
    "has_time_zone",
    "is_missing",
    "metadata_text",
    "NanosecondDatetime",
    "null_mask",
    "NUMBER_FORMAT",
    "plain_scalar",
    "READING",
    "records_of",
    "row_numbers",
    "stored_numbers",
    "Temporal",
    "time_zone",
    "to_python",
    "to_records",
    "to_units",
    "units_per_day",
    "vector_matrix",
    "with_metadata",
    "with_microseconds",
    "with_uuid_texts",
]


class NanosecondDatetime(dt.datetime):
    """A datetime with up to 999 nanoseconds after its microsecond.

    Example:
        >>> first = NanosecondDatetime.of(dt.datetime(2020, 1, 1), 7)
        >>> first.isoformat(" "), first == NanosecondDatetime.of(dt.datetime(2020, 1, 1), 8)
        ('2020-01-01 00:00:00.000000007', False)
    """

    nanosecond: int = 0

    @classmethod
    def of(cls, moment: dt.datetime, nanosecond: int) -> Self:
        """Return a datetime with nanoseconds."""
        out = cls(*moment.timetuple()[:6], moment.microsecond, moment.tzinfo, fold=moment.fold)
        out.nanosecond = nanosecond
        return out

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        """Return the timestamp in ISO 8601, with nine digits of a second unless `timespec` is given."""
        if timespec != "auto":
            return super().isoformat(sep, timespec)
        text = super().isoformat(sep, "microseconds")
        end = text.index(".") + 7
        return f"{text[:end]}{self.nanosecond:03d}{text[end:]}"

    def __str__(self) -> str:
        return self.isoformat(" ")

    def __eq__(self, other: object) -> bool:
        equal = isinstance(other, dt.datetime) and super().__eq__(other)
        return equal and self.nanosecond == getattr(other, "nanosecond", 0)

    def __ne__(self, other: object) -> bool:
        return not self == other  # the base class has its own

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.nanosecond))


def to_python(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return the cells of an Arrow array as Python objects, with all digits of timestamps in nanoseconds."""
    import pyarrow as pa

    type_ = column.type
    if not (pa.types.is_timestamp(type_) and type_.unit == "ns"):
        return list(column.to_pylist())
    units = column.cast(pa.int64()).to_pylist()
    whole = pa.array([None if unit is None else unit // 1000 for unit in units], pa.int64())
    moments = whole.cast(pa.timestamp("us", type_.tz)).to_pylist()
    return [
        moment if moment is None or not unit % 1000 else NanosecondDatetime.of(moment, unit % 1000)
        for moment, unit in zip(moments, units, strict=True)
    ]


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
    import pyarrow as pa

    if not isinstance(table, pa.Table):
        return table.records(rows)
    # Slices, not `take`, which imports pyarrow.compute, at a tenth of the time of a small query.
    return [to_records(table.slice(row, 1))[0] for row in rows]


def is_missing(cell: object) -> bool:
    """Return whether a cell is None, NaN, NaT or `pandas.NA`.

    Example:
        >>> [is_missing(cell) for cell in (None, float("nan"), np.datetime64("NaT"), 0.0, "")]
        [True, True, True, False, False]
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | Decimal | np.generic) and bool(cell != cell)


def plain_scalar(value: np.generic) -> object:
    """Return a NumPy scalar as a Python object, except a duration; a timestamp has all its digits."""
    if isinstance(value, np.timedelta64):
        return value  # Python has no nanoseconds
    if not isinstance(value, np.datetime64) or np.datetime_data(value)[0] != "ns" or np.isnat(value):
        return value.item()
    moment, rest = value.astype("datetime64[us]").item(), int(value.astype(np.int64)) % 1000
    return NanosecondDatetime.of(moment, rest) if rest else moment


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

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = dt.datetime(1970, 1, 1)
_SECONDS_PER_DAY = 86_400
_FRACTION = re.compile(r":\d\d[.,]\d{6}(\d+)")


def decoded_chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return the chunks of an Arrow column, with dictionary-encoded chunks decoded."""
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(count, dtype=np.int64))])


def with_microseconds(table: pa.Table) -> pa.Table:
    """Return a table with timestamps in microseconds, the unit of Python's datetime, for those in nanoseconds.

    A column with a digit below the microsecond is unchanged.
    """
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            with contextlib.suppress(pa.ArrowInvalid):
                cut = table.column(index).cast(pa.timestamp("us", field.type.tz))
                table = table.set_column(index, field.with_type(cut.type), cut)
    return table


def with_uuid_texts(table: pa.Table) -> pa.Table:
    """Return a table with texts in place of UUIDs of the Arrow extension type."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", "") == "arrow.uuid":
            texts = [None if cell is None else str(cell) for cell in table.column(index).to_pylist()]
            table = table.set_column(index, field.with_type(pa.string()), pa.chunked_array([texts], pa.string()))
    return table


def metadata_text(schema: pa.Schema, name: str, key: bytes) -> str:
    """Return a text in the metadata of the field `name`, or "" if there is no such field or text."""
    metadata: Mapping[bytes, bytes] = (schema.field(name).metadata or {}) if name in schema.names else {}
    return metadata.get(key, b"").decode()


def with_metadata(table: pa.Table, name: str, key: bytes, text: str) -> pa.Table:
    """Return a table with a text in the metadata of the column `name`."""
    field = table.schema.field(name)
    marked = field.with_metadata({**(field.metadata or {}), key: text.encode()})
    return table.set_column(table.column_names.index(name), marked, table.column(name))


def units_per_day(type_: pa.DataType) -> float:
    """Return the length of one day in the units of an Arrow date, time, timestamp or duration type."""
    import pyarrow as pa

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
    import pyarrow as pa

    if pa.types.is_duration(type_):
        length = dt.timedelta(days=float(value)) if isinstance(value, str | int | float) else value
        return _whole_units(length, type_.unit, exact)
    if pa.types.is_time(type_):
        clock = dt.time.fromisoformat(value.strip()) if isinstance(value, str) else value
        below, rest = _digits_below(value) if isinstance(value, str) else (0, False)
        if exact and rest:
            raise ArithmeticError(value)
        if isinstance(clock, dt.datetime):
            clock = clock.time()
        return _whole_units(dt.datetime.combine(_EPOCH, clock) - _EPOCH, type_.unit, exact, below)
    if isinstance(value, int) and date_format:
        value = str(value)  # 20240131
    timestamp = read_time(value, date_format) if isinstance(value, str) else value
    below = getattr(timestamp, "nanosecond", 0)
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
        timestamp = timestamp.replace(tzinfo=_time_zone(zone))
    if timestamp.tzinfo is not None:
        timestamp = timestamp.astimezone(dt.UTC).replace(tzinfo=None)
    if pa.types.is_date32(type_):
        return (timestamp - _EPOCH).days
    if below and exact and (pa.types.is_date64(type_) or type_.unit != "ns"):
        raise ArithmeticError(value)
    units = _whole_units(timestamp - _EPOCH, "ms" if pa.types.is_date64(type_) else type_.unit, exact)
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
    """Convert an integer in the units of an Arrow type to a Python date, time, datetime or timedelta."""
    import pyarrow as pa

    # Python's timestamps and durations have microseconds.
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        number, type_ = number // 1000, pa.timestamp("us", type_.tz)
    elif pa.types.is_duration(type_) and type_.unit == "ns":
        number, type_ = number // 1000, pa.duration("us")
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


def _whole_units(length: Any, unit: str, exact: bool, below: int = 0) -> int:
    """Return a duration and some nanoseconds in a unit."""
    if hasattr(length, "to_timedelta64"):
        length = length.to_timedelta64()  # pandas has nanoseconds
    if isinstance(length, np.timedelta64):
        nanoseconds = int(length.astype("timedelta64[ns]").astype(np.int64))
    else:
        nanoseconds = length // dt.timedelta(microseconds=1) * 1000 + below
    units, rest = divmod(nanoseconds * _PER_SECOND[unit], 10**9)
    if exact and rest:
        raise ArithmeticError(length)
    return units
