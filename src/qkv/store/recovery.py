"""Recovery of the rows of a damaged file from the files with which a compaction merged it, or from which it was merged.

A compaction changes no row and no order. So the rows at the same positions of the version before it and of its own
version are the same, and one is read where the file of the other is damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Int
from qkv.store import row_files
from qkv.store.arrow_verification import FileUse
from qkv.store.manifest import Manifest, RowFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Recovery"]


class Recovery:
    """The rows of damaged files that other files of a store contain.

    Args:
        folder: the folder of the files of rows.
        versions: the manifests of all versions with all their files, by number in ascending order.
        uses: the use of each file by the versions.
        broken: the names of the damaged files.
        schema: the schema of the rows.
    """

    def __init__(
        self,
        folder: Path,
        versions: Mapping[int, Manifest],
        uses: Mapping[str, FileUse],
        broken: Collection[str],
        schema: pa.Schema,
    ) -> None:
        self._folder, self._versions, self._uses, self._broken = folder, versions, uses, broken
        self._schema = schema
        self._children = {
            manifest.parent.number: manifest for manifest in versions.values() if manifest.parent is not None
        }
        self._visited: set[str] = set()

    def rows(self, name: str) -> tuple[Int[np.ndarray, " n"], pa.Table]:
        """Return the rows of a damaged file that other files contain.

        Args:
            name: the name of the file.

        Returns:
            The indices of these rows in the file, in ascending order, and the rows.
        """
        import pyarrow as pa

        use = self._uses[name]
        indices, tables = [np.zeros(0, np.int64)], [self._schema.empty_table()]
        if name not in self._visited:  # a file whose recovery led here does not help
            self._visited.add(name)
            for number, find in ((use.versions[0], self._before), (use.versions[-1], self._after)):
                entry = next(file for file in self._versions[number].row_files if file.name == name)
                positions = self._positions(entry)
                other = find(number)
                if positions is not None and other is not None:
                    first = _first_row(self._versions[number], name)
                    found, table = self._slice(other, first, first + len(positions))
                    indices.append(positions[found])
                    tables.append(table)
            self._visited.discard(name)
        distinct, where = np.unique(np.concatenate(indices), return_index=True)
        return distinct, pa.concat_tables(tables).take(pa.array(where))

    def present(self, file: RowFile) -> Bool[np.ndarray, " rows"] | None:
        """Return a boolean array that is False for the deleted rows of a file, or None if it is damaged."""
        if file.deleted is not None and file.deleted.name in self._broken:
            return None
        loaded = row_files.load_present(self._folder, file)
        return np.ones(file.rows, bool) if loaded is None else loaded

    def table(self, file: RowFile) -> pa.Table:
        """Return the rows of an intact file, including deleted ones."""
        return row_files.MappedRows(self._folder, file, self._schema).table()

    def _positions(self, file: RowFile) -> Int[np.ndarray, " n"] | None:
        present = self.present(file)
        return None if present is None else np.flatnonzero(present)

    def _before(self, number: int) -> Manifest | None:
        """Return the version from which a compaction made a version, or None if no compaction made it."""
        made = self._versions[number]
        parent = None if made.parent is None else self._versions.get(made.parent.number)
        return parent if parent is not None and _same_rows(parent, made) else None

    def _after(self, number: int) -> Manifest | None:
        """Return the version that a compaction made from a version, or None if the next version is no compaction."""
        child = self._children.get(number)
        return child if child is not None and _same_rows(self._versions[number], child) else None

    def _slice(self, manifest: Manifest, start: int, stop: int) -> tuple[Int[np.ndarray, " n"], pa.Table]:
        """Return the known rows of a version from `start` to `stop`, and their indices relative to `start`."""
        import pyarrow as pa

        indices, tables, first = [np.zeros(0, np.int64)], [self._schema.empty_table()], 0
        for file in manifest.row_files:
            low, high = max(start - first, 0), min(stop - first, file.present_rows)
            if low < high and (present := self.present(file)) is not None:
                if file.name in self._broken:
                    rows, table = self.rows(file.name)
                else:
                    rows, table = np.arange(file.rows), self.table(file)
                # The place of each row among those that are not deleted.
                place = np.cumsum(present)[rows] - 1
                wanted = present[rows] & (place >= low) & (place < high)
                indices.append(place[wanted] + first - start)
                tables.append(table.filter(pa.array(wanted)))
            first += file.present_rows
        return np.concatenate(indices), pa.concat_tables(tables)


def _same_rows(before: Manifest, after: Manifest) -> bool:
    return after.operation == "compact" and before.rows == after.rows


def _first_row(manifest: Manifest, name: str) -> int:
    """Return the index of the first row of a file in a version, without deleted rows."""
    first = 0
    for file in manifest.row_files:
        if file.name == name:
            break
        first += file.present_rows
    return first
