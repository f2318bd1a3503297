"""The files of rows: Arrow IPC, written whole, memory-mapped when read, compared with their checksums."""

import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkv.store.disk import checksum, sync_folder, write_synced
from qkv.store.manifest import Piece

__all__ = [
    "VERIFIED",
    "cut",
    "load",
    "problem_of",
    "remember_verified",
    "suspects",
    "write_rows",
]

BYTES = 2**25
"""How much one file of rows holds, about: 32 MiB. A damaged file loses no more than this."""

VERIFIED = "verified.json"


def cut(table: Any) -> Iterator[Any]:
    """A table in parts of about `BYTES`, at least one row each."""
    if not table.num_rows:
        return
    parts = min(table.num_rows, -(-table.nbytes // BYTES)) or 1
    each = -(-table.num_rows // parts)
    for start in range(0, table.num_rows, each):
        yield table.slice(start, each)


def _write_piece(folder: Path, table: Any) -> Piece:
    """Write a table as one file, synced; the folder's names are not."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    # One batch: a scan then finds each column in one piece of memory.
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue()
    path = folder / f"{uuid.uuid4().hex}.arrow"
    write_synced(path, data)
    state = path.stat()
    return Piece(path.name, table.num_rows, state.st_size, checksum(data), state.st_mtime_ns)


def write_rows(folder: Path, tables: Iterable[Any]) -> tuple[Piece, ...]:
    """Write tables, a file each, and sync the folder."""
    pieces = tuple(_write_piece(folder, table) for table in tables)
    sync_folder(folder)
    return pieces


def load(folder: Path, piece: Piece) -> Any:
    """The table in a file, memory-mapped."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(str(folder / piece.name))).read_all()


def kept_rows(folder: Path, piece: Piece) -> np.ndarray | None:
    """`(rows,)` booleans, False where a row is deleted; None where none is."""
    if piece.deleted is None:
        return None
    kept = np.ones(piece.rows, bool)
    kept[load(folder, piece.deleted).column(0).to_numpy()] = False
    return kept


def problem_of(folder: Path, piece: Piece, read: bool) -> str | None:
    """What is wrong with a file, or None.

    Args:
        folder: where it is.
        piece: what it should be.
        read: compare every byte; otherwise only its length.
    """
    import pyarrow as pa

    path = folder / piece.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "missing"
    if size != piece.size:
        return f"cut off at {size:,} of {piece.size:,} bytes" if size < piece.size else f"{size:,} bytes long"
    if read and size:
        with pa.memory_map(str(path)) as mapped:
            if checksum(mapped.read_buffer()) != piece.check:
                return "bytes changed"
    return None


def suspects(folder: Path, pieces: Iterable[Piece]) -> set[str]:
    """The files that were touched since they were written or last verified: these are read when opened.

    Bytes that change without a trace in the file's times are found by `verify` alone.
    """
    try:
        verified = json.loads((folder / VERIFIED).read_bytes())
    except (OSError, ValueError):
        verified = {}
    found = set()
    for piece in pieces:
        try:
            changed = (folder / piece.name).stat().st_mtime_ns
        except FileNotFoundError:
            continue
        if changed not in (piece.changed, verified.get(piece.name)):
            found.add(piece.name)
    return found


def remember_verified(folder: Path, pieces: Iterable[Piece]) -> None:
    """Note the times of files whose bytes were just found right: a copied store is then read through once."""
    times = {piece.name: (folder / piece.name).stat().st_mtime_ns for piece in pieces}
    write_synced(folder / VERIFIED, json.dumps(times).encode())
