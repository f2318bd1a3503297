"""Parsing of queries, such as texts, numbers, tuples, records and data frames, into one array per key column.

With one key column, a query is one value. With several key columns, it is a tuple in the order of the columns, a
record with their names, or a text with commas. A list holds several queries. A missing query (None, NaN, NaT, "") has
no match.
"""

from __future__ import annotations

import csv
import numbers as number_types
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.core.arrays import plain_array
from qkv.core.cell_kinds import cell_kind, is_missing, object_kind, plain_scalar
from qkv.core.progress import checkpoint
from qkv.core.times import numeric_order
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.encoders import arrow_columns, exact_cells
from qkv.encoders.arrow_columns import category_text, to_python, to_records
from qkv.encoders.columns import Column, fold, points_on_circle
from qkv.errors import QueryError

Cell = str | float | np.ndarray | None
"""The parsed value of a query for one key column; None if it is missing."""


@dataclass(frozen=True, eq=False)
class QueryCells:
    """The parsed cells of queries for one key column.

    Attributes:
        cells: `(q,)` or `(q, width)` in the form of `Column.cells`.
        integers: `(q, words)` in the form of `Column.integers`.
        unequal: `(q,)`, True for the queries that no cell of the column's type can equal.
        original: `(q,)` of texts as given, not folded; None for other kinds.
    """

    cells: Shaped[np.ndarray, "q ..."]
    integers: Int[np.ndarray, "q words"] | None = None
    unequal: Bool[np.ndarray, " q"] | None = None
    original: Shaped[np.ndarray, " q"] | None = None

    def take(self, indices: Int[np.ndarray, " n"]) -> QueryCells:
        """Return the cells of the queries with the given indices."""
        arrays = (self.cells, self.integers, self.unequal, self.original)
        return QueryCells(*(None if array is None else array[indices] for array in arrays))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Queries:
    """Parsed queries, with one array of cells per key column.

    Attributes:
        originals: the queries as given, for display.
        columns: for each key column, the parsed cells.
        missing: `(q,)`, True where some cell is missing.
        single: whether one query was given rather than a list.
        missing_cells: for each key column, `(q,)`, True where its cell is missing.
        errors: for each query the reason why it does not fit the key, or an empty text; such a query is missing.
            Empty if errors are raised.
    """

    originals: tuple[object, ...]
    columns: tuple[QueryCells, ...]
    missing: Bool[np.ndarray, " q"]
    single: bool
    missing_cells: tuple[Bool[np.ndarray, " q"], ...] = ()
    errors: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.originals)

    def slice(self, start: int, stop: int) -> Queries:
        """Return the queries with the indices from `start` to `stop`, exclusive."""
        return self.take(np.arange(len(self))[start:stop])

    def take(self, indices: Int[np.ndarray, " n"]) -> Queries:
        """Return the queries with the given indices."""
        columns = tuple(column.take(indices) for column in self.columns)
        missing_cells = tuple(column[indices] for column in self.missing_cells)
        originals = tuple(self.originals[index] for index in indices.tolist())
        errors = tuple(self.errors[index] for index in indices.tolist()) if self.errors else ()
        return Queries(originals, columns, self.missing[indices], False, missing_cells, errors)

    @staticmethod
    def parse(queries: object, columns: Sequence[Column], folded: bool = True, on_bad_query: str = "refuse") -> Queries:
        """Parse one query or several queries into one array of cells per key column.

        Raises:
            QueryError: A query does not fit the kind of its key column, or has a wrong number of parts.
        """
        if on_bad_query == "report" and isinstance(queries, list):
            # Two lines without commas are two queries, also where a key of two columns makes a list of two one query.
            given, single = list(queries), False
        else:
            given, single = split_queries(queries, columns)
        rows: list[tuple[Cell, ...]] = []
        parts_given: list[tuple[object, ...]] = []
        errors = []
        for query in given:
            checkpoint()
            try:
                parts = tuple(_as_number(*pair) for pair in zip(_parts(query, columns), columns, strict=True))
                cells_of_query = zip(parts, columns, strict=True)
                rows.append(tuple(_parse_cell(part, column, folded) for part, column in cells_of_query))
                parts_given.append(parts)
                errors.append("")
            except QueryError as error:
                if on_bad_query != "report":
                    raise
                rows.append((None,) * len(columns))
                parts_given.append(rows[-1])
                errors.append(str(error))
        cells, missing_cells = [], []
        for index, column in enumerate(columns):
            checkpoint()
            parsed = [row[index] for row in rows]
            missing_cells.append(np.array([cell is None for cell in parsed], dtype=bool))
            own = [parts[index] for parts in parts_given]
            integers, unequal = _integers(own, missing_cells[-1], column)
            original = np.array(list(map(_text, own)), object) if column.original is not None else None
            cells.append(QueryCells(_stack(parsed, column), integers, unequal, original))
        checkpoint()
        missing = np.logical_or.reduce(missing_cells)
        originals = tuple(display_form(query, [column.name for column in columns]) for query in given)
        return Queries(originals, tuple(cells), missing, single, tuple(missing_cells), tuple(errors))


def split_queries(queries: object, columns: Sequence[Column]) -> tuple[list[object], bool]:
    """Return the queries as a list, and whether `queries` is a single query rather than a list of queries.

    Example:
        >>> split_queries("Li", ["name"]), split_queries(["Li", "Hu"], ["name"])
        ((['Li'], True), (['Li', 'Hu'], False))
    """
    queries = _without_scalars(queries)
    if hasattr(queries, "__arrow_c_stream__") and not isinstance(queries, (str, bytes)):
        return _frame_rows(queries, columns), False
    queries = plain_array(queries)
    if isinstance(queries, np.ndarray):
        # `tolist` makes integers of dates and durations in nanoseconds.
        queries = list(queries) if queries.dtype.kind in "OmM" else queries.tolist()
    elif hasattr(queries, "to_pylist"):
        queries = to_python(queries)
    elif hasattr(queries, "to_numpy") and hasattr(queries, "__len__"):  # a Series of pandas before 3.0
        queries = to_python(pa.array(queries))
    if queries is None or isinstance(queries, (str, bytes, Mapping)) or not isinstance(queries, Sequence):
        return [queries], True
    if len(columns) > 1:
        # A flat tuple holds the parts of one query, and so does a flat list unless it may be a list of texts.
        flat = not any(isinstance(part, (list, tuple, Mapping, np.ndarray)) for part in queries)
        with_commas = any(isinstance(part, str) and "," in part for part in queries)
        parts = len(queries) == len(columns) or not any(isinstance(part, str) for part in queries)
        if _has_vectors(queries, columns):
            return [tuple(queries)], True
        if queries and flat and not with_commas and parts and any(part is not None for part in queries):
            return [tuple(queries)], True
    elif getattr(columns[0], "kind", "") == "vector" and queries and isinstance(queries[0], number_types.Real):
        return [queries], True
    return list(queries), False


def _without_scalars(query: Any) -> object:
    """Return queries with Python objects in place of pyarrow scalars."""
    if isinstance(query, pa.Scalar):
        return to_python(pa.array([query]))[0]
    if type(query) is dict:
        return {name: _without_scalars(cell) for name, cell in query.items()}
    return type(query)(map(_without_scalars, query)) if type(query) in (list, tuple) else query


def _has_vectors(parts: Sequence[object], columns: Sequence[Column]) -> bool:
    """Return whether `parts` are those of one query, with vectors for exactly the key columns of vectors."""
    kinds = [getattr(column, "kind", "") == "vector" for column in columns]
    return len(parts) == len(columns) and any(kinds) and kinds == [_is_vector(part) for part in parts]


def _is_vector(part: object) -> bool:
    if isinstance(part, np.ndarray):
        return part.ndim == 1 and part.dtype != object
    return isinstance(part, (list, tuple)) and all(isinstance(number, number_types.Real) for number in part)


def _frame_rows(frame: object, columns: Sequence[Column]) -> list[object]:
    if not hasattr(frame, "columns") and not isinstance(frame, pa.Table):
        return to_python(pa.chunked_array(frame))
    table = pa.table(frame)
    names = [column.name for column in columns]
    absent = [name for name in names if name not in table.column_names]
    if absent:
        raise QueryError(
            f"queries must have the key column {absent[0]!r}, got the columns {', '.join(table.column_names)}. "
            "Give the columns of the queries the same names as the key columns."
        )
    if len(names) == 1:
        return to_python(table.column(names[0]))
    return list(to_records(table.select(names)))


def _parts(query: object, columns: Sequence[Column]) -> tuple[object, ...]:
    names = [column.name for column in columns]
    if isinstance(query, Mapping):
        absent = [name for name in names if name not in query]
        if absent:
            raise QueryError(
                f"the query must have the key column {absent[0]!r}, got {dict(query)!r}. Add the column to the record."
            )
        return tuple(query[name] for name in names)
    if len(columns) == 1:
        return (query,)
    if query is None or (isinstance(query, str) and not query.strip()):
        return (None,) * len(columns)
    # A part that contains a comma is quoted, as in CSV: '"Doe, John",3.5'.
    parts = split_text(query) if isinstance(query, str) else query
    if not isinstance(parts, (Sequence, np.ndarray)) or len(parts) != len(columns):
        count = len(parts) if isinstance(parts, (Sequence, np.ndarray)) else 1
        text = " ".join(repr(query).split())
        shown = text if len(text) < 80 else text[:77] + "…"
        raise QueryError(
            f"the query must have {len(columns)} parts, one for each of {', '.join(names)}, got {count} in {shown}. "
            f"Pass one value per key column, such as {','.join(_example(c) for c in columns)}."
        )
    return tuple(parts)


def split_text(query: str) -> list[str]:
    """Return the parts of a text with commas, in which parts may be quoted as in CSV.

    Raises:
        QueryError: The text has an open quotation mark or a line break outside of quotation marks.
    """
    try:
        return next(csv.reader([query], skipinitialspace=True))
    except csv.Error as error:
        shown = repr(query) if len(query) < 80 else repr(query[:77] + "…")
        raise QueryError(
            f"the query must be one line of CSV, got {shown}: {error}. Quote parts that contain commas."
        ) from None


def _as_number(value: object, column: Column) -> object:
    """Return the number in a text that has the number format of a column; anything else as it is."""
    if column.number_format is None or not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return column.number_format.parse(value) or value
    # 1.203 has separated thousands where commas are decimal separators.
    return value if column.number_format.decimal == "." else column.number_format.parse(value) or value


def _parse_cell(value: Any, column: Column, folded: bool) -> Cell:
    if is_missing(value):
        return None
    value = plain_scalar(value)
    if column.traits.text:
        value = _text(value)
        if column.kind == "category" and object_kind(type(value)):
            value = category_text(value)  # of a category that is no text, see `with_category_texts`
        if not isinstance(value, str):
            raise _kind_error(value, column)
        return (fold(value) if folded else value) or None
    if isinstance(value, str) and not value.strip():
        return None
    if isinstance(value, bool) and column.kind != "boolean":
        raise _kind_error(value, column)
    if column.kind == "timestamp":
        _check_time_zone(value, column)
    try:
        if column.kind == "timestamp":
            return float(arrow_columns.to_units(value, column.type, column.date_format) - column.origin)
        if column.kind == "boolean":
            return exact_cells.BOOLEANS[value.strip().lower() if isinstance(value, str) else value]
        if isinstance(value, str) and "_" in value:
            raise ValueError  # Python reads 3_5 as 35
        parsed = _vector(value, column) if column.kind == "vector" else float(value)
        if not np.isfinite(parsed).all():
            raise ValueError
        return parsed
    except (ValueError, TypeError, OverflowError, KeyError):
        raise _kind_error(value, column) from None


def _text(value: object) -> object:
    """Return a UUID as a text, and other objects as they are."""
    return str(value) if isinstance(value, uuid.UUID) else value


def _check_time_zone(value: object, column: Column) -> None:
    """Raise a `QueryError` if a query has a time zone and the timestamps of its key column have none."""
    if getattr(column.type, "tz", None) is None and arrow_columns.has_time_zone(value, column.date_format):
        raise QueryError(
            f"the query for the key {column.name!r} must be a timestamp without a time zone, because the timestamps of "
            f"this column have none, got {str(value)!r}. Use, for example, {_example(column)}."
        )


def _integers(
    values: Sequence[object], missing: Bool[np.ndarray, " q"], column: Column
) -> tuple[Int[np.ndarray, "q words"] | None, Bool[np.ndarray, " q"] | None]:
    """Return the integers of the cells of queries for a column, and whether no cell can equal a query."""
    width = column.integers_per_cell
    if not width:
        return None, None
    words, unequal = np.zeros((len(values), width), np.int64), np.zeros(len(values), bool)
    for index in np.flatnonzero(~missing).tolist():
        value = values[index]
        if column.kind == "vector":
            elements = [exact_cells.query_integers(each, column.type.value_type) for each in _elements(value)]
            found = None if None in elements else tuple(word for each in elements for word in each or ())
        else:
            found = exact_cells.query_integers(plain_scalar(value), column.type, column.date_format)
        if found is None:
            unequal[index] = True
        else:
            words[index] = found
    return words, unequal


def _elements(value: Any) -> Sequence[str | float]:
    return value.strip().strip("[]").replace(",", " ").split() if isinstance(value, str) else value


def _vector(value: str | Sequence[float], column: Column) -> Float[np.ndarray, " width"]:
    if any(isinstance(number, bool) for number in value) and not pa.types.is_boolean(column.type.value_type):
        raise ValueError(value)
    return np.array([float(number) for number in _elements(value)]).reshape(column.width)


def _stack(parsed: list[Cell], column: Column) -> Shaped[np.ndarray, "q ..."]:
    if column.traits.text:
        return np.array([cell or "" for cell in parsed], dtype=object)
    if column.kind == "vector":
        blank = np.zeros(column.width)
        stacked = [cell if cell is not None else blank for cell in parsed]
        return np.array(stacked, dtype=np.float64).reshape(len(parsed), column.width)
    numbers = np.array([0.0 if cell is None else cell for cell in parsed], dtype=np.float64)
    return points_on_circle(numbers, column.period) if column.kind == "cyclic" else numbers


def _kind_error(value: object, column: Column) -> QueryError:
    expected = {"duration": "a duration, in days", "time": "a time of day"}.get(cell_kind(column.type))
    expected = expected or column.traits.expected + f" of {column.width} finite elements" * (column.kind == "vector")
    form, first = column.date_format, {"d": ", day first", "m": ", month first"}
    hint = f" in the format {form}{first.get(numeric_order(form)[:1], '')}" if form else ""
    text = repr(value[:80] if isinstance(value, str | list | tuple) else value)
    text = text if len(text) < 80 else text[:77] + "…"
    return QueryError(
        f"the query for the key {column.name!r} must be {expected}{hint}, got {text}. Use, for example, "
        f"{_example(column)}."
    )


def _example(column: Column) -> str:
    """Return a cell of a column as a user would type it, to show in an error message."""
    present = np.flatnonzero(~column.missing)
    if not len(present):
        return column.traits.example
    row = int(present[len(present) // 2])
    if column.kind == "boolean":
        return "true"
    if column.kind == "vector":
        ends = ", ".join(f"{number:.3g}" for number in column.cells[row][:4])
        return f"[{ends}" + (", …]" if column.width > 4 else "]")
    return column.text(row)


def display_form(query: object, names: Sequence[str]) -> object:
    """Return a query as answers show it: the parts of a record or a list as a tuple."""
    if isinstance(query, Mapping):
        return tuple(query.get(name) for name in names) if len(names) > 1 else query.get(names[0])
    return tuple(query) if isinstance(query, (list, np.ndarray)) else query
