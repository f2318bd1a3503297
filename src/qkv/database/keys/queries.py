"""Queries as they come (a text, a number, a tuple, a record, a list, a frame) become one cell per key column.

With one key column a query is a cell. With several it is a tuple in their order, a record by their names,
or a text with commas, as on the command line. A list is many queries; a missing query (None, NaN, "") is
answered "no match".
"""

import csv
import math
import numbers as number_types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.database.io import arrow_columns
from qkv.database.keys.columns import Column, fold
from qkv.errors import QueryError

__all__ = ["Queries", "split"]

_YES = {"true", "t", "yes", "y", "1"}
_NO = {"false", "f", "no", "n", "0"}


@dataclass(frozen=True, eq=False)
class Queries:
    """Parsed queries.

    Fields:
        asked: what was asked, one per query, for showing.
        cells: for each key column, `(q,)` or `(q, width)` in the form of `Column.cells`.
        missing: `(q,)`, where some cell is missing.
        single: one query was asked, not a list of them.
        absent: for each key column, `(q,)`, where its cell is missing.
    """

    asked: tuple[Any, ...]
    cells: tuple[np.ndarray, ...]
    missing: np.ndarray
    single: bool
    absent: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.asked)

    def part(self, start: int, stop: int) -> "Queries":
        """The queries from `start` up to `stop`."""
        cells = tuple(column[start:stop] for column in self.cells)
        absent = tuple(column[start:stop] for column in self.absent)
        return Queries(self.asked[start:stop], cells, self.missing[start:stop], False, absent)

    @staticmethod
    def parse(queries: Any, columns: Sequence[Column], folded: bool = True) -> "Queries":
        """Read queries for these key columns.

        Raises:
            QueryError: a query is of another kind than its key, or has another number of parts.
        """
        asked, single = split(queries, columns)
        rows = [_parts(query, columns) for query in asked]
        cells, absent = [], []
        for index, column in enumerate(columns):
            read = [_cell(row[index], column, folded) for row in rows]
            absent.append(np.array([cell is None for cell in read], dtype=bool))
            cells.append(_stack(read, column))
        missing = np.logical_or.reduce(absent)
        shown = tuple(_shown(query) for query in asked)
        return Queries(shown, tuple(cells), missing, single, tuple(absent))


def split(queries: Any, columns: Sequence[Column]) -> tuple[list[Any], bool]:
    """The list of queries, and whether one query was asked rather than a list.

    Example:
        >>> split("Li", ["name"]), split(["Li", "Hu"], ["name"])
        ((['Li'], True), (['Li', 'Hu'], False))
    """
    if hasattr(queries, "__arrow_c_stream__") and not isinstance(queries, (str, bytes)):
        return _from_frame(queries, columns), False
    if isinstance(queries, np.ndarray):
        queries = queries.tolist() if queries.dtype != object else list(queries)
    elif hasattr(queries, "to_pylist"):
        queries = queries.to_pylist()
    if queries is None or isinstance(queries, (str, bytes, Mapping)) or not isinstance(queries, Sequence):
        return [queries], True
    if len(columns) > 1:
        # A flat tuple is the parts of one query, and so is a flat list unless it may be a list of texts.
        flat = not any(isinstance(part, (list, tuple, Mapping, np.ndarray)) for part in queries)
        with_commas = any(isinstance(part, str) and "," in part for part in queries)
        parts = len(queries) == len(columns) or not any(isinstance(part, str) for part in queries)
        if queries and flat and not with_commas and parts and any(part is not None for part in queries):
            return [tuple(queries)], True
    elif getattr(columns[0], "kind", "") == "vector" and queries and isinstance(queries[0], number_types.Real):
        return [queries], True
    return list(queries), False


def _from_frame(frame: Any, columns: Sequence[Column]) -> list[Any]:
    import pyarrow as pa

    if not hasattr(frame, "columns") and not isinstance(frame, pa.Table):
        return list(pa.chunked_array(frame).to_pylist())
    table = pa.table(frame)
    names = [column.name for column in columns]
    absent = [name for name in names if name not in table.column_names]
    if absent:
        raise QueryError(
            f"the queries have no column {absent[0]!r}; they have {', '.join(table.column_names)}. "
            "Name their columns as the key's."
        )
    if len(names) == 1:
        return list(table.column(names[0]).to_pylist())
    return list(table.select(names).to_pylist())


def _parts(query: Any, columns: Sequence[Column]) -> tuple[Any, ...]:
    names = [column.name for column in columns]
    if isinstance(query, Mapping):
        absent = [name for name in names if name not in query]
        if absent:
            raise QueryError(f"the query {dict(query)!r} lacks {absent[0]!r}. Give {', '.join(names)}.")
        return tuple(query[name] for name in names)
    if len(columns) == 1:
        return (query,)
    if query is None or (isinstance(query, str) and not query.strip()):
        return (None,) * len(columns)
    # Quotes guard a comma inside a part, as in CSV: '"Doe, John",3.5'.
    parts = next(csv.reader([query], skipinitialspace=True)) if isinstance(query, str) else query
    if not isinstance(parts, (Sequence, np.ndarray)) or len(parts) != len(columns):
        count = len(parts) if isinstance(parts, (Sequence, np.ndarray)) else 1
        raise QueryError(
            f"the query {query!r} has {count} part{'s' * (count != 1)}, and the key has {len(columns)}: "
            f"{', '.join(names)}. Give one for each, such as {','.join(_example(c) for c in columns)}."
        )
    return tuple(parts)


def _cell(value: Any, column: Column, folded: bool) -> Any:
    """The cell that a query's part means, or None where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if column.kind in ("text", "category"):
        if not isinstance(value, str):
            raise _misfit(value, column)
        return (fold(value) if folded else value) or None
    if isinstance(value, str) and not value.strip():
        return None
    try:
        read = {"vector": _vector, "timestamp": _moment, "boolean": _boolean, "number": _number}[column.kind]
        return read(value, column)
    except (ValueError, TypeError, OverflowError):
        raise _misfit(value, column) from None


def _number(value: Any, column: Column) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _boolean(value: Any, column: Column) -> float:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in _YES | _NO:
            raise ValueError
        return float(word in _YES)
    if value not in (0, 1):
        raise ValueError
    return float(value)


def _moment(value: Any, column: Column) -> float:
    return float(arrow_columns.to_units(value, column.type) - column.origin)


def _vector(value: Any, column: Column) -> np.ndarray:
    if isinstance(value, str):
        value = value.strip().strip("[]").replace(",", " ").split()
    vector = np.array([float(number) for number in value])
    if vector.shape != (column.cells.shape[1],) or not np.isfinite(vector).all():
        raise ValueError
    return vector


def _stack(read: list[Any], column: Column) -> np.ndarray:
    if column.kind in ("text", "category"):
        return np.array([cell or "" for cell in read], dtype=object)
    if column.kind == "vector":
        blank = np.zeros(column.cells.shape[1])
        stacked = [cell if cell is not None else blank for cell in read]
        return np.array(stacked, dtype=np.float64).reshape(len(read), column.cells.shape[1])
    return np.array([0.0 if cell is None else cell for cell in read], dtype=np.float64)


def _misfit(value: Any, column: Column) -> QueryError:
    wanted = {
        "text": "text",
        "category": "text",
        "number": "numbers",
        "boolean": "true and false",
        "timestamp": "timestamps",
        "vector": f"vectors of {column.cells.shape[-1]} numbers",
    }[column.kind]
    shown = repr(value) if len(repr(value)) < 80 else repr(value)[:77] + "…"
    return QueryError(
        f"the query {shown} does not fit the key {column.name!r}, which holds {wanted}. "
        f"Ask with something like {_example(column)}."
    )


def _example(column: Column) -> str:
    """A cell of the column, as one would type it."""
    present = np.flatnonzero(~column.missing)
    if not len(present):
        return {"text": "a word", "category": "a word", "boolean": "true"}.get(column.kind, "1.5")
    row = int(present[len(present) // 2])
    if column.original is not None:
        return str(column.original[row])
    if column.kind == "timestamp":
        return str(column.timestamp(column.cells[row]))
    if column.kind == "boolean":
        return "true"
    if column.kind == "vector":
        return (
            "["
            + ", ".join(f"{number:.3g}" for number in column.cells[row][:4])
            + (", …]" * (column.cells.shape[1] > 4) or "]")
        )
    return f"{column.cells[row]:.6g}"


def _shown(query: Any) -> Any:
    if isinstance(query, Mapping):
        return tuple(query.values()) if len(query) > 1 else next(iter(query.values()))
    return tuple(query) if isinstance(query, (list, np.ndarray)) else query
