"""Normalize the columns of two tables for comparison as texts, codes, numbers or dates.

    text      words, with case folded, HTML entities decoded, and accents and apostrophes removed ("Tom 's" is "toms")
    code      texts that consist mostly of digits, such as telephone numbers and postcodes; also columns of
              non-negative integers, if at least 90 % have the same number of digits, four or more
    number    numbers, and texts such as "8.70 %" that are a number with a unit
    date      dates and times, in days; texts beside them that are all dates in one format or in ISO 8601

If the kinds of both tables differ, the more general kind is used. A cell without letters and digits ("-", "") is
missing.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.encoders.arrow_columns import to_python
from qkv.encoders.columns import Column, fold
from qkv.errors import DataError
from qkv.estimators.input_columns import MISSING, ParsedDates, parse_dates

PairIntegers: TypeAlias = Int[np.ndarray, " pairs"]
PairNumbers: TypeAlias = Float[np.ndarray, " pairs"]
"""One element for each pair of a left and a right row."""

ComparedAs = Literal["text", "code", "number", "date"]
COMPARED_AS: tuple[ComparedAs, ...] = get_args(ComparedAs)
"""How a column can be compared, which follows from the kinds of both columns and from their cells."""

_CLITIC = re.compile(r"\s*['’`_]\s*(?=[^\W\d_]{1,2}\b)")
_ACCENT = re.compile("[\u0300-\u036f]")
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"^[^\w+-]*([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*[^\w]*$")
_MIN_SHARE = 0.9
_MIN_DIGITS = 4
_LARGE_EXPONENT = 500
"""Exponent of two from which on the squares of a sum of numbers may overflow."""


@dataclass(frozen=True, eq=False)
class ComparedColumn:
    """Normalized cells of a column of the left table and of the column of the right table that it is compared with.

    Attributes:
        name, kind: name and kind of the column.
        left, right: cells `(rows,)`: normalized strings, or float64.
        left_missing, right_missing: boolean arrays `(rows,)` that are True for missing cells.
        reading: how texts are read as dates, and which cells cannot be read, as a sentence; "" if there are none.
    """

    name: str
    kind: ComparedAs
    left: Shaped[np.ndarray, " left"]
    right: Shaped[np.ndarray, " right"]
    left_missing: Bool[np.ndarray, " left"]
    right_missing: Bool[np.ndarray, " right"]
    reading: str = ""


def clean(text: str) -> str:
    """Return the normalized words of a text, separated by spaces.

    Example:
        >>> clean("` Poor Richard 's '  ALE &#40; IPA &#41;")
        'poor richards ale ipa'
    """
    plain = fold(html.unescape(text))
    if not plain.isascii():
        # Only accents of European scripts are removed: in other scripts combining marks are letters.
        plain = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", plain)))
    closed = _CLITIC.sub("", plain)
    if closed.isascii():
        return " ".join(_WORD.findall(closed))
    # Regular expressions do not count vowel signs as letters, so words are split by Unicode category.
    apart = (" " if unicodedata.category(sign)[0] in "PSZC" else sign for sign in closed)
    return " ".join("".join(apart).split())


def read_columns(
    left: pa.Table, right: pa.Table, names: tuple[str, ...], kinds: dict[str, ComparedAs] | None = None
) -> list[ComparedColumn]:
    """Return the normalized cells of the columns `names` of two pyarrow tables, ready for comparison.

    Args:
        left: left table.
        right: right table, with the same column names.
        names: names of the columns to read.
        kinds: kind of each column in a fitted model; None to infer the kinds.

    Raises:
        DataError: a column holds vectors, or no dates although the model was fitted to dates.
    """
    return [
        _compare_columns(Column.from_table(left, name), Column.from_table(right, name), (kinds or {}).get(name))
        for name in names
    ]


def _compare_columns(left: Column, right: Column, kind: ComparedAs | None) -> ComparedColumn:
    for column in (left, right):
        if column.kind == "vector":
            raise DataError(
                f"column {column.name!r} must hold texts, numbers or dates, got vectors. Leave it out of on."
            )
    kind = kind or _kind(left, right)
    (left_cells, left_missing), (right_cells, right_missing) = (_convert(column, kind) for column in (left, right))
    texts = [column for column in (left, right) if kind == "date" and column.kind != "timestamp"]
    forms = ", ".join(dict.fromkeys(_format_text(dates) for column in texts if (dates := _dates(column))))
    reading = f"texts of {left.name} are read as dates in the format {forms}" if forms else ""
    if kind == "date" and not texts and len({getattr(column.type, "tz", None) is None for column in (left, right)}) > 1:
        reading = f"{left.name} has a time zone in one table; timestamps without one are compared as if in UTC"
    if unread := _unread(left, left_missing) + _unread(right, right_missing):
        noun = "number" if kind == "number" else "date of the years 1 to 9999"
        reading += "; " * bool(reading) + f"{unread:,} cells of {left.name} count as missing, each no {noun}"
    if kind == "number":
        left_cells, right_cells = _scaled(left_cells, right_cells)
    return ComparedColumn(left.name, kind, left_cells, right_cells, left_missing, right_missing, reading)


def _unread(column: Column, missing: Bool[np.ndarray, " rows"]) -> int:
    """Return the number of cells with a word or a date that count as missing."""
    if column.original is not None:
        return sum(_WORD.search(text) is not None for text in _as_texts(column)[missing])
    return int(missing.sum()) - column.source.null_count if column.kind == "timestamp" and column.source else 0


def _scaled(*columns: Float[np.ndarray, " rows"]) -> list[Float[np.ndarray, " rows"]]:
    """Return numbers of which squares overflow divided by a power of two: all measures compare ratios of numbers."""
    exponent = int(np.frexp(max(np.abs(cells).max(initial=0.0) for cells in columns))[1])
    return [np.ldexp(cells, -exponent) if exponent > _LARGE_EXPONENT else cells for cells in columns]


def _kind(left: Column, right: Column) -> ComparedAs:
    timestamps = [column.kind == "timestamp" for column in (left, right)]
    if all(timestamps) or (any(timestamps) and all(map(_dates, (left, right)))):
        return "date"
    if {left.kind, right.kind} <= {"number", "boolean", "cyclic"}:
        return "code" if _are_integer_codes(left) and _are_integer_codes(right) else "number"
    texts = [text for column in (left, right) for text in _as_texts(column) if _WORD.search(text)]
    if not texts:
        return "text"
    if _are_codes(texts):
        return "code"
    return "number" if np.mean([_number(text) is not None for text in texts]) >= _MIN_SHARE else "text"


def _are_integer_codes(column: Column) -> bool:
    """Return whether all cells of a column are non-negative integers, and at least 90 % have the same number of digits.

    This number must be at least four. Missing cells are ignored; a column without other cells gives False.
    """
    cells = column.numbers(column.cells[~column.missing])
    if not len(cells) or (cells != np.round(cells)).any() or (cells < 0).any():
        return False
    lengths, counts = np.unique([len(f"{cell:.0f}") for cell in cells], return_counts=True)
    return bool(lengths[counts.argmax()] >= _MIN_DIGITS and counts.max() >= _MIN_SHARE * len(cells))


def _are_codes(texts: list[str]) -> bool:
    """Return whether at least 90 % of the texts have four or more digits, more digits than letters, and no period."""

    def code(text: str) -> bool:
        signs = [sign for sign in text if sign.isalnum()]
        digits = sum(sign.isdigit() for sign in signs)
        return digits >= _MIN_DIGITS and 2 * digits > len(signs) and "." not in text

    return bool(np.mean([code(text) for text in texts]) >= _MIN_SHARE)


def _number(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[1].replace(",", "")) if found else None


def _as_texts(column: Column) -> Shaped[np.ndarray, " rows"]:
    """Return the cells of a column as an array of strings, with "" for missing cells."""
    if column.original is not None:
        return np.array(["" if text is None else str(text) for text in column.original], dtype=object)
    if column.kind == "boolean":
        texts = ["true" if cell else "false" for cell in column.cells]
    elif column.source is not None and pa.types.is_integer(column.type):  # all digits
        texts = list(map(str, to_python(column.source)))
    else:
        timestamps = column.kind == "timestamp"
        texts = [str(column.timestamp(cell)) if timestamps else f"{cell:.15g}" for cell in column.numbers(column.cells)]
    return np.where(column.missing, "", np.array(texts, dtype=object))


def _convert(column: Column, kind: ComparedAs) -> tuple[Shaped[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Return the cells of a column, converted to `kind`, and a boolean array that is True for missing cells.

    Dates become days since 1970, numbers float64, and texts and codes normalized strings.

    Raises:
        DataError: `kind` is `"date"` and the column holds no dates.
    """
    if kind == "date":
        if (dates := _dates(column)) is None:
            raise DataError(
                f"column {column.name!r} must hold dates, because the model was fitted to dates, got cells of kind "
                f"{column.kind!r}. Convert the column to dates, or fit the model again."
            )
        return np.nan_to_num(dates.units), np.isnan(dates.units)
    if kind == "number" and column.kind in ("number", "boolean", "cyclic"):
        return column.numbers(column.cells), column.missing
    raw = _as_texts(column)
    if kind == "number":
        numbers = np.array([_number(text) for text in raw], dtype=np.float64)  # NaN for None
        missing = ~np.isfinite(numbers)
        return np.where(missing, 0.0, numbers), missing
    normalize = clean if kind == "text" else _remove_separators
    cells = np.array([normalize(text) for text in raw], dtype=object)
    return cells, cells == ""


def _format_text(dates: ParsedDates) -> str:
    undecided = f", which no cell decides; the other is {dates.other}" if dates.other else ""
    return f"{dates.form or 'ISO 8601'}{undecided}"


def _dates(column: Column) -> ParsedDates | None:
    """Return dates in days, NaN where they are missing, and their format; None if some texts are no dates."""
    if column.kind == "timestamp":
        days = np.where(column.missing, np.nan, (column.cells + column.origin) / column.units_per_day)
        return ParsedDates(days, "")
    if column.original is None or column.missing.all():
        return None
    dates = parse_dates(np.array([text if _WORD.search(text) else MISSING for text in _as_texts(column)], object))
    return None if dates is None else dates._replace(units=dates.units / 86_400e6)


def _remove_separators(text: str) -> str:
    """Return the letters and digits of a code in lower case, without separators such as spaces and hyphens."""
    return "".join(_WORD.findall(fold(text)))
