"""The class `Store`, which is the abstract base class of versioned tables on disk."""

from __future__ import annotations

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa

from qkv.core.cell_kinds import cell_kind
from qkv.core.checks import check_choice
from qkv.core.checksums import checksums_wanted
from qkv.core.printable import first_line
from qkv.core.progress import Progress
from qkv.core.typing import Int
from qkv.errors import DamagedStoreError, DataError, OptionError
from qkv.store.block import Block, Version
from qkv.store.damage import Damage, unread_text
from qkv.store.locking import writer_lock
from qkv.store.object_client import ObjectPath


def fit_table(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return a table with its columns in the order and of the types of a schema.

    Args:
        name: names the store in errors.

    Raises:
        DataError: A column is missing or unknown, or its cells do not fit the type.
    """
    given, expected = set(table.column_names), set(schema.names)
    if given != expected:
        lacking = ", ".join(sorted(expected - given)) or "none"
        unknown = ", ".join(sorted(given - expected)) or "none"
        raise DataError(
            f"rows for {name!r} must have the columns {', '.join(schema.names)}; "
            f"missing: {lacking}; unknown: {unknown}. Pass each column of the store once."
        )
    try:
        return cast_table(table, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(
            f"rows must fit the column types of {name!r}, but their conversion failed: {first_line(error)}. "
            f"Convert the columns to {', '.join(f'{f.name} {f.type}' for f in schema)}, or create the store again with "
            "columns of texts."
        ) from None


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema in its types, if their cells keep their meaning.

    Arrow would also cast whole numbers to dates and back, all numbers but 0 to true, dates to those of a time zone,
    times to their days, texts such as 007 to 7, NaN to a text, large numbers to infinity, and round decimals.

    Raises:
        ValueError: A type has another kind, or a cell does not fit it; texts may hold cells of any kind.
    """
    from pyarrow import compute

    table = table.select(schema.names)
    for given, wanted in zip(table.schema, schema, strict=True):
        kinds = {cell_kind(given.type), cell_kind(wanted.type)}
        if len(kinds) > 1 and not kinds & {"text", "null"}:
            raise ValueError(f"cells of {given.name} have the type {given.type} instead of {wanted.type}")
        if kinds == {"text", "number"} and cell_kind(wanted.type) == "number":
            texts = table[given.name].cast(pa.string())
            codes = texts.filter(compute.match_substring_regex(texts, r"^\s*[+-]?0[0-9xX]"))
            if len(codes):
                raise ValueError(f"cells of {given.name} are codes, such as {codes[0].as_py()!r}, not {wanted.type}")
        if pa.types.is_floating(given.type) and not pa.types.is_floating(wanted.type):
            cells = table[given.name]
            missing = compute.if_else(compute.is_nan(cells), pa.scalar(None, given.type), cells)
            table = table.set_column(table.column_names.index(given.name), given, missing)
    result = table.cast(schema)
    for given, wanted in zip(table.schema, result.columns, strict=True):
        timed = pa.types.is_timestamp(given.type) and pa.types.is_date(wanted.type)
        if timed and wanted.cast(given.type) != table[given.name]:
            raise ValueError(f"cells of {given.name} have times of day instead of {wanted.type}")
        rounded = pa.types.is_floating(given.type) and pa.types.is_decimal(wanted.type)
        if rounded and wanted.cast(given.type) != table[given.name]:
            raise ValueError(f"cells of {given.name} have more digits than {wanted.type}")
        if given.type != wanted.type and _count_infinite(wanted) > _count_infinite(table[given.name]):
            raise ValueError(f"cells of {given.name} are too large for {wanted.type}")
    return result


def _count_infinite(column: pa.ChunkedArray) -> int:
    """Return the number of infinite numbers in a column of numbers or lists of numbers; 0 for other columns."""
    from pyarrow import compute

    if cell_kind(column.type).startswith("list of"):
        column = compute.list_flatten(column)
    return compute.sum(compute.is_inf(column)).as_py() or 0 if pa.types.is_floating(column.type) else 0


Metadata: TypeAlias = dict[str, Any]
"""Values of JSON types, by name."""

RowPredicate = Callable[["pa.Table"], np.ndarray]
"""A function that returns a boolean for each row of a pyarrow table."""

BlockSelector = Callable[[Sequence["Block"]], Sequence[np.ndarray | None]]
"""A function of all blocks that returns for each block `(rows,)` booleans, True for selected rows, or None.

None selects no rows. The function may select rows that are already deleted.
"""


class Store(ABC):
    """Base class of stores, which are versioned tables on disk.

    One process writes at a time. Readers and the writer do not block each other: an open version does
    not change until `refresh`.

    Attributes:
        path: the folder.
        version: the number of the open version.
        schema: the pyarrow schema.
        metadata: values saved with the store.
        damages: the damaged files that were skipped.
        unchecked: number of files of the open version that have no checksum, so that a changed bit may not be detected.

    Example:
        >>> import tempfile
        >>> from qkv import Database, store
        >>> folder, row = tempfile.mkdtemp() + "/people", {"name": ["Li Mu"], "pay": [1]}
        >>> _ = Database.create(folder, row, key="name", value="pay")
        >>> rows = store.open(folder)
        >>> isinstance(rows, store.Store), rows.version, rows.to_table().to_pylist()
        (True, 1, [{'name': 'Li Mu', 'pay': 1}])
    """

    unchecked: int = 0

    path: Path
    version: int
    schema: pa.Schema
    metadata: Metadata
    damages: list[Damage]
    _pinned: bool
    _skip: bool

    def __init__(self, path: Path, version: int | None, damaged: str, checksums: bool | None) -> None:
        check_choice("damaged", damaged, ("refuse", "skip"))
        self.path = path if isinstance(path, ObjectPath) else Path(path)
        # Results about the rows that can be computed again; the folder may be removed at any time.
        self.cache_folder = self.path / "notes"
        self._pinned = version is not None
        self._skip = damaged == "skip"
        self._checksums = checksums_wanted() if checksums is None else checksums
        self.damages = []

    @abstractmethod
    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """Yield the rows of the open version as blocks, in the order in which they were appended.

        Args:
            columns: the columns to read; None: all.

        Raises:
            DamagedStoreError: A block is damaged, and the store was not opened with `damaged="skip"`.
        """

    def unverified_blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """Yield the blocks, of which those with a `check` are verified while their rows are read, see `RunningCheck`.

        Results of a block must be discarded unless `Block.verify` returns.

        Args:
            columns: the columns to read; None: all.

        Raises:
            DamagedStoreError: As in `blocks`.
        """
        return self.blocks(columns)

    def append(self, table: pa.Table | Iterable[pa.Table]) -> int:
        """Append rows, save them on disk as a new version, and return the number of the version.

        Args:
            table: a pyarrow table with the columns of the store, in any order; or an iterable of such tables,
                which become one version.

        Returns:
            The number of the new version.

        Raises:
            DataError: A column is missing, unknown, or of another type.
            StoreBusyError: Another process is writing.
            StoreFullError: The disk is full; the store is unchanged.
        """
        given = table if isinstance(table, Iterable) and not hasattr(table, "schema") else (table,)
        tables = (fit_table(each, self.schema, self.path.name) for each in given)
        # A table that does not fit is refused before the lock is acquired.
        first = next(tables, None)
        if first is not None:
            with self._writing():
                self._append(chain([first], tables))
        return self.version

    def delete(self, predicate: RowPredicate) -> int:
        """Delete the rows for which a function returns True, and return their number. Older versions keep the rows.

        Args:
            predicate: a function of a pyarrow table that returns True for the rows to delete.

        Returns:
            The number of deleted rows.
        """
        return self.delete_chosen(lambda blocks: [predicate(block.table) for block in blocks])

    @abstractmethod
    def delete_chosen(self, choose: BlockSelector, columns: Sequence[str] | None = None) -> int:
        """Delete the rows that a function of all blocks selects, and return their number; see `delete`.

        Args:
            choose: the function.
            columns: the columns that it reads; None: all.
        """

    def compact(self, keep: int | None = None, progress: Progress | None = None) -> int:
        """Merge small blocks and blocks with deleted rows into full blocks, and remove old versions if `keep` is given.

        Args:
            keep: number of newest versions that remain readable; the files of older versions are removed. None: all
                versions remain.
            progress: called as `progress("compacting", done, total)`.

        Returns:
            The number of bytes freed on the disk.
        """
        if keep is not None and keep < 1:
            raise OptionError(f"keep must be None or at least 1, got {keep}. Pass keep=1 to keep the newest alone.")
        with self._writing():
            self._compact(progress)
            self.clear_cache()
            return self._remove_unneeded(keep)

    def versions(self) -> list[Version]:
        """Return a list of all versions of the store, oldest first.

        Raises:
            DamagedStoreError: A manifest is damaged, and the store was not opened with `damaged="skip"`, which leaves
                out the versions that cannot be read.
        """
        versions = []
        for number in self._numbers():
            try:
                versions.append(self._describe(number))
            except DamagedStoreError:
                if not self._skip:
                    raise
        return versions

    def at(self, version: int) -> Self:
        """Return the store opened at a given version, which can be read but not written."""
        return type(self)(self.path, version, "skip" if self._skip else "refuse", self._checksums)

    @abstractmethod
    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Verify the files of all versions, and return a `Damage` for each damaged file; see `qkv.store.verify`."""

    def refresh(self) -> bool:
        """Open the newest version, and return whether the open version changed.

        A store that was opened at a fixed version keeps it.
        """
        if self._pinned or self._latest() == self.version:
            return False
        self._load_newest()
        return True

    def __len__(self) -> int:
        """Return the number of rows of the open version, without deleted rows."""
        return sum(self.block_lengths())

    @property
    def identity(self) -> str:
        """A text that identifies the rows of the open version, which is saved with results about the rows."""
        return f"version {self.version}"

    def snapshot(self) -> Self:
        """Return a copy of this store that stays at the open version when this store changes."""
        return copy.copy(self)

    def take(self, rows: Int[np.ndarray, " n"], columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table of the rows whose indices are in `rows`, which must be in ascending order.

        The indices do not count deleted rows.
        """
        starts = np.concatenate([[0], np.cumsum(self.block_lengths())])
        places = np.searchsorted(rows, starts)
        parts = [
            (name, rows[first:last] - start)
            for name, start, first, last in zip(self.block_names(), starts[:-1], places[:-1], places[1:], strict=True)
            if first < last
        ]
        return pa.concat_tables([*self._take_parts(parts, columns)] or [self.empty(columns)])

    def empty(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a pyarrow table without rows that has the given columns, or all columns if `columns` is None."""
        names = self.schema.names if columns is None else columns
        return pa.schema([self.schema.field(name) for name in names]).empty_table()

    @abstractmethod
    def block_lengths(self) -> list[int]:
        """Return the number of rows of each block of the open version, without deleted rows."""

    @abstractmethod
    def block_names(self) -> list[str]:
        """Return the name of each block of the open version."""

    @abstractmethod
    def block(self, name: str, columns: Sequence[str] | None = None) -> Block:
        """Return the block with a given name; see `blocks`.

        Raises:
            DamagedStoreError: The block is damaged, or was skipped because it is.
        """

    @property
    def skipped(self) -> str:
        """A text that names the rows missing because damaged files were skipped; "" if none are."""
        lost = [damage for damage in self.damages if damage.rows]
        others = [str(damage) for damage in self.damages if not damage.rows]
        total, rows = len(lost) + len(self.block_names()), sum(damage.rows for damage in lost)
        texts = [unread_text([f"{each.file}: {each.problem}" for each in lost], total, rows)] if lost else []
        return "; ".join([*texts, *([f"damaged files: {', '.join(others)}"] if others else [])])

    def _missing_block(self, name: str) -> DamagedStoreError:
        problems = [str(damage) for damage in self.damages if name in damage.file] or [f"{name}: missing"]
        return DamagedStoreError(
            f"{self.path.name!r} is damaged: {'; '.join(problems)}. Restore this file from a copy."
        )

    def size_of(self, columns: Sequence[str]) -> int:
        """Return the total size in bytes of the columns that `columns` names, including deleted rows."""
        return sum(block.table.nbytes for block in self.blocks(columns))

    def to_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of the open version as one pyarrow table. Blocks without deleted rows are not copied."""
        return pa.concat_tables([block.present_rows() for block in self.blocks(columns)] or [self.empty(columns)])

    def clear_cache(self) -> None:
        """Remove the cache folder, which holds results about the rows that can be computed again."""
        shutil.rmtree(self.cache_folder, ignore_errors=True)

    def __repr__(self) -> str:
        skipped = f"; {self.skipped}" if self.damages else ""
        return f"{type(self).__name__}({self.path.name}: {len(self):,} rows, version {self.version}{skipped})"

    # -- for implementations ----------------------------------------------------------------------------

    def _take_parts(
        self, parts: list[tuple[str, Int[np.ndarray, " n"]]], columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield tables of some rows of blocks, given by the names of blocks and indices that skip deleted rows."""
        return (self.block(name, columns).take(inside) for name, inside in parts)

    @abstractmethod
    def _numbers(self) -> list[int]:
        """Return the numbers of all versions that have a manifest, in ascending order."""

    @abstractmethod
    def _describe(self, number: int) -> Version:
        """Return the description of a version, or raise a `DamagedStoreError` if its manifest is damaged."""

    @abstractmethod
    def _load_newest(self) -> None:
        """Open the newest version of the store."""

    @abstractmethod
    def _append(self, tables: Iterator[pa.Table]) -> None:
        """Write tables that have the schema of the store, and commit them as one version if they have rows."""

    @abstractmethod
    def _compact(self, progress: Progress | None) -> None:
        """Merge small files and files with deleted rows, and commit a new version if any file changed."""

    @abstractmethod
    def _remove_unneeded(self, keep: int | None) -> int:
        """Remove all but the `keep` newest versions, and the files of no version. Return the number of bytes freed."""

    @abstractmethod
    def _prepare_commit(self) -> None:
        """Complete or remove an interrupted earlier commit. Called with the writer lock."""

    def _latest(self) -> int:
        return max(self._numbers(), default=0)

    @abstractmethod
    def _start_writing(self) -> None:
        """Begin to record which files an operation writes before its commit."""

    @abstractmethod
    def _uncommitted(self) -> Iterable[Path]:
        """Return the files that were written since `_start_writing` and belong to no version."""

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the writer lock with the newest version open, and remove uncommitted files if an exception is raised."""
        self._require_newest()
        with writer_lock(self.path):
            self.refresh()
            self._prepare_commit()
            self._start_writing()
            version = self.version
            try:
                yield
            except BaseException:
                if self._latest() == version:
                    for path in self._uncommitted():
                        path.unlink(missing_ok=True)
                raise

    def _require_newest(self) -> None:
        """Raise an `OptionError` if the store was opened at a fixed version, which cannot be written."""
        if self._pinned:
            raise OptionError(
                f"only the newest version of {self.path.name!r} can be written, got version {self.version}. "
                "Open the store without a version."
            )

    def _report(self, damages: list[Damage]) -> None:
        """Raise a `DamagedStoreError` if files are damaged and the store does not skip damaged files."""
        if damages and not self._skip:
            more = f"; and {len(damages) - 5} more" if len(damages) > 5 else ""
            raise DamagedStoreError(
                f"{self.path.name!r} is damaged: {'; '.join(map(str, damages[:5]))}{more}. "
                "Restore these files from a copy, or open the store with damaged='skip' to read the other rows."
            )
