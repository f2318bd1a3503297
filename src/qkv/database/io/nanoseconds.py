"""Timestamps in nanoseconds, for which Python's datetime has no digits, as Python objects.

pyarrow converts such a timestamp to an object of pandas if pandas is installed, and otherwise raises an error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NanosecondDatetime", "RecordRows", "plain_scalar", "records_of", "to_python", "to_records"]


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
        return super().__eq__(other) and self.nanosecond == getattr(other, "nanosecond", 0)

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


def plain_scalar(value: np.generic) -> object:
    """Return a NumPy scalar as a Python object; a timestamp has all its digits."""
    if not isinstance(value, np.datetime64) or np.datetime_data(value)[0] != "ns" or np.isnat(value):
        return value.item()
    moment, rest = value.astype("datetime64[us]").item(), int(value.astype(np.int64)) % 1000
    return NanosecondDatetime.of(moment, rest) if rest else moment
