"""The rows of a store, read where they are needed: a table that is not in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.database.io import duckdb_reader
from qkv.store import Block, Store

__all__ = ["Rows", "RowTile", "matching"]


TILE = 2**18
"""Rows that are read at once, at most."""

_CELLS = 5 * 2**20


@dataclass(frozen=True, eq=False)
class RowTile:
    """Some rows of a block.

    Fields:
        number: of its first row, in the store.
        table: the rows, without those that are deleted.
        block: whose they are.
        start: its first row, among those of the block that are not deleted.
        notes: where what is found out of the block can be kept.
    """

    number: int
    table: Any
    block: Block
    start: int
    notes: Path


class Rows:
    """A store at one version, with as much of a pyarrow table's manners as answers need.

    Rows are counted without those that are deleted. What is appended or deleted later is not seen.

    Args:
        store: whose newest rows these are.
        hidden: columns that are there to be compared, and are not shown.
    """

    def __init__(self, store: Store, hidden: Sequence[str] = ()) -> None:
        self.store = store.snapshot()
        self.column_names: list[str] = [name for name in store.schema.names if name not in hidden]
        self.num_rows = len(self.store)
        self.blocks = len(self.store.block_lengths())
        self._notes = self.store.notes
        self._sizes: dict[tuple[str, ...], int] = {}

    def slice(self, start: int, length: int = 1) -> Any:
        """A table of some rows."""
        return self.store.take(np.arange(start, start + length), self.column_names)

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> Any:
        """A table of the rows with these numbers, which ascend."""
        return self.store.take(rows, columns)

    def tile_rows(self, columns: Sequence[str]) -> int:
        """How many rows are read at once: fewer where these columns hold wide vectors."""
        width = sum(_width(self.store.schema.field(name).type) for name in columns)
        return max(1, min(TILE, _CELLS // width))

    def tiles(self, columns: Sequence[str]) -> Iterator["RowTile"]:
        """The rows, `tile_rows` of them at a time or fewer, none of them across two blocks."""
        first, rows = 0, self.tile_rows(columns)
        for block in self.store.blocks(columns):
            count = len(block)
            for start in range(0, count, rows):
                table = block.rows(start, min(start + rows, count))
                yield RowTile(first + start, table, block, start, self._notes)
            first += count

    def size_of(self, columns: Sequence[str]) -> int:
        """How many bytes some columns take."""
        asked = tuple(columns)
        if asked not in self._sizes:
            self._sizes[asked] = self.store.size_of(columns)
        return self._sizes[asked]

    def satisfying(self, predicate: str) -> np.ndarray:
        """Which rows satisfy a SQL predicate, as booleans.

        Raises:
            QueryError: as `duckdb_reader.matching_rows`.
        """
        blocks = list(self.store.blocks(self.column_names))
        found = matching(blocks, self.store.empty(self.column_names).schema, predicate)
        return np.concatenate([np.zeros(0, bool), *found])


def matching(blocks: Sequence[Block], schema: Any, predicate: str, deleted: bool = False) -> list[np.ndarray]:
    """Which rows of each block satisfy a predicate, which sees the rows of all blocks, and no deleted one.

    Args:
        blocks: of a store.
        schema: of the store.
        predicate: SQL; see `duckdb_reader.matching_rows`.
        deleted: count deleted rows too; they do not satisfy it.
    """
    import pyarrow as pa

    table = pa.concat_tables([block.table for block in blocks] or [schema.empty_table()])
    kept = None
    if any(block.kept is not None for block in blocks):
        kept = np.concatenate([_all_kept(block) for block in blocks])
    found = duckdb_reader.matching_rows(table, predicate, kept)
    parts = np.split(found, np.cumsum([block.table.num_rows for block in blocks])[:-1]) if blocks else []
    if deleted:
        return parts
    return [part[_all_kept(block)] for part, block in zip(parts, blocks, strict=True)]


def _width(type_: Any) -> int:
    """Numbers in a cell, about; a text is as large as some."""
    from pyarrow import types

    if types.is_fixed_size_list(type_):
        return max(1, int(type_.list_size))
    if types.is_nested(type_):
        return 64
    return 1 if types.is_primitive(type_) else 24


def _all_kept(block: Block) -> np.ndarray:
    return np.ones(block.table.num_rows, bool) if block.kept is None else block.kept
