"""Conversion of cells and queries to integers by which they are compared exactly.

A float64 represents integers up to 2^53 and some 15 digits of decimals. Equality is therefore tested on 64-bit
integers, of which a cell has one or several: the value of an integer, the unscaled value of a decimal, the units of a
date or time, the bits of a float or of a UUID. Different cells of a column have different integers.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import uuid
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa

from qkv.core.typing import Bool, Int, Num, Shaped
from qkv.encoders import arrow_columns

MOST_DIGITS = 38
"""Digits of the decimals as which numbers of text files are read."""

BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1", 1), 1.0),
    **dict.fromkeys(("false", "f", "no", "n", "0", 0), 0.0),
}
"""The texts and numbers that are read as true (1) and false (0)."""

_WORD = 2**64
_FOUR = "([0-9a-f]{4})-?"
_UUID = re.compile(rf"(?:urn:uuid:)?\{{?([0-9a-f]{{8}})-?{_FOUR * 3}([0-9a-f]{{12}})\}}?", re.IGNORECASE)


def width_of(type_: pa.DataType) -> int:
    """Return the number of integers per cell of an Arrow type of numbers, booleans, dates or times."""
    return max(1, type_.bit_width // 64) if pa.types.is_decimal(type_) else 1


def cell_integers(chunk: pa.Array) -> Int[np.ndarray, "rows words"]:
    """Return the integers of the cells of an Arrow array of numbers, booleans, dates or times.

    Those of null cells are undefined.
    """
    type_ = chunk.type
    if pa.types.is_decimal(type_):
        data = chunk.buffers()[1]
        dtype, width = (np.dtype(np.int32), 1) if type_.bit_width == 32 else (np.dtype(np.int64), type_.bit_width // 64)
        if data is None:
            return np.zeros((len(chunk), width), np.int64)
        stop = (chunk.offset + len(chunk)) * width
        return np.frombuffer(data, dtype)[chunk.offset * width : stop].astype(np.int64).reshape(len(chunk), width)
    return _bits(arrow_columns.stored_numbers(chunk))[:, None]


def query_integers(value: object, type_: pa.DataType, date_format: str = "") -> tuple[int, ...] | None:
    """Return the integers of a query for a column of an Arrow type, or None if no cell of the type can equal it.

    A float is rounded to the precision of the column, because this is how the cells were rounded. A number with more
    digits than a float64 represents equals no float.

    Args:
        value: a query that a float of the column's kind can represent.
        type_: the Arrow type of the column, which holds numbers, booleans, dates or times.
        date_format: as in `arrow_columns.to_units`.

    Raises:
        ValueError, TypeError, KeyError: The query is not of the kind of the column.

    Example:
        >>> import pyarrow as pa
        >>> query_integers("9223372036854775807", pa.int64()), query_integers(2.5, pa.int64())
        ((9223372036854775807,), None)
    """
    if pa.types.is_boolean(type_):
        return (int(BOOLEANS[value.strip().lower() if isinstance(value, str) else value]),)
    if pa.types.is_temporal(type_):
        try:
            units = arrow_columns.to_units(value, type_, date_format, exact=True)
        except ArithmeticError:
            return None
        return (units,) if -(2**63) <= units < 2**63 else None
    if pa.types.is_floating(type_):
        if not _is_float(value):
            return None
        with np.errstate(over="ignore"):
            rounded = np.array([float(value)], f"f{type_.bit_width // 8}")  # type: ignore[arg-type]
        return (int(_bits(rounded)[0]),)
    if isinstance(value, int) and pa.types.is_integer(type_):
        whole = int(value)
    else:
        number = _fraction(value) * (Fraction(10) ** type_.scale if pa.types.is_decimal(type_) else 1)
        if number.denominator != 1:
            return None
        whole = number.numerator
    unsigned = pa.types.is_unsigned_integer(type_)
    least, most = (0, 2**type_.bit_width) if unsigned else (-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1))
    if not least <= whole < most:
        return None
    return _split(whole, width_of(type_))


def _is_float(value: object) -> bool:
    """Return whether a number is written as a float64, see `exact_types.is_written_float`, or has too many digits.

    Numbers of text files with more digits than a decimal holds are rounded to float64 if they remain different.
    """
    if isinstance(value, float) or sum(map(str.isdigit, str(value))) > MOST_DIGITS:
        return True
    number = _fraction(value)
    return is_written_float(decimal.Decimal(number.numerator) if number.denominator == 1 else _decimal(value))


def is_written_float(number: decimal.Decimal) -> bool:
    """Return whether programs write a float64 as this number: its shortest text, 17 digits, or all of its digits."""
    nearest = float(number)
    if not math.isfinite(nearest):
        return False
    forms = decimal.Decimal(repr(nearest)), decimal.Decimal(f"{nearest:.17g}"), decimal.Decimal(nearest)
    return number in forms


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID, with or without hyphens, braces and the prefix "urn:uuid:".

    A text of digits alone is none.
    """
    return len(text) >= 32 and not text.isdigit() and _UUID.fullmatch(text.strip()) is not None


def uuid_integers(texts: Sequence[object]) -> tuple[Int[np.ndarray, "texts 2"], Bool[np.ndarray, " texts"]]:
    """Return the two integers of each text that is a UUID, and a boolean array that is True for other texts.

    Braces, hyphens, the prefix "urn:uuid:" and the case of letters have no meaning.
    """
    words, others = np.zeros((len(texts), 2), np.int64), np.ones(len(texts), bool)
    for index, text in enumerate(texts):
        match = _UUID.fullmatch(str(text).strip())
        if match:
            words[index], others[index] = _split(uuid.UUID("".join(match.groups())).int, 2), False
    return words, others


def uuid_text(text: str | None) -> str | None:
    """Return a UUID with hyphens and in lower case, so that equal UUIDs compare equal, and other texts unchanged.

    Example:
        >>> uuid_text("{6F1B2C3D00004000800000000000000A}"), uuid_text("unknown")
        ('6f1b2c3d-0000-4000-8000-00000000000a', 'unknown')
    """
    match = _UUID.fullmatch(text.strip()) if text and is_uuid(text) else None
    return str(uuid.UUID("".join(match.groups()))) if match else text


def _fraction(value: object) -> Fraction:
    """Return a number or a text of a number as a fraction. A float has the value of its shortest decimal text."""
    if isinstance(value, bool | int):
        return Fraction(int(value))
    if isinstance(value, dt.date | dt.time | dt.timedelta):
        raise TypeError(value)
    number = _decimal(value)
    if not number.is_finite() or abs(number.adjusted()) > 1000:
        return Fraction(1, 3)  # equals no cell, and 10 ** exponent would take long to compute
    return Fraction(number)


def _decimal(value: object) -> decimal.Decimal:
    exact = isinstance(value, str | int | decimal.Decimal)
    text = str(value).strip() if exact else repr(float(value))  # type: ignore[arg-type]
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError(text) from None


def _split(whole: int, width: int) -> tuple[int, ...]:
    """Return the 64-bit words of an integer in two's complement as signed integers, the lowest word first."""
    words = [(whole >> 64 * index) % _WORD for index in range(width)]
    return tuple(word - _WORD if word >= _WORD // 2 else word for word in words)


def _bits(numbers: Num[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    """Return integers of numbers as int64, and floats as the bits of their float64, with 0 for −0."""
    if numbers.dtype.kind == "f":
        return (numbers.astype(np.float64) + 0.0).view(np.int64)
    if numbers.dtype == np.uint64:
        return np.ascontiguousarray(numbers).view(np.int64)
    return numbers.astype(np.int64)
