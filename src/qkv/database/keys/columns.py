"""What a column holds, and its cells as NumPy arrays.

    text       strings
    category   strings from a fixed set (Arrow dictionaries, pandas and polars categoricals, SQL enums)
    number     integers, floats, decimals
    boolean    true and false
    moment     dates, timestamps, times of day, durations
    vector     lists of numbers, all of one length

A cell is missing where it is null, where a number is not finite, or where a text is empty once folded.
"""

import datetime as dt
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qkv.database.io import arrow_columns
from qkv.errors import DataError

__all__ = ["Column", "Kind", "fold", "key_names"]

Kind = Literal["text", "category", "number", "boolean", "timestamp", "vector"]


def fold(text: str) -> str:
    """The form in which texts are compared: NFKC, case folded, white space collapsed.

    Example:
        >>> fold("  Ｊohn   DOE ")
        'john doe'
    """
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())


def key_names(key: str | Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The names of key columns, given as one, as several, or as several with commas.

    Raises:
        DataError: a name is no text, or stands there twice.
    """
    names = [key] if isinstance(key, str) and key in columns else key.split(",") if isinstance(key, str) else list(key)
    names = [name.strip() if isinstance(name, str) else name for name in names]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"the key is {key!r}, and column names are wanted. Give one, or several with commas.")
    if len(set(names)) != len(names):
        raise DataError(f"the key names a column twice: {', '.join(names)}. Name each once.")
    return tuple(names)


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a pyarrow table, read once into NumPy.

    Fields:
        name: its name in the table.
        kind: what it holds.
        cells: `(rows,)` of text, folded; `(rows,)` of float64 (timestamps count their own unit from `origin`);
            `(rows, width)` of vectors. A missing cell is "" or 0.
        missing: `(rows,)` booleans.
        type: the pyarrow type, with which timestamps are turned back.
        origin: what was subtracted from timestamps so that float64 holds them exactly.
        original: texts as they stand in the table; None for other kinds.
    """

    name: str
    kind: Kind
    cells: np.ndarray
    missing: np.ndarray
    type: Any
    origin: int = 0
    original: np.ndarray | None = None

    @staticmethod
    def from_table(table: Any, name: str, folded: bool = True, like: "Column | None" = None) -> "Column":
        """Read a column.

        Args:
            table: a pyarrow table.
            name: of the column.
            folded: texts are compared as `fold` gives them.
            like: the same column of other rows, whose origin and width these cells share.

        Raises:
            DataError: it holds something that can be neither compared nor averaged, or vectors of several
            lengths.
        """
        chunked = table.column(name)
        kind = _kind(chunked.type, name)
        if kind in ("text", "category"):
            return _texts(chunked, name, kind, folded)
        if kind == "vector":
            return _vectors(chunked, name, None if like is None else like.cells.shape[1])
        return _numbers(chunked, name, kind, None if like is None else like.origin)

    def timestamp(self, number: float) -> Any:
        """The date, time or duration nearest to an averaged number of units."""
        return arrow_columns.from_units(round(number) + self.origin, self.type)

    def duration(self, number: float) -> dt.timedelta:
        """A spread of timestamps."""
        return dt.timedelta(days=number / self.units_per_day)

    @property
    def units_per_day(self) -> float:
        """How many of a moment's own units make a day."""
        return arrow_columns.units_per_day(self.type)


def _kind(type_: Any, name: str) -> Kind:
    from pyarrow import types

    if types.is_dictionary(type_):
        inner = _kind(type_.value_type, name)
        return "category" if inner == "text" else inner
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_) or types.is_null(type_):
        return "text"
    if types.is_boolean(type_):
        return "boolean"
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_temporal(type_) and not types.is_interval(type_):
        return "timestamp"
    listed = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    if listed and _kind(type_.value_type, name) in ("number", "boolean"):
        return "vector"
    raise DataError(
        f"column {name!r} holds {type_}, which can be neither compared nor averaged. "
        "Make it text, a number, a category, a boolean, a date or a list of numbers."
    )


def _texts(chunked: Any, name: str, kind: Kind, folded: bool) -> Column:
    original = np.array(chunked.to_pylist(), dtype=object)
    seen: dict[Any, str] = {None: ""}
    for text in original:
        if text not in seen:
            seen[text] = fold(text) if folded else text
    cells = np.array([seen[text] for text in original], dtype=object)
    return Column(name, kind, cells, cells == "", chunked.type, original=original)


def _numbers(chunked: Any, name: str, kind: Kind, origin: int | None) -> Column:
    chunks = arrow_columns.decoded_chunks(chunked)
    type_ = chunks[0].type if chunks else chunked.type
    missing = np.concatenate([np.zeros(0, bool), *map(arrow_columns.nulls, chunks)])
    if kind == "timestamp":
        units = np.concatenate([np.zeros(0, np.int64), *map(arrow_columns.units, chunks)])
        if origin is None:
            origin = int(units[~missing].min()) if not missing.all() else 0
        return Column(name, kind, np.where(missing, 0, units - origin).astype(np.float64), missing, type_, origin)
    # Integers beyond 2^53 are compared and averaged as the nearest float64.
    cells = np.concatenate([np.zeros(0), *(arrow_columns.units(chunk).astype(np.float64) for chunk in chunks)])
    missing |= ~np.isfinite(cells)
    return Column(name, kind, np.where(missing, 0.0, cells), missing, type_)


def _vectors(chunked: Any, name: str, width: int | None) -> Column:
    rows = [chunk.to_pylist() if _ragged(chunk) else _matrix(chunk) for chunk in chunked.chunks]
    widths = {len(row) for chunk in rows for row in chunk if row is not None} | {width or 0} - {0}
    if len(widths) > 1:
        raise DataError(
            f"column {name!r} holds lists of {min(widths)} to {max(widths)} numbers, and vectors have one "
            "length. Cut or pad them."
        )
    width = max(widths, default=getattr(chunked.type, "list_size", 1))
    cells = np.full((len(chunked), width), np.nan)
    start = 0
    for chunk in rows:
        if isinstance(chunk, np.ndarray):
            cells[start : start + len(chunk)] = chunk
        else:
            for index, row in enumerate(chunk):
                cells[start + index] = np.nan if row is None else np.array(row, dtype=np.float64)
        start += len(chunk)
    missing = ~np.asarray(np.isfinite(cells).all(axis=1))
    return Column(name, "vector", np.where(missing[:, None], 0.0, cells), missing, chunked.type)


def _ragged(chunk: Any) -> bool:
    import pyarrow as pa

    return not pa.types.is_fixed_size_list(chunk.type)


def _matrix(chunk: Any) -> np.ndarray:
    """Vectors of one length, read at once; a row with a null in it is NaN."""
    width = chunk.type.list_size
    # `values` keeps the slots of null rows, which `flatten` would leave out.
    values = chunk.values.slice(chunk.offset * width, len(chunk) * width)
    flat = np.where(arrow_columns.nulls(values), np.nan, arrow_columns.units(values).astype(np.float64))
    cells = flat.reshape(len(chunk), width)
    return np.where(arrow_columns.nulls(chunk)[:, None], np.nan, cells)
