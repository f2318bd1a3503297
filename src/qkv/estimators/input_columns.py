"""The columns that users pass to estimators, as arrays of numbers or texts, with the kind of each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from numbers import Real
from typing import NamedTuple

import numpy as np

from qkv.core.cell_kinds import cell_kind, is_missing
from qkv.core.times import parse_all
from qkv.core.typing import ArrayLike, Float, Shaped
from qkv.errors import DataError, KindError

MISSING = "\0missing"
"""The text of a missing cell in a column of strings."""
_EXACT = 2**53
"""Integers up to this one are exact in float64."""
_EPOCH, _UNIT = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def is_frame(X: object) -> bool:
    """Return whether `X` is a table with named columns, such as a frame of pandas, polars or pyarrow."""
    return not isinstance(X, np.ndarray) and (
        (hasattr(X, "columns") and hasattr(X, "__getitem__")) or hasattr(X, "column_names")
    )


def column_names(X: ArrayLike) -> list[object]:
    """Return the names of the columns of a frame.

    Raises:
        DataError: two columns have the same name.
    """
    names = list(X.column_names if hasattr(X, "column_names") else X.columns)
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise DataError(f"columns of X must have different names, got {twice[0]!r} repeatedly. Rename one of them.")
    return names


def read_columns(X: ArrayLike) -> list[Shaped[np.ndarray, " rows"]]:
    """Return the columns of a table as arrays, as `read_table` does, without their kinds."""
    return read_table(X)[0]


def read_table(X: ArrayLike) -> tuple[list[Shaped[np.ndarray, " rows"]], list[str]]:
    """Return the columns of a table as arrays, float64 for numbers and timestamps and object for strings, and kinds.

    The kind of a column is "number", "date", "date with a time zone", "duration" or "text"; "" if all cells are
    missing.

    Args:
        X: a two-dimensional array, or a frame of pandas, polars or pyarrow.

    Raises:
        KindError: if a cell is not a number, string, boolean, timestamp, duration or missing.
        DataError: if a number is infinite, integers beyond 2^53 are not distinct as float64, or some dates have a
            time zone and others have none.
    """
    if isinstance(X, np.ndarray):
        names: list[object] = [f"column {n}" for n in range(X.shape[1])]
        cells = [(X[:, n], False) for n in range(X.shape[1])]
    else:
        names = column_names(X)
        cells = [_cells(X[name]) for name in names]
    read = [_as_numbers(column, name, zoned) for (column, zoned), name in zip(cells, names, strict=True)]
    return [column for column, _ in read], [kind for _, kind in read]


def _cells(column: ArrayLike) -> tuple[Shaped[np.ndarray, " rows"], bool]:
    """Return a column of a frame as an array, missing cells as NaN, NaT or None, and whether it has a time zone."""
    type_ = column.type if hasattr(column, "to_pylist") else column.dtype
    listed: Callable[[], list[object]]
    if hasattr(column, "to_pylist"):  # pyarrow, which gives a null of a dictionary one of its values
        from qkv.encoders.arrow_columns import to_python

        column = column.cast(type_.value_type) if hasattr(type_, "index_type") else column
        whole, listed = str(type_)[:3] in ("int", "uin"), lambda: to_python(column)
        cells = listed() if cell_kind(column.type) == "time" else column.to_numpy(zero_copy_only=False)
    elif hasattr(column, "isna"):  # pandas
        whole, listed = str(type_)[:1] in "IU" or str(type_)[:3] in ("int", "uin"), lambda: column.astype(object)
        nullable = whole or str(type_)[:1] == "F"
        cells = column.to_numpy(dtype=np.float64, na_value=np.nan) if nullable else column.to_numpy()
    else:  # polars, whose integers of 128 bits NumPy lacks
        whole, listed = hasattr(type_, "is_integer") and type_.is_integer(), column.to_list
        cells = listed() if "128" in str(type_) else column.to_numpy()
    cells = np.asarray(cells)
    if hasattr(type_, "index_type") or str(type_) == "category":
        return as_text(cells), False
    if whole and cells.dtype.kind == "f" and (np.abs(cells) >= _EXACT).any():
        cells = np.array(listed(), object)
    dates = getattr(type_, "pyarrow_dtype", type_)
    return cells, bool(getattr(dates, "tz", None) or getattr(dates, "time_zone", None))


def _as_numbers(column: Shaped[np.ndarray, " rows"], name: object, zoned: bool) -> tuple[np.ndarray, str]:
    """Return a column as float64 or as strings, and its kind."""
    if column.ndim > 1:
        raise KindError(f"cells of {name} must be single values, got vectors. Pass one column for each element.")
    if _is_text(column):
        return column, "text"
    _require_distinct(column, name)
    if column.dtype.kind not in "biufmM":
        zoned = zoned or any(isinstance(cell, datetime) and cell.tzinfo is not None for cell in column.tolist())
        column = _infer_dtype(column, name)
        if column.dtype == object:
            return column, "text"
    kind = {"M": f"date{' with a time zone' * zoned}", "m": "duration"}.get(column.dtype.kind, "number")
    if column.dtype.kind in "mM":
        unit = "datetime64[us]" if column.dtype.kind == "M" else "timedelta64[us]"
        column = np.where(np.isnat(column), np.nan, column.astype(unit).astype(np.float64))
    numbers = column.astype(np.float64, copy=False)
    if np.isinf(numbers).any():
        raise DataError(
            f"Input X contains infinity or a value too large for dtype('float64') in {name}. "
            "Replace the value, or leave the cell empty; missing cells are allowed."
        )
    return numbers, "" if np.isnan(numbers).all() else kind


def _require_distinct(column: Shaped[np.ndarray, " rows"], name: object) -> None:
    """Raise a `DataError` if different integers of a column are the same float64."""
    if column.dtype.kind in "iu":
        large = np.unique(column[(column >= _EXACT) | (column <= -_EXACT)])
    elif column.dtype == object:
        large = np.array([*{cell for cell in column.tolist() if isinstance(cell, int) and abs(cell) >= _EXACT}], object)
    else:
        return
    if len(np.unique(large.astype(np.float64))) < len(large):
        raise DataError(
            f"integers of {name} must differ as float64, got different ones beyond 2^53 that are equal then, such as "
            f"{max(large)}. Subtract the smallest one, or pass them as texts, which are categories."
        )


def _infer_dtype(column: Shaped[np.ndarray, " rows"], name: object) -> Shaped[np.ndarray, " rows"]:
    """Return a column of objects as numbers or timestamps if all present cells are of that type, else as strings."""
    present = [cell for cell in column.astype(object) if not is_missing(cell)]
    for cell in present:
        if not isinstance(cell, str | Real | Decimal | np.bool_ | date | timedelta):
            raise KindError(
                f"cells of {name} must be strings, numbers, booleans, timestamps, durations or missing, got a "
                f"{type(cell).__name__} (argument must be a string or a number). "
                "Convert the cells, for example to strings."
            )
    if present and all(isinstance(cell, date) for cell in present):
        zones = {getattr(cell, "tzinfo", None) is not None for cell in present}
        if len(zones) > 1:
            raise DataError(
                f"the timestamps of {name} must all have a time zone or all have none, got both. Convert them, for "
                "example with replace(tzinfo=timezone.utc)."
            )
        return np.array([None if is_missing(cell) else _in_utc(cell) for cell in column], "datetime64[us]")
    if present and all(isinstance(cell, timedelta) for cell in present):
        return np.array([None if is_missing(cell) else cell for cell in column], "timedelta64[us]")
    if any(isinstance(cell, str | date | timedelta) for cell in present):
        return as_text(column)
    return np.array([np.nan if is_missing(cell) else float(cell) for cell in column], np.float64)


def _in_utc(moment: date) -> date:
    zoned = isinstance(moment, datetime) and moment.tzinfo is not None
    return moment.astimezone(UTC).replace(tzinfo=None) if zoned else moment  # type: ignore[attr-defined]


def _is_text(column: Shaped[np.ndarray, " rows"]) -> bool:
    """Return whether all cells of a column of objects are strings, and none is missing."""
    return column.dtype == object and set(map(type, column.tolist())) == {str}


def as_text(column: Shaped[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    """Return a column as strings, with `MISSING` for missing cells. The text of 7.0 is that of the integer, "7"."""
    if _is_text(column):
        return column
    cells = (int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in column.tolist())
    return np.array([MISSING if is_missing(cell) else str(cell) for cell in cells], object)


class ParsedDates(NamedTuple):
    """A column of dates as text: microseconds since 1970, NaN for missing cells; `form` and `other` of `parse_all`."""

    units: Float[np.ndarray, " rows"]
    form: str
    other: str = ""


def parse_dates(column: Shaped[np.ndarray, " rows"], form: str | None = None) -> ParsedDates | None:
    """Return a column of dates as text as microseconds since 1970, or None unless `times.parse_all` reads its cells.

    Args:
        column: the texts.
        form: the format; None: the first that all cells have, day first.

    Example:
        >>> parse_dates(np.array(["1970-01-02", "1970-01-01 00:00:01"], object))
        ParsedDates(units=array([8.64e+10, 1.00e+06]), form='', other='')
        >>> parse_dates(np.array(["02/01/1970"], object))
        ParsedDates(units=array([8.64e+10]), form='%d/%m/%Y', other='%m/%d/%Y')
        >>> parse_dates(np.array(["1970-01-02", "soon"], object))
    """
    texts = {text for text in set(column.tolist()) if text != MISSING}
    parsed = parse_all(texts, form) if all(isinstance(text, str) for text in texts) else None
    if parsed is None:
        return None
    units = {text: _microseconds(moment) for text, moment in parsed.moments.items()}
    cells = np.array([units.get(text, np.nan) for text in column.tolist()], np.float64)
    return ParsedDates(cells, parsed.form, parsed.other)


def _microseconds(moment: datetime) -> float:
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) / _UNIT
