"""Functions that write, memory-map and verify the files of an `ArrowStore`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool
from qkv.store.base import Damage
from qkv.store.disk import checksum, sync_folder, write_synced
from qkv.store.manifest import RowFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BYTES",
    "VERIFIED",
    "find_damages",
    "find_problem",
    "load",
    "load_present",
    "modified_files",
    "save_verified",
    "split_table",
    "with_deleted",
    "write_rows",
]

BYTES = 2**25
"""Approximate size of a file of rows, 32 MiB. A damaged file loses at most this much data."""

VERIFIED = "verified.json"


def split_table(table: pa.Table) -> Iterator[pa.Table]:
    """Yield parts of a table of about 32 MiB each, with at least one row in each part."""
    if not table.num_rows:
        return
    parts = min(table.num_rows, -(-table.nbytes // BYTES)) or 1
    rows = -(-table.num_rows // parts)
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def write_rows(folder: Path, tables: Iterable[pa.Table]) -> tuple[RowFile, ...]:
    """Write each table to a file, sync the folder to disk, and return the manifest entries of the files."""
    files = tuple(_write_file(folder, table) for table in tables)
    sync_folder(folder)
    return files


def _write_file(folder: Path, table: pa.Table) -> RowFile:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    # One batch, so that each column is contiguous in memory.
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return write_file(folder / f"{uuid.uuid4().hex}.arrow", table.num_rows, sink.getvalue())


def write_file(path: Path, rows: int, data: bytes | pa.Buffer) -> RowFile:
    """Write a file, sync it to disk, and return its entry in the manifest."""
    write_synced(path, data)
    state = path.stat()
    return RowFile(path.name, rows, state.st_size, checksum(data), state.st_mtime_ns)


def load(folder: Path, file: RowFile) -> pa.Table:
    """Return the table in an Arrow IPC file as a memory-mapped pyarrow table."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(str(folder / file.name))).read_all()


def load_present(folder: Path, file: RowFile) -> Bool[np.ndarray, " rows"] | None:
    """Return a boolean array that is False for the deleted rows of a file, or None if no row is deleted."""
    if file.deleted is None:
        return None
    present = np.ones(file.rows, bool)
    present[load(folder, file.deleted).column(0).to_numpy()] = False
    return present


def find_problem(folder: Path, file: RowFile, read: bool) -> str | None:
    """Return a text that describes the damage of a file, or None if the file is intact.

    Args:
        folder: the folder of the file.
        file: the file as recorded.
        read: whether the checksum is verified, rather than only the length.
    """
    import pyarrow as pa

    path = folder / file.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "missing"
    if size != file.size:
        return f"cut off at {size:,} of {file.size:,} bytes" if size < file.size else f"{size:,} bytes long"
    if read and size:
        with pa.memory_map(str(path)) as mapped:
            if checksum(mapped.read_buffer()) != file.check:
                return "the checksum does not match"
    return None


def find_damages(folder: Path, row_file: RowFile, read: Callable[[str], bool]) -> list[Damage]:
    """Check a file of rows and the file of its deleted rows, and return a `Damage` for each damaged file.

    Args:
        folder: the folder of the files.
        row_file: the file of rows as recorded.
        read: a function of a file name that returns whether the checksum of the file is verified.
    """
    return [
        Damage(file.name, problem, row_file.present_rows)
        for file in with_deleted([row_file])
        if (problem := find_problem(folder, file, read(file.name)))
    ]


def with_deleted(files: Iterable[RowFile]) -> list[RowFile]:
    """Return a list of files of rows, each followed by the file of its deleted rows if there is one."""
    return [file for rows in files for file in (rows, rows.deleted) if file is not None]


def modified_files(folder: Path, files: Iterable[RowFile]) -> set[str]:
    """Return the names of the files that were modified after they were written or last verified.

    Their checksums are verified when the store is opened. Changes that leave the modification time unchanged are
    detected by `verify` alone.
    """
    try:
        verified = json.loads((folder / VERIFIED).read_bytes())
    except (OSError, ValueError):
        verified = {}
    modified = set()
    for file in files:
        with suppress(FileNotFoundError):
            changed = (folder / file.name).stat().st_mtime_ns
            if changed not in (file.changed, verified.get(file.name)):
                modified.add(file.name)
    return modified


def save_verified(folder: Path, files: Iterable[RowFile]) -> None:
    """Save the modification times of verified files, so that their checksums are not verified at the next opening."""
    times = {file.name: (folder / file.name).stat().st_mtime_ns for file in files}
    write_synced(folder / VERIFIED, json.dumps(times).encode())
