"""Blocks of rows that a store reads together, and the description of a damaged file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Block", "Damage"]


@dataclass(frozen=True)
class Damage:
    """The description of a damaged file of a store.

    Attributes:
        file: the name of the file within the store.
        problem: the kind of damage, such as `missing`, `cut off at 10 of 20 bytes`, `the checksum does not match`.
        rows: number of rows of the open version that cannot be read because of the damage.
    """

    file: str
    problem: str
    rows: int

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}" + (f" ({self.rows:,} rows)" if self.rows else "")


@dataclass(frozen=True)
class Block:
    """A block of a store, which consists of consecutive rows that are read together.

    Attributes:
        name: the name of the file or fragment.
        table: a pyarrow table, memory-mapped if the store can.
        present: `(rows,)` booleans, False where a row is deleted; None if no row is deleted.
    """

    name: str
    table: pa.Table
    present: Bool[np.ndarray, " rows"] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows if self.present is None else self.present.sum())

    def rows(self, start: int, stop: int) -> pa.Table:
        """Return a table of the rows from `start` to `stop`, exclusive. Deleted rows are not counted."""
        if self.present is None:
            return self.table.slice(start, stop - start)
        import pyarrow as pa

        rows = np.flatnonzero(self.present)[start:stop]
        if not len(rows):
            return self.table.slice(0, 0)
        first = int(rows[0])
        span = self.table.slice(first, int(rows[-1]) + 1 - first)
        return span.filter(pa.array(self.present[first : first + span.num_rows]))

    def present_rows(self) -> pa.Table:
        """Return the table of the block without deleted rows. The table is not copied if no row is deleted."""
        return self.rows(0, len(self))
