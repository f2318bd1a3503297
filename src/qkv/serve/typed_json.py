"""JSON of Python values that JSON has no type for, such as dates and decimals, which are restored exactly.

Such a value is an object with its type as `"$"` and its content as `"v"`: `{"$": "date", "v": "2026-11-23"}`. Texts,
numbers, booleans, null, lists and objects without the name `"$"` are themselves.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkv.core.cell_kinds import plain_scalar
from qkv.core.nanoseconds import nanoseconds_below, plain_time, with_nanoseconds
from qkv.core.untrusted_json import NUMBERS
from qkv.errors import QueryError

_LARGEST_EXPONENT = 400
_DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "bool")


def encode(value: object) -> object:
    """Return a value in types that `json.dumps` writes.

    Raises:
        QueryError: The value has no form in JSON.

    Example:
        >>> encode((dt.date(2026, 11, 23), 1.5))
        {'$': 'tuple', 'v': [{'$': 'date', 'v': '2026-11-23'}, 1.5]}
    """
    value = plain_scalar(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _typed("float", repr(value))
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return _typed("tuple", [encode(item) for item in value])
    if isinstance(value, Mapping):
        if "$" not in value and all(isinstance(name, str) for name in value):
            return {name: encode(item) for name, item in value.items()}
        return _typed("dict", [[encode(name), encode(item)] for name, item in value.items()])
    if isinstance(value, np.ndarray) and str(value.dtype) in _DTYPES:
        return {**_typed("array", [encode(item) for item in value.tolist()]), "dtype": str(value.dtype)}
    return _encode_scalar(value)


def _encode_scalar(value: object) -> dict[str, object]:
    if isinstance(value, dt.datetime | dt.time | dt.timedelta) and (below := nanoseconds_below(value)):
        return {**_encode_scalar(plain_time(value)), "ns": below}
    if isinstance(value, dt.datetime):
        return _typed("datetime", value.isoformat())
    if isinstance(value, dt.date):
        return _typed("date", value.isoformat())
    if isinstance(value, dt.time):
        return _typed("time", value.isoformat())
    if isinstance(value, dt.timedelta):
        return _typed("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, decimal.Decimal):
        return _typed("decimal", str(value))
    if isinstance(value, uuid.UUID):
        return _typed("uuid", str(value))
    if isinstance(value, bytes):
        return _typed("bytes", base64.b64encode(value).decode())
    raise QueryError(
        f"a query must consist of texts, numbers, dates or vectors, got an object of type {type(value).__name__}. "
        "Convert it, or ask the database itself."
    )


def _typed(name: str, content: object) -> dict[str, object]:
    return {"$": name, "v": content}


def _array(value: Mapping[str, Any]) -> object:
    if value.get("dtype") not in _DTYPES:
        raise ValueError("unknown dtype")
    return np.array(decode(value["v"]), value["dtype"])


def _decimal(value: Mapping[str, Any]) -> decimal.Decimal:
    number = decimal.Decimal(str(value["v"]))
    if number.is_finite() and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError("as an integer it would not fit into memory")
    return number


_READERS: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "array": _array,
    "bytes": lambda value: base64.b64decode(value["v"], validate=True),
    "date": lambda value: dt.date.fromisoformat(value["v"]),
    "datetime": lambda value: dt.datetime.fromisoformat(value["v"]),
    "decimal": _decimal,
    "dict": lambda value: {decode(name): decode(item) for name, item in value["v"]},
    "float": lambda value: float(value["v"]),
    "time": lambda value: dt.time.fromisoformat(value["v"]),
    "timedelta": lambda value: dt.timedelta(*map(int, value["v"])),
    "tuple": lambda value: tuple(decode(item) for item in value["v"]),
    "uuid": lambda value: uuid.UUID(value["v"]),
}


def decode(value: object) -> Any:
    """Return the value that `encode` wrote.

    Raises:
        QueryError: A type is unknown, or its content is not of this type.

    Example:
        >>> decode({"$": "date", "v": "2026-11-23"})
        datetime.date(2026, 11, 23)
    """
    if isinstance(value, list):
        return value if NUMBERS.issuperset(map(type, value)) else [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {name: decode(item) for name, item in value.items()}
    name = value["$"]
    try:
        return with_nanoseconds(_READERS[name](value), int(value.get("ns", 0)) % 1000)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        raise QueryError(
            f"a value with the name '$' must have one of the types {', '.join(_READERS)} and a content of this type, "
            f"got the type {str(name)[:40]!r}. Write texts and numbers as they are."
        ) from None
