"""The class `Column`, which holds a column of a table as NumPy arrays with the kind of its cells.

    text        strings
    category    strings from a fixed set (Arrow dictionaries, pandas and polars categoricals, SQL enums)
    number      integers, floats, decimals
    boolean     true and false
    timestamp   dates, timestamps, times of day, durations
    cyclic      numbers with a period, such as hours of the day and directions, as points on a circle
    vector      lists of numbers, all of one length

`KINDS` says how the cells of each kind are written, compared and averaged; `qkv.encoders.table_vectors` how they are
encoded, and `qkv.join.comparison_vectors` how two tables are compared. A cell is missing if it is null, if its number
is not finite, if its date is not in the years 1 to 9999, or if its text is empty after folding.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types

from qkv.core.cell_kinds import cell_kind
from qkv.core.formatting import format_key
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.encoders import arrow_columns, exact_cells
from qkv.encoders.arrow_columns import Temporal, metadata_text, to_python
from qkv.encoders.number_formats import NumberFormat
from qkv.errors import DataError, OptionError

Kind = Literal["text", "category", "number", "boolean", "timestamp", "cyclic", "vector"]


class KindTraits(NamedTuple):
    """What follows from the kind of a column.

    Attributes:
        expected: what a query must be, as the end of a sentence.
        example: a cell, for error messages about a column without cells.
        compared: how keys are compared: by "distance", "similarity" or "equality".
        averaged: whether values are averaged; otherwise they vote.
        text: whether cells are texts.
        on_line: whether cells are points of a line, such as numbers and timestamps.
    """

    expected: str
    example: str
    compared: Literal["distance", "similarity", "equality"]
    averaged: bool
    text: bool = False
    on_line: bool = False


KINDS: dict[Kind, KindTraits] = {
    "text": KindTraits("a text", "a word", "similarity", averaged=False, text=True),
    "category": KindTraits("a text", "a word", "equality", averaged=False, text=True),
    "number": KindTraits("a finite number", "1.5", "distance", averaged=True, on_line=True),
    "boolean": KindTraits("true or false", "true", "distance", averaged=False),
    "timestamp": KindTraits("a timestamp", "1.5", "distance", averaged=True, on_line=True),
    "cyclic": KindTraits("a finite number", "1.5", "distance", averaged=True),
    "vector": KindTraits("a vector", "1.5", "similarity", averaged=True),
}

PERIOD = b"qkv period"
"""The name in the metadata of an Arrow field of the period of a cyclic column."""

_NAMES = re.compile(r'(?:^|,)\s*(?:"((?:[^"]|"")*)")?([^,]*?)\s*(?=,|\Z)')
_MOST_SLICES = 1000
_MICROSECONDS_PER_DAY = 86_400e6


def compose(text: str) -> str:
    """Return a text in Unicode NFKC, in which İ is an i: lower case would be an i with a second dot."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text).replace("İ", "i")


def fold(text: str) -> str:
    """Return a text normalized for comparison: in Unicode NFKC, case folded, and with white space collapsed.

    Example:
        >>> fold("  Ｊohn   DOE ")
        'john doe'
        >>> fold("İzmir") == fold("IZMIR")
        True
    """
    return " ".join(compose(text).casefold().split())


def split_names(names: object) -> list[Any]:
    """Return column names as a list, from one name, several names, or a text of names with commas, quoted as in CSV.

    Example:
        >>> split_names('city, "price, net"')
        ['city', 'price, net']
    """
    if isinstance(names, str):
        return [quoted.replace('""', '"') + rest for quoted, rest in _NAMES.findall(names)]
    return list(names) if isinstance(names, Iterable) else [names]


def key_names(key: str | Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the key columns as a tuple, from one name, several names, or a text of names with commas.

    Raises:
        DataError: A name is not a string, or occurs twice.
    """
    names = [key] if isinstance(key, str) and key in columns else split_names(key)
    names = [name.strip() if isinstance(name, str) and name not in columns else name for name in names]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"key must be one or several column names, got {key!r}. Separate several names with commas.")
    if len(set(names)) != len(names):
        raise DataError(f"key must name each column once, got {', '.join(names)}. Remove the repeated name.")
    return tuple(names)


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a pyarrow table as NumPy arrays, with the kind of its cells.

    Attributes:
        name: the column's name in the table.
        kind: the kind of its cells.
        cells: `(rows,)` of folded texts; `(rows,)` of float64 (timestamps in their own unit, counted from
            `origin`); `(rows, width)` of vectors, and of the points of cyclic numbers, see `points_on_circle`.
            Missing cells hold "" or 0.
        missing: `(rows,)` booleans, True where a cell is missing.
        type: the pyarrow type, by which numbers are converted back to timestamps.
        origin: the offset of timestamps, subtracted so that float64 represents them exactly.
        original: texts as in the table, not folded; None for other kinds.
        source: the Arrow column from which the cells were read; None for texts.
        date_format: the format in which a text file writes dates, such as "%d.%m.%Y"; "" for ISO 8601.
        number_format: the format in which a text file writes numbers; None for numbers as Python writes them.
        reading: how the column of a text file is read, as the end of a sentence; "" for usual numbers and dates.
        period: the period of a cyclic column; 0 for other kinds.
    """

    name: str
    kind: Kind
    cells: Shaped[np.ndarray, "rows ..."]
    missing: Bool[np.ndarray, " rows"]
    type: pa.DataType
    origin: int = 0
    original: Shaped[np.ndarray, " rows"] | None = None
    source: pa.ChunkedArray | None = None
    date_format: str = ""
    number_format: NumberFormat | None = None
    reading: str = ""
    period: float = 0.0

    @staticmethod
    def from_table(table: pa.Table, name: str, folded: bool = True, like: Column | None = None) -> Column:
        """Return the column `name` of a pyarrow table as NumPy arrays.

        Args:
            table: a pyarrow table.
            name: the column's name.
            folded: whether texts are folded, see `fold`.
            like: the same column of other rows, whose origin and width are used.

        Raises:
            DataError: The cells can be neither compared nor averaged, or vectors have several lengths.
        """
        chunked = table.column(name)
        kind = _kind_of(chunked.type, name)
        if KINDS[kind].text:
            column = _read_texts(chunked, name, kind, folded)
            return replace(column, reading=metadata_text(table.schema, name, arrow_columns.READING))
        if kind == "vector":
            return _read_vectors(chunked, name, None if like is None else like.cells.shape[1])
        column = _read_numbers(chunked, name, kind, None if like is None else like.origin)
        keys = arrow_columns.DATE_FORMAT, arrow_columns.NUMBER_FORMAT, arrow_columns.READING
        date_format, number_format, reading = (metadata_text(table.schema, name, key) for key in keys)
        parsed = NumberFormat.load(number_format) if number_format else None
        column = replace(column, date_format=date_format, number_format=parsed, reading=reading)
        if metadata_text(table.schema, name, arrow_columns.HALF):
            column = replace(column, type=pa.float16())
        if kind != "number" or not (period := float(arrow_columns.metadata_text(table.schema, name, PERIOD) or 0.0)):
            return column
        points = np.where(column.missing[:, None], 0.0, points_on_circle(column.cells, period))
        reading = "; ".join(filter(None, (reading, f"is cyclic, with a period of {period:g}")))
        return replace(column, kind="cyclic", cells=points, period=period, reading=reading)

    @cached_property
    def integers(self) -> Int[np.ndarray, "rows words"] | None:
        """The cells as integers that differ for different cells (see `exact_cells`), with 0 for missing cells.

        None for texts and for vectors of floats, which are compared exactly by `cells`.
        """
        if self.source is None:
            return None
        chunks = arrow_columns.decoded_chunks(self.source)
        if self.kind == "vector":
            return _vector_integers(self.source, self.missing, self.integers_per_cell)
        words = np.zeros((0, self.integers_per_cell), np.int64)
        words = np.concatenate([words, *map(exact_cells.cell_integers, chunks)])
        return np.where(self.missing[:, None], 0, words)

    @cached_property
    def distinct(self) -> tuple[dict[str, int], Int[np.ndarray, " rows"]]:
        """The different texts, numbered from 0 in the order of their first rows, and the number of each row."""
        numbers: defaultdict[str, int] = defaultdict(count().__next__)
        rows = np.fromiter(map(numbers.__getitem__, self.cells.tolist()), np.intp, len(self.cells))
        return dict(numbers), rows

    @property
    def integers_per_cell(self) -> int:
        """The number of columns of `integers`, or 0 if it is None."""
        if self.source is None:
            return 0
        if self.kind == "vector":
            return int(self.cells.shape[1]) * exact_cells.width_of(self.type.value_type)
        return exact_cells.width_of(self.type)

    def take(self, rows: Int[np.ndarray, " n"], with_source: bool = True) -> Column:
        """Return the column of the rows with the given indices, with or without their Arrow cells."""
        original = None if self.original is None else self.original[rows]
        source = None if self.source is None or not with_source else _take(self.source, rows)
        return replace(self, cells=self.cells[rows], missing=self.missing[rows], original=original, source=source)

    def slice(self, rows: slice) -> Column:
        """Return the column of some consecutive rows."""
        original = None if self.original is None else self.original[rows]
        start, stop, _ = rows.indices(len(self.missing))
        source = None if self.source is None else self.source.slice(start, max(0, stop - start))
        return replace(self, cells=self.cells[rows], missing=self.missing[rows], original=original, source=source)

    def timestamp(self, number: float) -> Temporal:
        """Convert a number of time units after `origin` to the nearest date, time, datetime or timedelta.

        The unit is that of the column. Halves are rounded up, whatever the origin and despite rounding errors.

        Raises:
            OverflowError: The time is before year 1 or after year 9999.
        """
        units = math.floor(round(number, 6) + 0.5) + self.origin
        first, last = arrow_columns.temporal_range(self.type)
        nearest = min(max(units, first), last)
        # A float64 may be beyond the last time by its rounding error.
        return arrow_columns.from_units(nearest if abs(units - nearest) <= abs(number) * 2**-50 else units, self.type)

    def text(self, row: int) -> str:
        """Return the cell of a row as text that is read as the same cell; a vector is abbreviated."""
        if self.original is not None:
            return str(self.original[row])
        cell = self.cells[row] if self.source is None else to_python(self.source.slice(row, 1))[0]
        return format_key(cell)

    def duration(self, number: float) -> dt.timedelta:
        """Convert a number of the column's time units to a timedelta."""
        return dt.timedelta(microseconds=number * (_MICROSECONDS_PER_DAY / self.units_per_day))

    @property
    def limits(self) -> tuple[float, float]:
        """The first and the last cell that the column can hold, relative to its origin; infinite for numbers."""
        if self.kind != "timestamp":
            return -math.inf, math.inf
        first, last = arrow_columns.temporal_range(self.type)
        return float(first - self.origin), float(last - self.origin)

    @property
    def units_per_day(self) -> float:
        """The number of the column's time units in one day."""
        return arrow_columns.units_per_day(self.type)

    @property
    def unit(self) -> float:
        """The unit of distances and bandwidths in that of the cells: a day for timestamps, 1 for other kinds."""
        return self.units_per_day if self.kind == "timestamp" else 1.0

    @property
    def traits(self) -> KindTraits:
        """What follows from the kind of the column."""
        return KINDS[self.kind]

    @property
    def width(self) -> int:
        """The number of elements of a cell."""
        return int(self.cells.shape[1]) if self.cells.ndim == 2 else 1

    def numbers(self, cells: Float[np.ndarray, " *_"]) -> Float[np.ndarray, " *_"]:
        """Return cells as the numbers of the table: of a point on a circle, the number below the period."""
        return numbers_of_points(cells, self.period) if self.kind == "cyclic" else cells


def points_on_circle(numbers: Float[np.ndarray, " n"], period: float) -> Float[np.ndarray, "n 2"]:
    """Return numbers as points on a circle whose circumference is the period.

    Example:
        >>> points_on_circle(np.array([0.0, 6.0, 24.0]), 24.0).round(2).tolist()
        [[3.82, 0.0], [0.0, 3.82], [3.82, 0.0]]
    """
    turns = 2 * np.pi / period * (numbers % period)
    return np.asarray(period / (2 * np.pi) * np.stack([np.cos(turns), np.sin(turns)], axis=-1))


def numbers_of_points(points: Float[np.ndarray, "*n 2"], period: float) -> Float[np.ndarray, " *n"]:
    """Return the numbers from 0 to the period in the directions of some points, which need not be on the circle.

    Example:
        >>> float(numbers_of_points(points_on_circle(np.array([340.0, 350.0]), 360.0).sum(axis=0), 360.0).round(9))
        345.0
    """
    numbers = period / (2 * np.pi) * np.arctan2(points[..., 1], points[..., 0]) % period
    # Rounding makes nearly the period of 0.
    return np.asarray(np.where(numbers < period * (1 - 1e-12), numbers, 0.0))


def arc_lengths(chords: Float[np.ndarray, " *n"], period: float) -> Float[np.ndarray, " *n"]:
    """Return the distances along a circle of points at some distances in the plane.

    Example:
        >>> first, second = points_on_circle(np.array([23.0, 1.0]), 24)
        >>> arc_lengths(np.linalg.norm([first - second], axis=1), 24).round(9).tolist()
        [2.0]
    """
    return np.asarray(period / np.pi * np.arcsin(np.clip(np.pi / period * chords, 0.0, 1.0)))


def with_periods(table: pa.Table, periods: Mapping[str, float] | None) -> pa.Table:
    """Return a table with the periods of its cyclic columns in the metadata of their fields.

    Raises:
        DataError: There is no such column, or it does not hold numbers.
        OptionError: A period is not a positive number.
    """
    for name, period in (periods or {}).items():
        if name not in table.column_names:
            names = ", ".join(table.column_names)
            raise DataError(f"cyclic must name columns of the table, got {name!r}. Choose from {names}.")
        if isinstance(period, bool) or not isinstance(period, int | float) or not 0 < period < math.inf:
            raise OptionError(
                f"the period of {name!r} must be a positive number, got {period!r}. Pass, for example, 24."
            )
        if (kind := _kind_of(table.schema.field(name).type, name)) != "number":
            raise DataError(
                f"column {name!r} must hold numbers to be cyclic, got cells of kind {kind}. Convert it, or omit it in "
                "cyclic."
            )
        table = arrow_columns.with_metadata(table, name, PERIOD, repr(float(period)))
    return table


_KINDS_OF_CELLS: dict[str, Kind] = {
    "boolean": "boolean",
    "number": "number",
    **dict.fromkeys(("date", "date with a time zone", "time", "duration"), "timestamp"),
    **dict.fromkeys(("list of number", "list of boolean"), "vector"),
}


def _kind_of(type_: pa.DataType, name: str) -> Kind:
    kind = cell_kind(type_)
    if kind in ("text", "null"):
        return "category" if types.is_dictionary(type_) else "text"
    if kind in _KINDS_OF_CELLS:
        return _KINDS_OF_CELLS[kind]
    raise DataError(
        f"column {name!r} must hold texts, numbers, categories, booleans, dates or lists of numbers, got {type_}. "
        "Convert the column to one of these types."
    )


def _read_texts(chunked: pa.ChunkedArray, name: str, kind: Kind, folded: bool) -> Column:
    original = np.array(chunked.to_pylist(), dtype=object)
    normalize = fold if folded else str
    cells = np.array(["" if text is None else normalize(text) for text in original], dtype=object)
    return Column(name, kind, cells, cells == "", chunked.type, original=original)


def _read_numbers(chunked: pa.ChunkedArray, name: str, kind: Kind, origin: int | None) -> Column:
    chunks = arrow_columns.decoded_chunks(chunked)
    type_ = chunks[0].type if chunks else chunked.type
    missing = np.concatenate([np.zeros(0, bool), *map(arrow_columns.null_mask, chunks)])
    if kind == "timestamp":
        units = np.concatenate([np.zeros(0, np.int64), *map(arrow_columns.stored_numbers, chunks)])
        missing |= arrow_columns.beyond_python(units, type_)
        if origin is None:
            origin = int(units[~missing].min()) if not missing.all() else 0
        cells = np.where(missing, 0, units - origin).astype(np.float64)
        return Column(name, kind, cells, missing, type_, origin, source=chunked)
    # Integers beyond 2^53 are averaged as the nearest float64; `integers` compares them exactly.
    numbers = [arrow_columns.stored_numbers(chunk).astype(np.float64) for chunk in chunks]
    cells = np.concatenate([np.zeros(0), *numbers])
    missing |= ~np.isfinite(cells)
    return Column(name, kind, np.where(missing, 0.0, cells), missing, type_, source=chunked)


def _read_vectors(chunked: pa.ChunkedArray, name: str, width: int | None) -> Column:
    fixed = types.is_fixed_size_list(chunked.type)
    rows = [_nullable_matrix(chunk) if fixed else chunk.to_pylist() for chunk in chunked.chunks]
    widths = {len(row) for chunk in rows for row in chunk if row is not None} | {width or 0} - {0}
    if len(widths) > 1:
        raise DataError(
            f"column {name!r} must hold vectors of one length, got lists of {min(widths)} to {max(widths)} numbers. "
            "Truncate or pad the vectors."
        )
    width = max(widths, default=getattr(chunked.type, "list_size", 1))
    blank = [np.nan] * width
    matrices = [
        chunk
        if isinstance(chunk, np.ndarray)
        else np.array([blank if row is None else row for row in chunk], np.float64).reshape(len(chunk), width)
        for chunk in rows
    ]
    cells = np.concatenate([np.zeros((0, width)), *matrices])
    missing = ~np.asarray(np.isfinite(cells).all(axis=1))
    exact = types.is_floating(chunked.type.value_type)
    cells = np.where(missing[:, None], 0.0, cells)
    return Column(name, "vector", cells, missing, chunked.type, source=None if exact else chunked)


def _take(source: pa.ChunkedArray, rows: Int[np.ndarray, " n"]) -> pa.ChunkedArray:
    """Return the cells of some rows. A few runs of rows are sliced, as `take` imports pyarrow.compute and pandas."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    if len(starts) > _MOST_SLICES:
        return source.take(rows)
    lengths = np.diff(starts, append=len(rows))
    runs = [source.slice(row, length) for row, length in zip(rows[starts].tolist(), lengths.tolist(), strict=True)]
    return pa.chunked_array([chunk for run in runs for chunk in run.chunks], type=source.type)


def _vector_integers(
    source: pa.ChunkedArray, missing: Bool[np.ndarray, " rows"], width: int
) -> Int[np.ndarray, "rows width"]:
    """Return the integers of the elements of a column of vectors, side by side, with 0 for missing vectors."""
    element = source.type.value_type
    words = np.zeros((len(missing), width), np.int64)
    if not missing.all():
        rows = [row for row, absent in zip(source.to_pylist(), missing, strict=True) if not absent]
        flat = pa.array([number for row in rows for number in row], element)
        words[~missing] = exact_cells.cell_integers(flat).reshape(len(rows), width)
    return words


def _nullable_matrix(chunk: pa.Array) -> Float[np.ndarray, "rows width"]:
    """Return an Arrow array of fixed-size lists as a float64 matrix, with NaN in place of nulls."""
    width = chunk.type.list_size
    # `values` keeps the slots of null rows, which `flatten` would drop.
    values = chunk.values.slice(chunk.offset * width, len(chunk) * width)
    numbers = arrow_columns.stored_numbers(values).astype(np.float64)
    cells = np.where(arrow_columns.null_mask(values), np.nan, numbers).reshape(len(chunk), width)
    return np.where(arrow_columns.null_mask(chunk)[:, None], np.nan, cells)
