"""Conversion of Python objects to Arrow arrays of the same values: large integers, mixed numbers, UUIDs, dates."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.core.cell_kinds import cell_kind, is_missing, object_kind, plain_scalar
from qkv.core.nanoseconds import nanoseconds_below
from qkv.core.printable import first_line
from qkv.errors import DataError

_MOST_DIGITS = 76


def exact_array(cells: Sequence[object], column: str = "a column") -> pa.Array:
    """Return Python objects as an Arrow array. No digit is lost, and UUIDs become texts.

    Integers beyond 64 bits, and integers beyond 2^53 beside floats, become decimals of up to 76 digits. A float has
    the value of its shortest decimal text. Dates beside timestamps become timestamps. NaT and `pandas.NA` are null, and
    so is NaN beside other cells than numbers.

    Args:
        cells: the objects.
        column: names the column in errors.

    Raises:
        DataError: The cells are of several kinds, such as dates and numbers, which Arrow would cast; the numbers have
            more digits; some timestamps have a time zone and others have none; or Arrow does not support the objects.

    Example:
        >>> exact_array([2**64 - 1, 0]).type, exact_array([2**70, None]).type, exact_array([2**53 + 1, 0.1]).type
        (DataType(uint64), Decimal128Type(decimal128(22, 0)), Decimal128Type(decimal128(17, 1)))
        >>> exact_array([uuid.UUID(int=5)]).to_pylist()
        ['00000000-0000-0000-0000-000000000005']
    """
    types = set(map(type, cells)) - {type(None)}
    kinds = {object_kind(type_) for type_ in types}
    if len(kinds) > 1:
        cells = [None if is_missing(cell) else cell for cell in cells]
        examples = {object_kind(type(cell)): cell for cell in cells if cell is not None}
        kinds = set(examples)
        if len(kinds) > 1:
            found = " and ".join(f"{examples[kind]!r:.40} ({kind or 'object'})" for kind in sorted(kinds))
            raise DataError(f"the cells of {column} must be of one kind, got {found}. Convert them, such as to texts.")
    if any(issubclass(type_, uuid.UUID) for type_ in types):
        cells = [None if cell is None else str(cell) for cell in cells]
    if any(issubclass(type_, np.datetime64 | np.timedelta64) for type_ in types):
        cells = list(map(plain_scalar, cells))
    if kinds == {"date"}:
        cells = _timestamps(cells, column)
    if kinds == {"time"} and any(isinstance(cell, dt.time) and cell.tzinfo is not None for cell in cells):
        raise DataError(f"the times of {column} must have no time zone, got some with one. Add the dates to them.")
    try:
        array = pa.array(cells)
    except (OverflowError, TypeError, pa.ArrowException) as error:
        exact = [_exact(cell) for cell in cells]
        if any(number is None and cell is not None for number, cell in zip(exact, cells, strict=True)):
            raise DataError(
                f"the cells of {column} must be of one type that Arrow supports, got others: {first_line(error)}. "
                "Convert them, such as to texts."
            ) from None
        return _decimals(exact, column)
    return _with_items(_with_nanoseconds(array, cells, column), cells, column)


def _with_nanoseconds(array: pa.Array, cells: Sequence[object], column: str) -> pa.Array:
    """Return timestamps, times or durations with the nanoseconds of the cells, which Arrow leaves out."""
    type_ = array.type
    if not pa.types.is_temporal(type_) or getattr(type_, "unit", "") != "us" or not any(map(nanoseconds_below, cells)):
        return array
    units = zip(array.cast(pa.int64()).to_pylist(), map(nanoseconds_below, cells), strict=True)
    exact = [None if unit is None else 1000 * unit + rest for unit, rest in units]
    if any(unit is not None and abs(unit) >= 2**63 for unit in exact):
        raise DataError(
            f"timestamps and durations in nanoseconds must be within 292 years of 1970 or 0, got others in {column}. "
            "Round them to microseconds."
        )
    finer = {"time": pa.time64("ns"), "duration": pa.duration("ns")}.get(cell_kind(type_))
    return pa.array(exact, pa.int64()).cast(finer or pa.timestamp("ns", type_.tz))


def _with_items(array: pa.Array, cells: Sequence[Any], column: str) -> pa.Array:
    """Return lists and records whose items are converted as columns are; for numbers, Arrow does it."""
    type_, present = array.type, [cell for cell in cells if cell is not None]
    if pa.types.is_struct(type_):
        fields = [
            exact_array([None if cell is None else cell.get(field.name) for cell in cells], column) for field in type_
        ]
        return pa.StructArray.from_arrays(fields, names=[field.name for field in type_], mask=array.is_null())
    if pa.types.is_list(type_) and (pa.types.is_temporal(type_.value_type) or pa.types.is_nested(type_.value_type)):
        items = exact_array([item for cell in present for item in cell], column)
        return pa.ListArray.from_arrays(array.offsets, items, mask=array.is_null())
    return array


def _decimals(exact: Sequence[decimal.Decimal | None], column: str) -> pa.Array:
    """Return numbers without trailing zeros as unsigned integers or as decimals of up to 76 digits."""
    present = [number for number in exact if number is not None and not number.is_nan()]
    whole = all(number == number.to_integral_value() for number in present)
    if whole and all(0 <= number < 2**64 for number in present):
        return pa.array([None if number is None or number.is_nan() else int(number) for number in exact], pa.uint64())
    scale = max((-int(number.as_tuple().exponent) for number in present), default=0)
    scale = max(0, scale)
    digits = max((number.adjusted() + 1 for number in present), default=1)
    digits = max(digits, 1) + scale
    if digits > _MOST_DIGITS:
        longest = max(present, key=lambda number: len(number.as_tuple().digits))
        raise DataError(
            f"the numbers of {column} must have at most {_MOST_DIGITS} digits together, got {digits}, one of them "
            f"{str(longest)[:40]}. Pass the column as texts, which are compared by equality if all are digits."
        )
    type_ = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    return pa.array([None if number is None or number.is_nan() else number for number in exact], type_)


def _timestamps(cells: Sequence[object], column: str) -> Sequence[object]:
    """Return dates and timestamps with all dates as timestamps if there are both, as Arrow reads all like the first."""
    present = [cell for cell in cells if isinstance(cell, dt.date)]
    moments = [cell for cell in present if isinstance(cell, dt.datetime)]
    zoned = sum(cell.tzinfo is not None for cell in moments)
    if 0 < zoned < len(present):
        raise DataError(
            f"the timestamps of {column} must all have a time zone or all have none, got "
            f"{zoned:,} with one among {len(present):,}. Convert them, for example with replace(tzinfo=timezone.utc)."
        )
    if len(moments) in (0, len(present)):
        return cells
    midnight = dt.time()
    return [
        dt.datetime.combine(cell, midnight) if isinstance(cell, dt.date) and not isinstance(cell, dt.datetime) else cell
        for cell in cells
    ]


def _exact(cell: object) -> decimal.Decimal | None:
    """Return a number as a decimal without trailing zeros, or None for an infinite number or another object."""
    if isinstance(cell, bool):
        return None
    if isinstance(cell, numbers.Integral):
        return decimal.Decimal(int(cell))
    if isinstance(cell, numbers.Real):
        cell = decimal.Decimal(repr(float(cell))) if not math.isinf(cell) else None
    if not isinstance(cell, decimal.Decimal) or cell.is_infinite():
        return None
    with decimal.localcontext(prec=max(1, len(cell.as_tuple().digits))):
        return cell.normalize()
