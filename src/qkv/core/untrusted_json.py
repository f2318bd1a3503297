"""JSON: values that can be written, and reading of text that may be damaged or crafted, with checks of its fields."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from qkv.errors import DamagedError

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


_LARGEST = 2**28
"""Largest size in bytes of a JSON text that is read; a manifest of a million files has about this size."""

_DEEPEST = 64
"""Largest number of lists and objects within one another."""

_MOST = 2**53
"""Largest integer of a field, which every reader of JSON represents exactly."""


class BoundedFile(Protocol):
    """A file that is not on a disk, whose bytes `read_bounded` returns."""

    def read_bounded(self, largest: int) -> bytes:
        """Return the bytes of a file of at most `largest` bytes, or raise a `DamagedError`."""


def read_bounded(path: Path | BoundedFile, largest: int = _LARGEST) -> bytes:
    """Return the bytes of a file.

    Args:
        largest: the largest size that is read.

    Raises:
        DamagedError: the file is not a file of at most `largest` bytes.
        OSError: the file cannot be read.
    """
    if not isinstance(path, Path):
        return path.read_bounded(largest)
    size = path.stat().st_size
    if not path.is_file():
        raise DamagedError(f"{path.name} must be a file, got another kind of entry. Restore the file from a copy.")
    if size > largest:
        raise DamagedError(
            f"{path.name} must have at most {largest:,} bytes, got {size:,} bytes. Restore the file from a copy."
        )
    return path.read_bytes()


def parse_json(data: bytes | str, name: str) -> object:
    """Return the value of a JSON text.

    Args:
        name: names the text in errors.

    Raises:
        DamagedError: the text is no JSON, is larger than 256 MiB, or is nested deeper than 64 levels.

    Example:
        >>> parse_json(b"[" * 1000, "a.json")
        Traceback (most recent call last):
        qkv.errors.DamagedError: a.json must be JSON with at most 64 levels, got more. Restore the file from a copy.
    """
    if len(data) > _LARGEST:
        raise DamagedError(
            f"{name} must have at most {_LARGEST:,} bytes, got {len(data):,} bytes. Restore the file from a copy."
        )
    try:
        text = data if isinstance(data, str) else data.decode("utf-8", "surrogatepass")
        value: object = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # raises an error for half of a surrogate pair
    except RecursionError:
        value = None
        deep = True
    except ValueError as error:
        raise DamagedError(
            f"{name} must be JSON, but reading it failed: {str(error)[:200]}. Restore the file from a copy."
        ) from None
    else:
        deep = _is_deep(value)
    if deep:
        raise DamagedError(
            f"{name} must be JSON with at most {_DEEPEST} levels, got more. Restore the file from a copy."
        )
    return value


def _is_deep(value: object) -> bool:
    """Return whether lists and objects are nested deeper than 64 levels. The check itself does not recurse."""
    level = [value]
    for _ in range(_DEEPEST):
        nested = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [part for each in nested for part in each if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def is_file_name(name: str) -> bool:
    """Return whether a text is the name of a file within a folder, rather than a path that may leave the folder.

    Example:
        >>> [is_file_name(name) for name in ("a.arrow", "..", "../a", "/a", "")]
        [True, False, False, False, False]
    """
    return (
        0 < len(name.encode("utf-8", "surrogatepass")) <= 255
        and name.strip(". ") != ""
        and not any(character in '/\\:*?"<>|' or unicodedata.category(character)[0] == "C" for character in name)
    )


class Fields:
    """The fields of a JSON object of a file, of which each is read with a check of its type and size.

    Args:
        value: what `parse_json` returned.
        name: names the object in errors, such as `versions/0000000003.json`.

    Raises:
        DamagedError: the value is no object, or a field is missing or is not what the method says.

    Example:
        >>> Fields({"rows": -1}, "a.json").integer("rows", most=9)
        Traceback (most recent call last):
        qkv.errors.DamagedError: rows in a.json must be an integer from 0 to 9, got -1. Restore the file from a copy.
    """

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, dict):
            raise _damaged(name, "a JSON object", value)
        self.fields: dict[str, object] = value
        self.name = name

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def get(self, field: str) -> object:
        """Return a field of any type, or None if it is missing."""
        return self.fields.get(field)

    def integer(self, field: str, least: int = 0, most: int = _MOST) -> int:
        """Return an integer from `least` to `most`."""
        value = self.fields.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.damaged(field, f"an integer from {least:,} to {most:,}")
        return value

    def number(self, field: str) -> float:
        """Return a finite number as a float."""
        value = self.fields.get(field)
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308
        if not finite or not math.isfinite(value):  # type: ignore[arg-type]
            raise self.damaged(field, "a finite number")
        return float(value)  # type: ignore[arg-type]

    def boolean(self, field: str) -> bool:
        """Return a boolean."""
        value = self.fields.get(field)
        if not isinstance(value, bool):
            raise self.damaged(field, "true or false")
        return value

    def text(self, field: str, choices: Sequence[str] = ()) -> str:
        """Return a text, which is one of `choices` if there are any."""
        value = self.fields.get(field)
        if not isinstance(value, str) or (choices and value not in choices):
            raise self.damaged(field, f"one of {', '.join(choices)}" if choices else "a text")
        return value

    def file_name(self, field: str) -> str:
        """Return the name of a file, which is not a path to another folder."""
        value = self.text(field)
        if not is_file_name(value):
            raise self.damaged(field, "the name of a file in the same folder")
        return value

    def texts(self, field: str) -> list[str]:
        """Return a list of texts."""
        values = self.items(field)
        if not all(isinstance(value, str) for value in values):
            raise self.damaged(field, "a list of texts")
        return [str(value) for value in values]

    def numbers(self, field: str) -> list[float]:
        """Return a list of finite numbers."""
        return [Fields({field: value}, self.name).number(field) for value in self.items(field)]

    def items(self, field: str) -> list[object]:
        """Return a list."""
        value = self.fields.get(field)
        if not isinstance(value, list):
            raise self.damaged(field, "a list")
        return value

    def record(self, field: str) -> dict[str, object]:
        """Return a JSON object as a dict."""
        value = self.fields.get(field)
        if not isinstance(value, dict):
            raise self.damaged(field, "a JSON object")
        return value

    def damaged(self, field: str, condition: str) -> DamagedError:
        """Return the error for a field that does not meet a condition."""
        value = self.fields.get(field, _MISSING)
        return _damaged(f"{field} in {self.name}", condition, value)


_MISSING: Mapping[str, object] = {}
"""Stands for a field that is missing, in `Fields.damaged`."""


def _damaged(name: str, condition: str, value: object) -> DamagedError:
    if value is _MISSING:
        shown = "no such field"
    elif isinstance(value, int) and abs(value) >= 2**64:
        shown = f"an integer of {value.bit_length():,} bits"
    else:
        containers: dict[type, str] = {dict: "a JSON object", list: "a list"}
        shown = containers.get(type(value)) or ascii(value)
        shown = f"{shown[:80]}…" if len(shown) > 80 else shown
    return DamagedError(f"{name} must be {condition}, got {shown}. Restore the file from a copy.")
