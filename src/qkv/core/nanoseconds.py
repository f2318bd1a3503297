"""Datetimes, times and durations of Python with up to 999 nanoseconds after their microsecond."""

from __future__ import annotations

import datetime as dt
from typing import Any


def nanoseconds_below(value: object) -> int:
    """Return the nanoseconds after the microsecond of a time or duration, also of pandas; 0 for other objects."""
    return int(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def with_nanoseconds(value: object, nanosecond: int) -> object:
    """Return a datetime, time or timedelta with nanoseconds, or the object itself if they are 0.

    Example:
        >>> first = with_nanoseconds(dt.datetime(2020, 1, 1), 7)
        >>> first.isoformat(" "), first == with_nanoseconds(dt.datetime(2020, 1, 1), 8)
        ('2020-01-01 00:00:00.000000007', False)
        >>> str(with_nanoseconds(dt.time(1, 30), 7)), str(with_nanoseconds(dt.timedelta(1), 7))
        ('01:30:00.000000007', '1 day, 0:00:00.000000007')
    """
    if not nanosecond or not isinstance(value, dt.datetime | dt.time | dt.timedelta):
        return value
    out = _copied(value, NanosecondDatetime, NanosecondTime, NanosecondDuration)
    assert isinstance(out, _Nanoseconds)
    out.nanosecond = nanosecond
    return out


def plain_time(value: Any) -> Any:
    """Return a datetime, time or timedelta, also of pandas, without its nanoseconds."""
    return _copied(value, dt.datetime, dt.time, dt.timedelta)


def _copied(
    value: Any, datetime: type[dt.datetime], time: type[dt.time], timedelta: type[dt.timedelta]
) -> dt.datetime | dt.time | dt.timedelta:
    """Return a datetime, time or timedelta as an object of the class that is given for it."""
    if isinstance(value, dt.timedelta):
        return timedelta(value.days, value.seconds, value.microseconds)
    clock = value.hour, value.minute, value.second, value.microsecond, value.tzinfo
    if isinstance(value, dt.time):
        return time(*clock, fold=value.fold)
    return datetime(value.year, value.month, value.day, *clock, fold=value.fold)


class _Nanoseconds:
    nanosecond = 0

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) is True and self.nanosecond == nanoseconds_below(other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # the base classes have their own

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.nanosecond))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return with_nanoseconds, (plain_time(self), self.nanosecond)

    def _with_digits(self, text: str) -> str:
        """Return a text that ends in six digits of a second, or in an offset behind them, with nine digits."""
        end = text.index(".") + 7
        return f"{text[:end]}{self.nanosecond:03d}{text[end:]}"


class NanosecondDatetime(_Nanoseconds, dt.datetime):
    """A timestamp with nanoseconds."""

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        """Return the timestamp in ISO 8601, with nine digits of a second unless `timespec` is given."""
        text = super().isoformat(sep, "microseconds" if timespec == "auto" else timespec)
        return self._with_digits(text) if timespec == "auto" else text

    def __str__(self) -> str:
        return self.isoformat(" ")


class NanosecondTime(_Nanoseconds, dt.time):
    """A time of day with nanoseconds."""

    def isoformat(self, timespec: str = "auto") -> str:
        """Return the time in ISO 8601, with nine digits of a second unless `timespec` is given."""
        text = super().isoformat("microseconds" if timespec == "auto" else timespec)
        return self._with_digits(text) if timespec == "auto" else text

    def __str__(self) -> str:
        return self.isoformat()


class NanosecondDuration(_Nanoseconds, dt.timedelta):
    """A duration with nanoseconds."""

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, dt.timedelta):
            return super().__truediv__(other)
        own, unit = (1000 * (length // dt.timedelta(microseconds=1)) for length in (self, other))
        return (own + self.nanosecond) / unit

    def __str__(self) -> str:
        text = super().__str__()
        return self._with_digits(text if "." in text else f"{text}.000000")
