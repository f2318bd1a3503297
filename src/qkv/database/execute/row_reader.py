"""Reading of the rows of a store on demand, by row index or tile by tile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import types

from qkv.core.container import Container, read_container, write_container
from qkv.core.typing import Bool, Int, Shaped
from qkv.database.io.predicates import matching_rows, named_columns
from qkv.encoders.arrow_columns import to_records
from qkv.errors import DataError
from qkv.store import Block, RemoteStore, Store

_CONTENT = "results about a store"


def read_note(path: Path, made_from: Mapping[str, object]) -> Container | None:
    """Return a saved note, or None if there is none, it is damaged, or it was made from something else.

    Args:
        path: the file.
        made_from: JSON values that identify the rows and the computation.
    """
    try:
        container = read_container(path, _CONTENT, "")
        for name in container:
            container.bytes(name)
    except (DataError, OSError):
        return None
    return container if container.settings.get("made from") == dict(made_from) else None


def save_note(
    path: Path,
    made_from: Mapping[str, object],
    settings: Mapping[str, object],
    arrays: Mapping[str, Shaped[np.ndarray, "*_"]],
) -> None:
    """Save a note. Errors are ignored, because the note can be computed again."""
    with contextlib.suppress(OSError, DataError):
        path.parent.mkdir(exist_ok=True)
        write_container(path, _CONTENT, {**settings, "made from": dict(made_from)}, arrays)


TILE = 2**18
"""Maximum number of rows of a tile."""

_NUMBERS_PER_TILE = 5 * 2**20


@dataclass(frozen=True, eq=False)
class RowTile:
    """A tile, which consists of consecutive rows of a block that are compared and accumulated together.

    Attributes:
        number: the index of the first row of the tile in the store, or its position, see `row_lists`.
        table: the rows, without deleted rows.
        block: the block.
        start: the index of the first row of the tile among the rows of the block that are not deleted.
        cache: the folder for results about the block.
        complete: whether it is known that no cell is missing.
        selected: True for the selected rows of the tile; None for all.
    """

    number: int
    table: pa.Table
    block: Block
    start: int
    cache: Path
    complete: bool = False
    selected: Bool[np.ndarray, " rows"] | None = None

    @classmethod
    def of_table(cls, table: pa.Table, number: int = 0) -> RowTile:
        """Return a tile of rows in memory."""
        return cls(number, table, Block("", table), 0, Path())


class StoredRows:
    """The rows of one version of a store, with the methods of a pyarrow table that `Answer` calls.

    Row indices skip deleted rows. Later changes of the store are not visible.

    Args:
        store: the store; its current version is read.
        hidden: columns that are compared but not shown.
    """

    def __init__(self, store: Store, hidden: Sequence[str] = ()) -> None:
        self.store = store.snapshot()
        self.column_names: list[str] = [name for name in store.schema.names if name not in hidden]
        self.num_rows = len(self.store)
        self.blocks = len(self.store.block_lengths())
        self._cache = self.store.cache_folder
        self._sizes: dict[tuple[str, ...], int] = {}

    def slice(self, start: int, length: int = 1) -> pa.Table:
        """Return a pyarrow table of `length` consecutive rows from row `start`."""
        return self.store.take(np.arange(start, start + length), self.column_names)

    def records(self, rows: Sequence[int]) -> list[dict[str, object]]:
        """Return some rows in any order as dicts; of an object store by one round of requests for all rows."""
        if not isinstance(self.store, RemoteStore):
            # `take` imports pyarrow.compute, which takes ten times as long as a small query.
            return [to_records(self.slice(row))[0] for row in rows]
        own, place = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        records = to_records(self.store.take(own, self.column_names))
        return [records[index] for index in place.tolist()]

    def take(self, rows: Int[np.ndarray, " n"], columns: Sequence[str] | None = None) -> pa.Table:
        """Return a pyarrow table of the rows whose indices are in `rows`, which must be in ascending order."""
        return self.store.take(rows, columns)

    def tile_rows(self, columns: Sequence[str]) -> int:
        """Return the maximum number of rows in a tile of the given columns, which is smaller for wide vectors."""
        width = sum(_width(self.store.schema.field(name).type) for name in columns)
        return max(1, min(TILE, _NUMBERS_PER_TILE // width))

    def tiles(self, columns: Sequence[str], unverified: bool = False) -> Iterator[RowTile]:
        """Yield the rows as tiles of at most `tile_rows(columns)` rows, each of which is part of one block.

        Args:
            columns: the columns to read.
            unverified: whether the checksum of a block may be verified after its last tile was used. Results must then
                be discarded unless all tiles are read.

        Raises:
            DamagedStoreError: A block is damaged.
        """
        first, rows = 0, self.tile_rows(columns)
        for block in self.store.unverified_blocks(columns) if unverified else self.store.blocks(columns):
            count = len(block)
            for start in range(0, count, rows):
                table = block.rows(start, min(start + rows, count))
                yield RowTile(first + start, table, block, start, self._cache)
            block.verify()
            first += count

    def size_of(self, columns: Sequence[str]) -> int:
        """Return the total size in bytes of the columns that `columns` names."""
        names = tuple(columns)
        if names not in self._sizes:
            self._sizes[names] = self.store.size_of(columns)
        return self._sizes[names]

    def match(self, predicate: str) -> Bool[np.ndarray, " rows"]:
        """Return a boolean array that is True for each row that satisfies a SQL predicate.

        Raises:
            QueryError: As in `predicates.matching_rows`.
        """
        named = predicate_columns(self.store, self.column_names, predicate)
        blocks = list(self.store.blocks(named))
        matches = match_blocks(blocks, self.store.empty(named).schema, predicate)
        return np.concatenate([np.zeros(0, bool), *matches])


def predicate_columns(store: Store, columns: Sequence[str], predicate: str) -> list[str]:
    """Return the columns that a SQL predicate may read, so that the others are not read from an object store.

    All columns are returned for a store on a disk, which maps them without reading them.

    Raises:
        QueryError: The predicate fails for a table without rows.
    """
    return named_columns(store.empty(columns), predicate) if isinstance(store, RemoteStore) else list(columns)


def match_blocks(
    blocks: Sequence[Block], schema: pa.Schema, predicate: str, deleted: bool = False
) -> list[Bool[np.ndarray, " _"]]:
    """Return one boolean array per block of a store that is True for the rows that satisfy a SQL predicate.

    Aggregates in the predicate refer to the rows of all blocks.

    Args:
        blocks: the blocks of a store.
        schema: their schema.
        predicate: see `predicates.matching_rows`; it does not see deleted rows.
        deleted: whether the arrays include deleted rows, as False.
    """
    table = pa.concat_tables([block.table for block in blocks] or [schema.empty_table()])
    present = None
    if any(block.present is not None for block in blocks):
        present = np.concatenate([_present(block) for block in blocks])
    matches = matching_rows(table, predicate, present)
    parts = np.split(matches, np.cumsum([block.table.num_rows for block in blocks])[:-1]) if blocks else []
    if deleted:
        return parts
    return [part[_present(block)] for part, block in zip(parts, blocks, strict=True)]


def _width(type_: pa.DataType) -> int:
    """Return the approximate number of elements in a cell of an Arrow type, which is 24 for a text."""
    if types.is_fixed_size_list(type_):
        return max(1, int(type_.list_size))
    if types.is_nested(type_):
        return 64
    return 1 if types.is_primitive(type_) else 24


def _present(block: Block) -> Bool[np.ndarray, " rows"]:
    return np.ones(block.table.num_rows, bool) if block.present is None else block.present
