"""Conversion of Python values to types of JSON: dates in ISO 8601, durations in days, other objects as texts."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Sequence

import numpy as np

__all__ = ["NUMBERS", "to_json"]

NUMBERS = frozenset({float, int})
"""Types of numbers in parsed JSON."""


def to_json(value: object) -> object:
    """Convert a value and the values nested in it to types that `json.dumps` can serialize.

    Example:
        >>> to_json([1, 2.5, float("inf")])
        [1, 2.5, None]
        >>> to_json({"vector": np.array([0.5, np.nan]), "rows": [3, 10**400, -1.0]})["vector"]
        [0.5, None]
    """
    if isinstance(value, dict):
        # `json` writes boolean keys as true and false.
        return {name if isinstance(name, bool) else str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = value.tolist()
    if isinstance(value, list | tuple | np.ndarray):
        # A vector of finite numbers; their sum is not finite if one of them is not.
        if not isinstance(value, np.ndarray) and NUMBERS.issuperset(map(type, value)) and _is_finite(value):
            return list(value)
        return [to_json(item) for item in value]
    if isinstance(value, dt.timedelta):
        return value / dt.timedelta(days=1)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        # A number in JSON is read as a float64, which represents some 15 digits.
        exact = decimal.Decimal(repr(float(value))) == value
        value = int(value) if value == value.to_integral_value() else float(value) if exact else str(value)
    if isinstance(value, np.number):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _is_finite(numbers: Sequence[float]) -> bool:
    try:
        return math.isfinite(sum(numbers))
    except OverflowError:  # an integer beyond the range of float64
        return False
