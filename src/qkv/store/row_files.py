"""Functions that write, memory-map and verify the files of an `ArrowStore`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv.core.checksums import checksum
from qkv.core.typing import Bool
from qkv.core.untrusted_json import Fields, parse_json, read_bounded
from qkv.errors import DamagedError, DamagedStoreError
from qkv.store.arrow_files import map_file, parse_table
from qkv.store.block import RunningCheck
from qkv.store.damage import Damage, problem_of
from qkv.store.disk import sync_folder, write_synced
from qkv.store.manifest import RowFile
from qkv.store.object_client import Folder

_VERIFIED: set[tuple[int, ...]] = set()
"""The verified files, by device, inode, times, size and checksum."""

_TICK = 10**8
"""Time in nanoseconds within which two changes of a file can have the same time; the tick of Linux is at most 10 ms."""


def is_verified(path: Folder, check: int) -> bool:
    """Return whether this process has verified that a file has a checksum, and the file has not changed since."""
    return _identity(path, check) in _VERIFIED


def remember_verified(path: Folder, check: int) -> None:
    """Remember that a file has a checksum, unless it was changed too recently to notice another change by its time."""
    if (key := _identity(path, check)) is not None:
        _VERIFIED.add(key)


def _identity(path: Folder, check: int) -> tuple[int, ...] | None:
    """Return what identifies the contents of a file, or None if it was changed too recently or does not exist.

    The change time cannot be set by programs, unlike the modification time.
    """
    if not isinstance(path, Path):  # it is verified whenever it is read
        return None
    with suppress(OSError):
        state = path.stat()
        if time.time_ns() - state.st_ctime_ns > _TICK:
            return state.st_dev, state.st_ino, state.st_ctime_ns, state.st_mtime_ns, state.st_size, check
    return None


BYTES = 2**25
"""Approximate size of a file of rows, 32 MiB. A damaged file loses at most this much data."""

VERIFIED = "verified.json"

_CHANGED = "the checksum does not match"


def split_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield parts of tables of about 32 MiB each, with at least one row in each part."""
    for table in tables:
        parts = min(table.num_rows, -(-table.nbytes // BYTES)) or 1
        rows = -(-table.num_rows // parts)
        for start in range(0, table.num_rows, rows or 1):
            yield table.slice(start, rows)


def write_rows(folder: Path, tables: Iterable[pa.Table], written: list[Path]) -> tuple[RowFile, ...]:
    """Write each table to a file, sync the folder to disk, and return the manifest entries of the files.

    Args:
        written: a list to which the path of each file is appended before the file is written.
    """
    files = tuple(_write_file(folder, table, written) for table in tables)
    sync_folder(folder)
    return files


def _write_file(folder: Path, table: pa.Table, written: list[Path]) -> RowFile:
    data = serialize(table)
    written.append(folder / f"{uuid.uuid4().hex}.arrow")
    return write_file(written[-1], table.num_rows, data)


def serialize(table: pa.Table) -> pa.Buffer:
    """Return the bytes of a file of rows."""
    sink = pa.BufferOutputStream()
    # One batch, so that each column is contiguous in memory.
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def write_file(path: Folder, rows: int, data: bytes | pa.Buffer) -> RowFile:
    """Write a file, sync it to disk, and return its entry in the manifest."""
    write_synced(path, data)
    changed = path.stat().st_mtime_ns if isinstance(path, Path) else time.time_ns()
    return RowFile(path.name, rows, memoryview(data).nbytes, checksum(data), changed)


class MappedRows:
    """A memory-mapped file of rows, whose contents are verified when they are first read.

    Args:
        schema: the schema that the rows must have.
        verified: whether the contents are verified at all.
        mapped: the same file with other deleted rows, if it is mapped already.

    Attributes:
        present: `(rows,)` booleans, False for deleted rows; None if no row is deleted.

    Raises:
        OSError: The file cannot be mapped.
        DamagedStoreError: The file with the indices of deleted rows is damaged.
    """

    def __init__(
        self, folder: Path, file: RowFile, schema: pa.Schema, verified: bool = True, mapped: MappedRows | None = None
    ) -> None:
        self.file = file
        self.present = load_present(folder, file, verified)
        self._schema = schema
        self._path = folder / file.name
        self._data: pa.Buffer = map_file(self._path) if mapped is None else mapped._data
        self._verified = verified
        self._table: pa.Table | None = None if mapped is None else mapped._table

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return some columns of the rows as views of the mapped file; None: all columns.

        Raises:
            DamagedStoreError: The checksum does not match, or the contents are no table with the recorded rows.
        """
        if self._table is None:
            try:
                self._table = _parse(self._data, self._path, self.file, self._schema, self._is_fresh())
            except DamagedError as error:
                raise self._damaged(problem_of(error)) from None
        return self._table if columns is None else self._table.select(list(columns))

    def start_check(self, columns: Sequence[str] | None = None) -> tuple[pa.Table, RunningCheck | None]:
        """Return the rows before their checksum is verified, and the check that verifies it; None if it was verified.

        Every offset, length, index and text is valid.

        Raises:
            DamagedStoreError: The contents are no table with the recorded rows.
        """
        if self._table is not None or not self._is_fresh():
            return self.table(columns), None
        try:
            table = _parse_rows(self._data, self.file, self._schema, validate=True)
        except DamagedError:
            return self.table(columns), None  # raises an error, which names the checksum if it does not match either

        def finished(intact: bool) -> None:
            if not intact:
                raise self._damaged(_CHANGED)
            remember_verified(self._path, self.file.check)
            self._table = table

        check = RunningCheck(self._data, self.file.check, finished)
        return table if columns is None else table.select(list(columns)), check

    def _is_fresh(self) -> bool:
        return self._verified and not is_verified(self._path, self.file.check)

    def _damaged(self, problem: str) -> DamagedStoreError:
        damage = Damage(f"{self._path.parent.name}/{self.file.name}", problem, self.file.present_rows)
        return DamagedStoreError(
            f"{self._path.parent.parent.name!r} is damaged: {damage}. Restore this file from a copy, or open "
            "the store with damaged='skip' to read the other rows."
        )


def _parse(data: pa.Buffer, path: Folder, file: RowFile, schema: pa.Schema, fresh: bool) -> pa.Table:
    """Return the table in the contents of a file.

    Args:
        schema: the schema that the table must have.
        fresh: whether the checksum is verified, and every offset, length and index.

    Raises:
        DamagedError: The contents are not those that were recorded.
    """
    if data.size == file.size and fresh and checksum(data) != file.check:
        raise DamagedError(_CHANGED)
    table = _parse_rows(data, file, schema, validate=fresh)
    if fresh:
        remember_verified(path, file.check)
    return table


def _parse_rows(data: pa.Buffer, file: RowFile, schema: pa.Schema, validate: bool) -> pa.Table:
    """Return the table in the contents of a file, whose checksum is not verified.

    Raises:
        DamagedError: The contents have another size, are no table, or a table with other rows or columns.
    """
    if data.size != file.size:
        raise DamagedError(size_problem(data.size, file.size))
    table = parse_table(data, file.name, validate=validate)
    if table.num_rows != file.rows:
        raise DamagedError(f"{table.num_rows:,} rows instead of {file.rows:,}")
    if not table.schema.equals(schema):
        raise DamagedError("the columns are not those of the store")
    return table


def deleted_schema() -> pa.Schema:
    """Return the schema of the files with the indices of deleted rows."""
    return pa.schema({"row": pa.uint32()})


def load_present(folder: Path, file: RowFile, verified: bool = True) -> Bool[np.ndarray, " rows"] | None:
    """Return a boolean array that is False for the deleted rows of a file, or None if no row is deleted.

    Raises:
        DamagedStoreError: The file with the indices of deleted rows is damaged.
    """
    if file.deleted is None:
        return None
    deleted = MappedRows(folder, file.deleted, deleted_schema(), verified)
    return present_without(file, deleted.table(), folder.parent.name)


def present_without(file: RowFile, deleted: pa.Table, store: str) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is False for the deleted rows of a file.

    Args:
        deleted: the table of the indices of its deleted rows.
        store: names the store in errors.

    Raises:
        DamagedStoreError: An index is that of no row.
    """
    assert file.deleted is not None
    rows = deleted.column(0).to_numpy()
    present = np.ones(file.rows, bool)
    if len(rows) and int(rows.max()) >= file.rows:
        raise DamagedStoreError(
            f"the file {file.deleted.name} of {store!r} must hold indices of {file.rows:,} rows, got {rows.max():,}. "
            "Restore this file from a copy."
        )
    present[rows] = False
    return present


def find_problem(folder: Folder, file: RowFile, read: bool, schema: pa.Schema | None = None) -> str | None:
    """Return a text that describes the damage of a file, or None if the file is intact.

    Args:
        read: whether the contents are verified, rather than only the length.
        schema: the schema of the rows that the contents must hold; None: only the checksum is verified.
    """
    path = folder / file.name
    try:
        if not path.is_file():
            return "not a file" if path.exists() else "missing"
        size = path.stat().st_size
        if size != file.size:
            return size_problem(size, file.size)
        if read and schema is not None:
            _parse(map_file(path), path, file, schema, fresh=True)
        elif read and checksum(map_file(path)) != file.check:
            return _CHANGED
    except DamagedError as error:
        return problem_of(error)
    except OSError as error:
        return error.strerror or "it cannot be read"
    return None


def size_problem(size: int, expected: int) -> str:
    """Return a text that describes a file of another size than expected."""
    return f"cut off at {size:,} of {expected:,} bytes" if size < expected else f"{size:,} bytes long"


def find_damages(
    folder: Folder, row_file: RowFile, read: Callable[[str], bool], schema: pa.Schema | None = None
) -> list[Damage]:
    """Check a file of rows and the file of its deleted rows, and return a `Damage` for each damaged file.

    Args:
        read: a function of a file name that returns whether the contents of the file are verified.
        schema: the schema of the rows, by which verified contents are validated; None: only checksums are verified.
    """
    damages: list[Damage] = []
    for file in with_deleted([row_file]):
        expected = deleted_schema() if schema is not None and file is not row_file else schema
        problem = find_problem(folder, file, read(file.name), expected)
        if problem is not None:
            # The rows are lost once, also where both files are damaged.
            damages.append(Damage(f"{folder.name}/{file.name}", problem, 0 if damages else row_file.present_rows))
    return damages


def with_deleted(files: Iterable[RowFile]) -> list[RowFile]:
    """Return a list of files of rows, each followed by the file of its deleted rows if there is one."""
    return [file for rows in files for file in (rows, rows.deleted) if file is not None]


def modified_files(folder: Folder, files: Iterable[RowFile]) -> set[str]:
    """Return the names of the files that were modified after they were written or last verified.

    Their contents are verified when the store is opened, and those of the others when they are first read.
    """
    try:
        verified = Fields(parse_json(read_bounded(folder / VERIFIED), VERIFIED), VERIFIED).fields
    except (OSError, DamagedError):
        verified = {}
    modified = set()
    for file in files:
        with suppress(OSError):
            changed = (folder / file.name).stat().st_mtime_ns
            if changed not in (file.changed, verified.get(file.name)):
                modified.add(file.name)
    return modified


def save_verified(folder: Path, files: Iterable[RowFile]) -> None:
    """Save the modification times of verified files, so that their checksums are not verified at the next opening."""
    times = {file.name: (folder / file.name).stat().st_mtime_ns for file in files}
    write_synced(folder / VERIFIED, json.dumps(times).encode())
