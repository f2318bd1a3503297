"""Formatting of values for display: dates, vectors, amounts, and numbers rounded according to their uncertainty."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from fractions import Fraction

import numpy as np

from qkv.core.cell_kinds import plain_scalar
from qkv.core.nanoseconds import nanoseconds_below
from qkv.core.printable import printable, printable_key
from qkv.errors import OptionError

# A spread of this part of a number, or less, comes from rounding.
_ROUNDING = 1e-12
_MINUTE = dt.timedelta(minutes=1)
# So many numbers without brackets are a vector and not a name.
_LONG_LIST = 8


def number(value: float, spread: float | None = None) -> str:
    """Return a number as text, rounded to two significant digits of its spread or to six significant digits.

    Without a spread, digits before the decimal point are not rounded. A spread within the rounding errors of the number
    counts as 0, for which 15 digits are shown. Thousands are separated by commas from 10,000 on.

    Example:
        >>> number(52345.678, 1234.5), number(1100.0), number(55_000_029.3, 3.2), number(123_456_789.12)
        ('52,300', '1100', '55,000,029.3', '123,456,789')
    """
    if not math.isfinite(value):
        return str(value)
    if spread is not None and abs(spread) <= _ROUNDING * abs(value):
        spread = 0.0
    if spread == 0 and abs(value) < 1e15:
        # All values are equal: their digits, without those that rounding adds.
        text = f"{value:,.15g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.15g}"
    elif float(value).is_integer() and not spread and abs(value) < 1e15:
        text = f"{value:,.0f}"
    elif value and not 1e-5 < abs(value) < 1e15:
        return f"{value:.6g}"
    else:
        digits = max(0, 5 - math.floor(math.log10(abs(value)))) if value else 6
        if spread and math.isfinite(spread):
            digits = 1 - math.floor(math.log10(abs(spread)))
        text = f"{round(value, digits):,.{max(0, digits)}f}"
        if not spread and "." in text:
            text = text.rstrip("0").rstrip(".")
    return text if abs(value) >= 10_000 else text.replace(",", "")


def format_value(value: object, spread: object = None) -> str:
    """Return a value as one line of text, with numbers and times rounded according to their spread.

    Example:
        >>> format_value("psychology"), format_value(None), format_value([0.5, 0.25])
        ('psychology', '—', '[0.5, 0.25]')
    """
    if value is None:
        return "—"
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int) and spread is None:
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, int | float | np.number):
        return number(float(value), spread if isinstance(spread, float) else None)
    if isinstance(value, decimal.Decimal):
        return _decimal_text(value)
    if isinstance(value, dt.datetime):
        coarse = isinstance(spread, dt.timedelta) and spread >= dt.timedelta(days=1)
        return value.date().isoformat() if coarse else value.isoformat(" ", "seconds")
    if isinstance(value, dt.timedelta):
        value = _whole_seconds(value) if isinstance(spread, dt.timedelta) and spread >= _MINUTE else value
        # Python writes -5 hours as "-1 day, 19:00:00".
        return f"-{-value}" if value < dt.timedelta() and not nanoseconds_below(value) else str(value)
    if isinstance(value, np.ndarray | list):
        ends = [number(float(x)) if isinstance(x, int | float | np.number) else str(x) for x in value[:4]]
        return "[" + ", ".join(ends) + (f", … {len(value)} numbers]" if len(value) > 4 else "]")
    return printable(" ".join(str(value).split()))


def format_key(key: object) -> str:
    """Return a key as one line of text that is read as the same key: numbers in full, dates in ISO 8601.

    Characters that act are written as escapes, see `printable_key`. Durations are numbers of days. Vectors of more than
    four numbers are abbreviated.

    Example:
        >>> format_key(2**63 - 1), format_key(0.1 + 0.2), format_key(1200.0), format_key(dt.timedelta(hours=12))
        ('9223372036854775807', '0.30000000000000004', '1200', '0.5')
    """
    key = plain_scalar(key)
    if isinstance(key, bool) or key is None:
        return format_value(key)
    if isinstance(key, float):
        return repr(key).removesuffix(".0")
    if isinstance(key, decimal.Decimal):
        return _decimal_text(key)
    if isinstance(key, dt.timedelta):
        return _days_text(key)
    if isinstance(key, dt.datetime):
        return key.isoformat(" ")
    if isinstance(key, np.ndarray | list) and len(key) <= 4:
        return "[" + ", ".join(map(format_key, key)) + "]"
    if isinstance(key, str):
        return printable_key(key)
    return str(key) if isinstance(key, int) else format_value(key)


def _days_text(length: dt.timedelta) -> str:
    """Return a duration as a number of days that is read as the same nanoseconds."""
    nanoseconds = length // dt.timedelta(microseconds=1) * 1000 + nanoseconds_below(length)
    text = format_key(nanoseconds / 86_400e9)
    if round(Fraction(text) * 86_400 * 10**9) == nanoseconds:
        return text
    with decimal.localcontext(prec=40):
        return f"{decimal.Decimal(nanoseconds) / (86_400 * 10**9):.15f}".rstrip("0")


def _decimal_text(value: decimal.Decimal) -> str:
    """Return a decimal with all its digits, without the zeros at its end if there are more than 15 digits."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text and len(text) > 16 else text


def format_query(query: object, columns: int = 1) -> str:
    """Return a query as text, with commas between the parts of a query for several key columns.

    Vectors of more than four numbers are abbreviated, also those that are given as text. Other texts are printed as
    they are given, with escapes for characters that act and for white space at the ends.

    Args:
        query: the query.
        columns: the number of key columns.

    Example:
        >>> format_query((0.5, "Oslo"), 2), format_query([0.25] * 300), format_query("[1, 2, 3, 4, 5]")
        ('0.5, Oslo', '[0.25, 0.25, 0.25, 0.25, … 300 numbers]', '[1, 2, 3, 4, … 5 numbers]')
    """
    if columns > 1 and isinstance(query, tuple):
        return ", ".join(map(format_query, query))
    if isinstance(query, str):
        numbers = _numbers(query)
        return printable_key(query, backslashes=False) if numbers is None else format_value(numbers)
    return format_key(list(query) if isinstance(query, tuple) else query)


def _numbers(text: str) -> list[float] | None:
    """Return the elements of a vector of more than four numbers that is given as text, or None for other texts."""
    inside = text.strip()
    bracketed = inside.startswith("[") and inside.endswith("]")
    words = inside.strip("[]").replace(",", " ").split()
    if len(words) <= (4 if bracketed else _LONG_LIST):
        return None
    try:
        return [float(word) for word in words]
    except ValueError:
        return None


def format_length(length: float | dt.timedelta) -> str:
    """Return a standard error or a spread as text, with two significant digits or as a duration.

    Example:
        >>> format_length(1234.5), format_length(0.0), format_length(dt.timedelta(days=40, hours=3))
        ('1200', '0', '40 days')
    """
    if isinstance(length, dt.timedelta):
        days = length / dt.timedelta(days=1)
        text = str(_whole_seconds(length) if length >= _MINUTE else length)
        return f"{number(days, days)} days" if days >= 1 or not days else text
    return number(length, length)


def _whole_seconds(length: dt.timedelta) -> dt.timedelta:
    return dt.timedelta(seconds=round(length.total_seconds()))


_UNITS = {"": 1, "b": 1} | {
    f"{letter}{kind}b": (1024 if kind else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for kind in ("", "i")
}


def memory_bytes(amount: int | str) -> int:
    """Return the number of bytes in an amount of memory such as `"512 MiB"`, `"2 GB"` or `1_000_000`.

    Raises:
        OptionError: the text is not a number with a known unit, or the amount is not positive.

    Example:
        >>> memory_bytes("1.5 KiB")
        1536
    """
    if isinstance(amount, int) and not isinstance(amount, bool) and amount > 0:
        return amount
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", amount) if isinstance(amount, str) else None
    if found is None or found[2].lower() not in _UNITS or float(found[1]) <= 0:
        raise OptionError(
            f'memory must be a positive amount, got {amount!r}. Pass a number of bytes, or text such as "512 MiB".'
        )
    return int(float(found[1]) * _UNITS[found[2].lower()])


def memory_text(amount: float) -> str:
    """Format a number of bytes with a unit.

    Example:
        >>> memory_text(1536)
        '1.5 KiB'
    """
    return _scaled(amount, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rounded_up(amount: int) -> str:
    """Format a number of bytes with a unit, rounded up, so that `memory_bytes` of the text is at least the number.

    Example:
        >>> rounded_up(1537)
        '1.51 KiB'
    """
    power = min(4, int(math.log(amount, 1024))) if amount >= 1 else 0
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    if amount % 1024**power == 0:
        return f"{amount // 1024**power} {unit}"
    hundredths = -(-amount * 100 // 1024**power)
    return f"{hundredths // 100}.{hundredths % 100:02d} {unit}"


def flop_text(amount: float) -> str:
    """Format a number of floating-point operations with a unit.

    Example:
        >>> flop_text(2.5e9)
        '2.5 Gflop'
    """
    return _scaled(amount, 1000, ("flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop"))


def _scaled(amount: float, base: int, units: tuple[str, ...]) -> str:
    power = min(len(units) - 1, int(math.log(amount, base))) if amount >= 1 else 0
    number = amount / base**power
    return f"{number:.3g} {units[power]}" if number < 1000 else f"{number:.0f} {units[power]}"


def counted(number: int, one: str, many: str) -> str:
    """Format a number followed by its noun in singular or plural.

    Example:
        >>> counted(1, "query", "queries"), counted(4096, "key", "keys")
        ('1 query', '4,096 keys')
    """
    return f"{number:,} {one if number == 1 else many}"
