"""Read labelled pairs, each of which states whether a left row and a right row match.

Labelled pairs are a table with the columns `left`, `right` and `match`, or `ltable_id`, `rtable_id` and `label` as in
the files of Magellan and DeepMatcher. Without the third column, the table lists all matches. A row is identified by
its value in the id column, if there is an id column, otherwise by its number from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from qkv.database.io.sources import describe, read
from qkv.errors import DataError
from qkv.join.compared_columns import PairIntegers

_NAMES = (("left", "right", "match"), ("ltable_id", "rtable_id", "label"))
_TRUE = {"1", "true", "yes", "match", "1.0"}
_FALSE = {"0", "false", "no", "0.0"}


@dataclass(frozen=True, eq=False)
class Labels:
    """Labelled pairs of rows, as row numbers of the left and the right table with a label for each pair.

    Attributes:
        rows, keys: left and right row of each pair.
        match: 1 for a match, 0 otherwise.
        complete: whether the pairs are a complete list of matches, without non-matches.
    """

    rows: PairIntegers
    keys: PairIntegers
    match: PairIntegers
    complete: bool


def row_numbers(table: pa.Table, column: str | None, where: str) -> dict[str, int] | None:
    """Return a dict from each id in the column `column` to its row number, or None if `column` is None.

    Raises:
        DataError: an id is missing or occurs more than once.
    """
    if column is None:
        return None
    cells = table.column(column).to_pylist()
    if None in cells:
        raise DataError(
            f"the id column {column!r} of {where} must have no missing cells, got a missing cell in "
            f"row {cells.index(None)}. Fill the cell, or choose another id column."
        )
    found: dict[str, int] = {}
    for row, cell in enumerate(cells):
        if found.setdefault(str(cell).strip(), row) != row:
            raise DataError(
                f"the id column {column!r} of {where} must have unique cells, got {cell!r} more than once. "
                "Choose another id column."
            )
    return found


def read_labels(
    source: object,
    sizes: tuple[int, int],
    ids: tuple[dict[str, int] | None, dict[str, int] | None],
    *,
    matches_only: bool = True,
) -> Labels:
    """Read labelled pairs, and translate their ids to row numbers of the two tables.

    Args:
        source: path, table or list of records.
        sizes: numbers of rows of both tables.
        ids: row numbers by id for both tables, from `row_numbers`.
        matches_only: whether a table without the third column is read as a list of all matches, or refused.

    Raises:
        DataError: a column is missing, a row is not in its table, or a label is neither 0 nor 1.
    """
    name = describe(source)
    if isinstance(source, list) and not source:
        return Labels(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), False)
    table = read(source)
    lowered = {column.lower(): column for column in table.column_names}
    names = next((names for names in _NAMES if set(names[:2]) <= set(lowered)), None)
    if names is None:
        raise DataError(
            f"labelled pairs in {name} must have the columns left and right, or ltable_id and rtable_id, got the "
            f"columns {', '.join(table.column_names)}. Rename the columns."
        )
    rows, keys = (
        _rows(table.column(lowered[column]).to_pylist(), own, size, f"column {column} of {name}")
        for column, own, size in zip(names[:2], ids, sizes, strict=True)
    )
    if names[2] not in lowered:
        if not matches_only:
            raise DataError(
                f"labels in {name} must have the column {names[2]}, got the columns {', '.join(table.column_names)}. "
                "Add it, with 1 for a match and 0 for a non-match."
            )
        return Labels(rows, keys, np.ones(len(rows), int), True)
    cells = table.column(lowered[names[2]]).to_pylist()
    return Labels(rows, keys, np.array([_label(cell, i, name) for i, cell in enumerate(cells)], int), False)


def _rows(cells: list[object], ids: dict[str, int] | None, size: int, where: str) -> PairIntegers:
    found = np.zeros(len(cells), int)
    for place, cell in enumerate(cells):
        text = str(cell).strip()
        line = f"line {place + 1} of {where}"
        if ids is not None and text not in ids:
            raise DataError(
                f"the id in {line} must occur in the id column of its table, got {cell!r}. Correct or remove the pair."
            )
        if ids is None and not (text.isdecimal() and int(text) < size):
            raise DataError(
                f"the row number in {line} must be an integer from 0 to {size - 1}, got {cell!r}. Number rows from 0, "
                "or name the column of ids: id='…' in Python, --id COLUMN on the command line."
            )
        found[place] = int(text) if ids is None else ids[text]
    return found


def _label(cell: object, place: int, name: str) -> int:
    text = str(cell).strip().lower()
    if text not in _TRUE | _FALSE:
        raise DataError(
            f"the label in line {place + 1} of {name} must be 0 or 1, got {cell!r}. Write 1 for a match, and 0 for a "
            "non-match."
        )
    return int(text in _TRUE)
