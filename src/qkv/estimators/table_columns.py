"""Columns of a table as arrays: numbers and timestamps as float64, strings as objects.

Frames of pandas, polars and pyarrow are read column by column.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime, timedelta
from numbers import Number
from typing import Any

import numpy as np

from qkv.core.times import candidate_formats, parse_date
from qkv.core.typing import Float, Shaped
from qkv.errors import DataError, KindError

__all__ = ["MISSING", "as_text", "is_frame", "parse_dates", "read_columns"]

MISSING = "\0missing"
"""The text of a missing cell in a column of strings."""
_EPOCH, _UNIT = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_FIRST_TEXTS = 1_000


def is_frame(X: object) -> bool:
    """Return whether `X` is a table with named columns, such as a frame of pandas, polars or pyarrow."""
    return not isinstance(X, np.ndarray) and (
        (hasattr(X, "columns") and hasattr(X, "__getitem__")) or hasattr(X, "column_names")
    )


def read_columns(X: Any) -> list[Shaped[np.ndarray, " rows"]]:
    """Return the columns of a table as arrays, float64 for numbers and timestamps and object for strings.

    Args:
        X: a two-dimensional array, or a frame of pandas, polars or pyarrow.

    Raises:
        KindError: if a cell is not a number, string, boolean, timestamp or missing.
        DataError: if a number is infinite.
    """
    if isinstance(X, np.ndarray):
        names: list[object] = [f"column {n}" for n in range(X.shape[1])]
        cells = [X[:, n] for n in range(X.shape[1])]
    else:
        names = list(X.column_names if hasattr(X, "column_names") else X.columns)
        cells = [_cells(X[name]) for name in names]
    return [_as_numbers(column, name) for column, name in zip(cells, names, strict=True)]


def _cells(column: Any) -> Shaped[np.ndarray, " rows"]:
    """Return a column of a frame as an array, with missing cells as NaN, NaT or None."""
    if hasattr(column, "combine_chunks"):  # pyarrow
        return np.asarray(column.to_numpy(zero_copy_only=False))
    nullable = hasattr(column, "isna") and str(column.dtype)[:1] in ("I", "U", "F")
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan) if nullable else column.to_numpy())


def _as_numbers(column: Shaped[np.ndarray, " rows"], name: object) -> Shaped[np.ndarray, " rows"]:
    if column.dtype.kind not in "biufmM":
        column = _infer_dtype(column, name)
        if column.dtype == object:
            return column
    if column.dtype.kind in "mM":
        unit = "datetime64[us]" if column.dtype.kind == "M" else "timedelta64[us]"
        column = np.where(np.isnat(column), np.nan, column.astype(unit).astype(np.float64))
    numbers = column.astype(np.float64, copy=False)
    if np.isinf(numbers).any():
        raise DataError(
            f"Input X contains infinity or a value too large for dtype('float64') in {name}. "
            "Replace the value, or leave the cell empty; missing cells are allowed."
        )
    return numbers


def _infer_dtype(column: Shaped[np.ndarray, " rows"], name: object) -> Shaped[np.ndarray, " rows"]:
    """Return a column of objects as numbers or timestamps if all present cells are of that type, else as strings."""
    if _is_text(column):
        return column
    present = [cell for cell in column.astype(object) if not _is_missing(cell)]
    for cell in present:
        if not isinstance(cell, str | Number | np.bool_ | date):
            raise KindError(
                f"cells of {name} must be strings, numbers, booleans, timestamps or missing, got a "
                f"{type(cell).__name__} (argument must be a string or a number)."
            )
    if present and all(isinstance(cell, date) for cell in present):
        return np.array([None if _is_missing(cell) else cell for cell in column], "datetime64[us]")
    if any(isinstance(cell, str | date) for cell in present):
        return as_text(column)
    return np.array([np.nan if _is_missing(cell) else float(cell) for cell in column], np.float64)


def _is_missing(cell: object) -> bool:
    return cell is None or (
        not isinstance(cell, str) and (type(cell).__name__ in ("NAType", "NaTType") or cell != cell)
    )


def _is_text(column: Shaped[np.ndarray, " rows"]) -> bool:
    """Return whether all cells of a column of objects are strings, and none is missing."""
    return column.dtype == object and set(map(type, column.tolist())) == {str}


def as_text(column: Shaped[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    """Return a column as strings, with `MISSING` for missing cells."""
    if _is_text(column):
        return column
    return np.array([MISSING if _is_missing(cell) else str(cell) for cell in column], object)


def parse_dates(
    column: Shaped[np.ndarray, " rows"], form: str | None = None
) -> tuple[Float[np.ndarray, " rows"], str] | None:
    """Return a column of dates as text as microseconds since 1970, and their format, which is "" for ISO 8601.

    Missing cells are NaN. The result is None unless all other cells are dates in one format of `qkv.core.times`, all
    with a time zone or all without one.

    Args:
        column: the texts.
        form: the format; None: the first that all cells have, day first.

    Example:
        >>> parse_dates(np.array(["1970-01-02", "1970-01-01 00:00:01"], object))
        (array([8.64e+10, 1.00e+06]), '')
        >>> parse_dates(np.array(["1970/01/02"], object))
        (array([8.64e+10]), '%Y/%m/%d')
        >>> parse_dates(np.array(["1970-01-02", "soon"], object))
    """
    texts = [text for text in set(column.tolist()) if text != MISSING]
    if not all(isinstance(text, str) for text in texts):
        return None
    for each in ["", *candidate_formats(texts[:_FIRST_TEXTS])] if form is None else [form]:
        with contextlib.suppress(ValueError):
            known = {text: parse_date(text, each) for text in texts}
            if len({moment.tzinfo is None for moment in known.values()}) < 2:
                units = {text: _microseconds(moment) for text, moment in known.items()}
                return np.array([units.get(text, np.nan) for text in column.tolist()], np.float64), each
    return None


def _microseconds(moment: datetime) -> float:
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) / _UNIT
