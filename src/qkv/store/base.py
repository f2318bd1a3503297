"""What every store can do, whatever it is made of."""

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from qkv.core.progress import Progress
from qkv.errors import DataError

__all__ = ["Block", "Choosing", "Damage", "Matching", "Store", "Version"]

_FEW = 8
"""So many rows are sliced out of a block faster than they are taken."""

Matching = Callable[[Any], np.ndarray]
"""Tells of a pyarrow table which of its rows are meant: booleans, one for each row."""

Choosing = Callable[[Sequence["Block"]], Sequence[np.ndarray | None]]
"""Tells of all blocks together which of their rows are meant: `(rows,)` booleans for each, or None for none.

Rows that are deleted already may be named again.
"""


@dataclass(frozen=True)
class Version:
    """One committed state of a store.

    Fields:
        number: 1 for the empty store that `create` makes; each commit adds 1.
        operation: what made it: `create`, `append`, `delete` or `compact`.
        rows: how many rows it has.
        written: when, in UTC.
    """

    number: int
    operation: str
    rows: int
    written: datetime


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written.

    Fields:
        file: its name within the store.
        problem: `missing`, `cut off at 10 of 20 bytes`, `bytes changed`.
        rows: how many rows of the version that was looked at cannot be read because of it.
    """

    file: str
    problem: str
    rows: int

    def __str__(self) -> str:
        return f"{self.file}: {self.problem} ({self.rows:,} rows)"


@dataclass(frozen=True)
class Block:
    """Some rows of a store, as they lie on disk.

    Fields:
        name: the file, or the fragment.
        table: a pyarrow table, memory-mapped where the store can.
        kept: `(rows,)` booleans, False where a row was deleted; None where none was.
    """

    name: str
    table: Any
    present: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows if self.present is None else self.present.sum())

    def rows(self, start: int, stop: int) -> Any:
        """Some of the rows that are not deleted, counted among these alone."""
        if self.present is None:
            return self.table.slice(start, stop - start)
        import pyarrow as pa

        living = np.flatnonzero(self.present)[start:stop]
        if not len(living):
            return self.table.slice(0, 0)
        first = int(living[0])
        span = self.table.slice(first, int(living[-1]) + 1 - first)
        return span.filter(pa.array(self.present[first : first + span.num_rows]))

    def living(self) -> Any:
        """The table without its deleted rows; the same table where there are none."""
        if self.present is None:
            return self.table
        import pyarrow as pa

        return self.table.filter(pa.array(self.present))


class Store(ABC):
    """A table on disk, in versions.

    One process writes at a time; readers are never in its way, nor it in theirs: what a reader has opened
    stays as it was until it asks for `refresh`.
    """

    path: Path
    version: int
    schema: Any
    metadata: dict[str, Any]

    @abstractmethod
    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """The rows of this version, block by block, in the order in which they were appended.

        Args:
            columns: read these alone; None: all.

        Raises:
            DamagedStoreError: a block is not what was written, and the store was not opened to go on
                without it.
        """

    @abstractmethod
    def append(self, table: Any) -> int:
        """Add rows; they are on disk, synced, when this returns.

        Args:
            table: a pyarrow table with the columns of the store, in any order; or an iterable of such tables,
                which are read one after another and become one version.

        Returns:
            The number of the new version.

        Raises:
            DataError: a column is missing, too many, or of another type.
            StoreBusyError: another process is writing.
            StoreFullError: the disk is full; the store is as it was.
        """

    def delete(self, matching: Matching) -> int:
        """Take rows out of the newest version; older versions keep them.

        Args:
            matching: given the rows of a block, says which are to go.

        Returns:
            How many rows went.
        """
        return self.delete_chosen(lambda blocks: [matching(block.table) for block in blocks])

    @abstractmethod
    def delete_chosen(self, choose: Choosing) -> int:
        """As `delete`, by a choice that sees all rows of the newest version at once."""

    @abstractmethod
    def compact(self, keep: int | None = None, progress: Progress | None = None) -> int:
        """Rewrite small blocks and blocks with deleted rows into full ones.

        Args:
            keep: how many of the newest versions stay readable; what only older ones need is removed from
                the disk. None: all stay, and nothing is removed.
            progress: called with the blocks that are done.

        Returns:
            How many bytes of disk were freed.
        """

    @abstractmethod
    def versions(self) -> list[Version]:
        """Every version that can be read, oldest first."""

    @abstractmethod
    def at(self, version: int) -> "Store":
        """The store as it was. It can be read; writing goes to the newest version only."""

    @abstractmethod
    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Compare every byte of this version with its checksum; empty where all is well."""

    @abstractmethod
    def refresh(self) -> bool:
        """Go to the newest version; True if there was a newer one. A store opened `at` a version stays."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows this version has."""

    def snapshot(self) -> Self:
        """This version, which stays what it is whatever is done to this store."""
        return copy.copy(self)

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> Any:
        """A table of the rows with these numbers, which ascend and do not count deleted rows."""
        import pyarrow as pa

        found, first = [], 0
        for block in self.blocks(columns):
            count = len(block)
            start, stop = np.searchsorted(rows, [first, first + count])
            if start < stop:
                inside = rows[start:stop] - first
                if block.present is not None:
                    inside = np.flatnonzero(block.present)[inside]
                if len(inside) > _FEW:
                    found.append(block.table.take(pa.array(inside)))
                else:
                    found += [block.table.slice(int(row), 1) for row in inside]
            first += count
        return pa.concat_tables(found or [self.empty(columns)])

    def empty(self, columns: Sequence[str] | None = None) -> Any:
        """A table without rows."""
        import pyarrow as pa

        names = self.schema.names if columns is None else columns
        return pa.schema([self.schema.field(name) for name in names]).empty_table()

    def block_lengths(self) -> list[int]:
        """How many rows each block has."""
        return [len(block) for block in self.blocks()]

    def size_of(self, columns: Sequence[str]) -> int:
        """How many bytes some columns take, deleted rows counted."""
        return sum(block.table.nbytes for block in self.blocks(columns))

    def to_table(self, columns: Sequence[str] | None = None) -> Any:
        """All living rows as one pyarrow table; blocks without deleted rows are not copied."""
        import pyarrow as pa

        return pa.concat_tables([block.living() for block in self.blocks(columns)] or [self.empty(columns)])

    @property
    def cache_folder(self) -> Path:
        """A folder for what was found out about rows and would be found again: it may vanish at any time."""
        return self.path / "notes"

    def clear_cache(self) -> None:
        """Remove the notes."""
        shutil.rmtree(self.cache_folder, ignore_errors=True)

    def fitted(self, tables: Any) -> Iterator[Any]:
        """`fit` of a table, or of each of several."""
        for table in tables if isinstance(tables, Iterable) and not hasattr(tables, "schema") else (tables,):
            yield self.fit(table)

    def fit(self, table: Any, schema: Any = None) -> Any:
        """A table with this store's columns, in its order and types.

        Args:
            table: a pyarrow table.
            schema: some of the store's columns; None: all.

        Raises:
            DataError: a column is missing, too many, or its cells do not fit the type.
        """
        import pyarrow as pa

        schema = self.schema if schema is None else schema
        given, wanted = set(table.column_names), set(schema.names)
        if given != wanted:
            lacking = ", ".join(sorted(wanted - given)) or "none"
            over = ", ".join(sorted(given - wanted)) or "none"
            raise DataError(
                f"rows for {self.path.name!r} must have the columns {', '.join(schema.names)}; "
                f"missing: {lacking}; too many: {over}. Give each column once."
            )
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            first = str(error).strip().split("\n")[0].rstrip(". ")
            raise DataError(
                f"rows do not fit the columns of {self.path.name!r}: {first}. "
                f"Its types are {', '.join(f'{f.name} {f.type}' for f in schema)}."
            ) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path.name}: {len(self):,} rows, version {self.version})"
