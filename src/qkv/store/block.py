"""Blocks of rows that a store reads together, and the description of a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa

from qkv.core.checksums import checksum
from qkv.core.typing import Bool, Int
from qkv.errors import DataError


@dataclass(frozen=True)
class Version:
    """The description of a version of a store, which is a committed state of its rows.

    Attributes:
        number: the number, 1 for the empty store that `create` makes, increased by 1 with each commit.
        operation: the operation that committed the version: `create`, `append`, `delete`, `compact` or `repair`.
        rows: number of rows.
        written: time of the commit, in UTC.
        lost: number of rows that were damaged and that a repair left out.
    """

    number: int
    operation: str
    rows: int
    written: datetime
    lost: int = 0


def missing_version(store: str, version: int, versions: Sequence[int]) -> DataError:
    """Return the error to raise if `store` does not have a version; it names the newest of the `versions`."""
    newest = (
        f"The newest versions are {', '.join(map(str, versions[-5:]))}" if versions else "The store has no versions"
    )
    return DataError(f"version must exist in {store!r}, got {version}. {newest}.")


def older_version(version: int, versions: Sequence[int]) -> str:
    """Return ", or open version …" with the newest of the `versions` before `version`, or "" if there is none."""
    older = [number for number in versions if number < version]
    return f", or open version {max(older)}" if older else ""


class RunningCheck:
    """The checksum of a mapped file, computed in pieces that are still in the cache of the core when they are used.

    Results that were computed from the file must be discarded unless `finish` returns. An object serves one scan.

    Args:
        expected: the CRC-32 of the contents.
        finished: called once with whether the contents have this checksum; raises an error if they do not.
    """

    def __init__(self, data: pa.Buffer, expected: int, finished: Callable[[bool], None]) -> None:
        self._data, self._address = memoryview(data).cast("B"), data.address
        self._expected, self._finished = expected, finished
        self._done = self._value = 0
        self._open = True

    def advance(self, address: int) -> None:
        """Add the bytes before an address in memory, if it is in the file, and they were not added before."""
        self._add(address - self._address)

    def finish(self) -> None:
        """Add the remaining bytes, and compare the checksum with the recorded one.

        Raises:
            DamagedStoreError: The checksum does not match.
        """
        if self._open:
            self._add(len(self._data))
            self._finished(self._value == self._expected)
            self._open = False

    def _add(self, stop: int) -> None:
        if self._done < stop <= len(self._data):
            self._value = checksum(self._data[self._done : stop], self._value)
            self._done = stop


_FEW = 8
"""Maximum number of rows for which slicing each row is faster than `Table.take`."""


@dataclass(frozen=True)
class Block:
    """A block of a store, which consists of consecutive rows that are read together.

    Attributes:
        name: the name of the file or fragment.
        table: a pyarrow table, memory-mapped if the store can.
        present: `(rows,)` booleans, False where a row is deleted; None if no row is deleted.
        check: the check of a block whose checksum is verified while the rows are read; None: it was verified.
    """

    name: str
    table: pa.Table
    present: Bool[np.ndarray, " rows"] | None = field(default=None, repr=False)
    check: RunningCheck | None = field(default=None, repr=False, compare=False)

    def verify(self) -> None:
        """Verify the rest of the checksum of a block from `Store.unverified_blocks`.

        Raises:
            DamagedStoreError: The checksum does not match, and whatever was computed from the rows may be wrong.
        """
        if self.check is not None:
            self.check.finish()

    def __len__(self) -> int:
        return int(self.table.num_rows if self.present is None else self.present.sum())

    def rows(self, start: int, stop: int) -> pa.Table:
        """Return a table of the rows from `start` to `stop`, exclusive. Deleted rows are not counted."""
        if self.present is None:
            return self.table.slice(start, stop - start)
        rows = np.flatnonzero(self.present)[start:stop]
        if not len(rows):
            return self.table.slice(0, 0)
        first = int(rows[0])
        span = self.table.slice(first, int(rows[-1]) + 1 - first)
        return span.filter(pa.array(self.present[first : first + span.num_rows]))

    def take(self, rows: Int[np.ndarray, " n"]) -> pa.Table:
        """Return a table of some rows, whose indices do not count deleted rows."""
        own = rows if self.present is None else np.flatnonzero(self.present)[rows]
        if len(own) > _FEW:
            return self.table.take(pa.array(own))
        slices = [self.table.slice(int(row), 1) for row in own]
        return pa.concat_tables(slices) if slices else self.table.slice(0, 0)

    def present_rows(self) -> pa.Table:
        """Return the table of the block without deleted rows. The table is not copied if no row is deleted."""
        return self.rows(0, len(self))
