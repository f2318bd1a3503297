"""Conversion of Python objects to Arrow arrays of the same values: large integers, mixed numbers, UUIDs, dates."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.encoders.arrow_columns import is_missing
from qkv.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["exact_array"]

_MOST_DIGITS = 76


def exact_array(cells: Sequence[object]) -> pa.Array:
    """Return Python objects as an Arrow array. No digit is lost, and UUIDs become texts.

    Integers beyond 64 bits, and integers beyond 2^53 beside floats, become decimals of up to 76 digits. A float has
    the value of its shortest decimal text. Dates beside timestamps become timestamps.

    Raises:
        DataError: The numbers have more digits, or some timestamps have a time zone and others have none.
        pyarrow.ArrowException: The objects have different types, or a type that Arrow does not support.

    Example:
        >>> exact_array([2**64 - 1, 0]).type, exact_array([2**70, None]).type, exact_array([2**53 + 1, 0.1]).type
        (DataType(uint64), Decimal128Type(decimal128(22, 0)), Decimal128Type(decimal128(17, 1)))
        >>> exact_array([uuid.UUID(int=5)]).to_pylist()
        ['00000000-0000-0000-0000-000000000005']
    """
    import pyarrow as pa

    first = next((cell for cell in cells if cell is not None), None)
    if isinstance(first, uuid.UUID):
        cells = [str(cell) if isinstance(cell, uuid.UUID) else cell for cell in cells]
    if isinstance(first, dt.date):
        cells = _timestamps(cells)
    try:
        return pa.array(cells)
    except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError):
        exact = [_exact(cell) for cell in cells]
        if any(number is None and cell is not None for number, cell in zip(exact, cells, strict=True)):
            raise
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
            f"the numbers of a column must have at most {_MOST_DIGITS} digits together, got {digits}, one of them "
            f"{str(longest)[:40]}. Pass the column as texts, which are compared by equality if all are digits."
        )
    type_ = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    return pa.array([None if number is None or number.is_nan() else number for number in exact], type_)


def _timestamps(cells: Sequence[object]) -> Sequence[object]:
    """Return dates and timestamps with all dates as timestamps if there are both, as Arrow reads all like the first."""
    present = [cell for cell in cells if isinstance(cell, dt.date) and not is_missing(cell)]
    moments = [cell for cell in present if isinstance(cell, dt.datetime)]
    zoned = sum(cell.tzinfo is not None for cell in moments)
    if 0 < zoned < len(present):
        raise DataError(
            "the timestamps of a column must all have a time zone or all have none, got "
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
