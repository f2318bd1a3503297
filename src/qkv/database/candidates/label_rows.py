"""The rows of a table that the labels of an approximate index name, and the rows that the index does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Int
from qkv.database.execute.row_reader import StoredRows
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.store import Store

__all__ = ["MOST_UNKNOWN", "LabelRows", "map_labels"]

MOST_UNKNOWN = 100_000
"""Maximum number of rows that the index does not have. Each group of queries compares all of them."""

# After these operations the rows of a version are still the first rows of the table, in the same order.
_KEEP_ORDER = ("create", "append", "compact", "createindex")


@dataclass(frozen=True, eq=False)
class LabelRows:
    """The rows that labels name.

    Attributes:
        labels: the labels in ascending order.
        rows: the row of each label; −1 if there is none any more.
        unknown: the rows that the index does not have, in ascending order.
    """

    labels: Int[np.ndarray, " n"]
    rows: Int[np.ndarray, " n"]
    unknown: Int[np.ndarray, " m"]

    def rows_of(self, labels: Int[np.ndarray, "q count"]) -> Int[np.ndarray, "q count"]:
        """Return the rows that labels name; −1 where there is none."""
        count = len(self.labels)
        if not count:
            return np.full(labels.shape, -1)
        if self.rows is self.labels and self.labels[-1] == count - 1:  # 0, 1, 2 …
            return np.where((labels >= 0) & (labels < count), labels, -1)
        place = np.minimum(np.searchsorted(self.labels, labels), count - 1)
        return np.where(self.labels[place] == labels, self.rows[place], -1)


def map_labels(
    labels: Int[np.ndarray, " n"], table: pa.Table | StoredRows, name: str, id: str | None, version: int | None
) -> LabelRows:
    """Return the rows that labels name, and those that the index does not have.

    Args:
        labels: all labels of the index.
        table: the rows.
        name: the name of the table in messages.
        id: the column of labels; None: labels are indices of rows.
        version: the version of the store whose rows the index has; None for a table in memory, or with `id`.

    Raises:
        OptionError: A store needs `version` or `id`.
        DataError: The labels do not fit the rows, rows were deleted, or too many rows are not in the index.
    """
    labels = np.sort(labels)
    repeated = labels[1:][labels[1:] == labels[:-1]]
    if len(repeated):
        raise DataError(f"labels of the index must be different, got {repeated[0]} twice. Rebuild the index.")
    if id is not None:
        mapped = _rows_by_id(labels, _read_ids(table, id), id)
    else:
        rows = table.num_rows
        if isinstance(table, StoredRows):
            rows = _unchanged_rows(table.store, version, name)
        if len(labels) and not 0 <= labels[0] <= labels[-1] < rows:
            raise DataError(
                f"labels of the index must be indices of the {rows:,} rows of {name}, got {labels[0]} to "
                f"{labels[-1]}. Name the column that holds them by id."
            )
        mapped = LabelRows(labels, labels, np.setdiff1d(np.arange(table.num_rows), labels, assume_unique=True))
    if len(mapped.unknown) > MOST_UNKNOWN:
        raise DataError(
            f"at most {MOST_UNKNOWN:,} rows of {name} may be missing from the index, got {len(mapped.unknown):,}. "
            "Add them to the index."
        )
    return mapped


def _read_ids(table: pa.Table | StoredRows, id: str) -> Int[np.ndarray, " rows"]:
    """Return the cells of a column of whole numbers; the smallest number in place of missing cells."""
    import pyarrow as pa

    if id not in table.column_names:
        raise DataError(f"id must be a column of the table, got {id!r}. Its columns: {', '.join(table.column_names)}.")
    if isinstance(table, StoredRows):
        chunks = [tile.table.column(id) for tile in table.tiles((id,))]
        column = pa.chunked_array([chunk for each in chunks for chunk in each.chunks], chunks[0].type)
    else:
        column = table.column(id)
    if not pa.types.is_integer(column.type):
        raise DataError(f"id must be a column of whole numbers, got {id!r} of type {column.type}.")
    return np.asarray(column.fill_null(np.iinfo(np.int64).min) if column.null_count else column).astype(np.int64)


def _rows_by_id(labels: Int[np.ndarray, " n"], ids: Int[np.ndarray, " rows"], id: str) -> LabelRows:
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    twice = sorted_ids[1:][(sorted_ids[1:] == sorted_ids[:-1]) & (sorted_ids[1:] > np.iinfo(np.int64).min)]
    if len(twice):
        raise DataError(f"the cells of id {id!r} must be different, got {twice[0]} twice.")
    place = np.minimum(np.searchsorted(sorted_ids, labels), len(ids) - 1)
    rows = np.where(sorted_ids[place] == labels, order[place], -1)
    known = np.zeros(len(ids), bool)
    known[rows[rows >= 0]] = True
    return LabelRows(labels, rows, np.flatnonzero(~known))


def _unchanged_rows(store: Store, version: int | None, name: str) -> int:
    """Return the number of rows of an earlier version, which are the first rows of the store.

    Raises:
        OptionError: There is no version.
        DataError: The version does not exist, or rows were deleted since.
    """
    if version is None:
        raise OptionError(
            f"version must be the version of {name} whose rows the index has, got None. Pass version="
            f"{store.version} if it has those of the open version, or the column of labels by id."
        )
    if version == store.version:
        return len(store)
    since = {each.number: each for each in store.versions() if version <= each.number <= store.version}
    changed = [each for each in since.values() if each.number > version and each.operation not in _KEEP_ORDER]
    if version not in since or changed or len(since) != store.version - version + 1:
        reason = "a version in between cannot be read"
        if changed:
            reason = f"version {changed[0].number} is the result of {changed[0].operation}"
        raise DataError(
            f"version must be one since which rows were only appended to {name}, got {version}, but {reason}. Build "
            "the index from the open version, or name the column of labels by id."
        )
    return since[version].rows
