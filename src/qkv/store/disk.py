"""Functions that write files atomically and sync them to disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from qkv.core.files import atomic_path, fsync
from qkv.errors import StoreFullError
from qkv.store.object_client import Folder

if TYPE_CHECKING:
    import mmap

    Bytes: TypeAlias = bytes | memoryview | mmap.mmap | pa.Buffer


TEMPORARY = ".writing-"
"""Prefix of the names of temporary files."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translate_disk_full(name: str) -> Iterator[None]:
    """While a store is written, raise a `StoreFullError` for a full disk, a quota or a file size limit."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StoreFullError(
            f"{name!r} cannot be written: {os.strerror(error.errno)}. "
            "The store is unchanged; free some space and try again."
        ) from None


def write_synced(path: Folder, data: Bytes) -> None:
    """Write a file atomically and sync its contents to disk. The name of the file is synced by `sync_folder`.

    An object of an object store is durable when the request returns.

    Raises:
        StoreFullError: The disk is full, or the file exceeds the allowed size. No file remains.
    """
    if not isinstance(path, Path):
        path.write_bytes(data)
        return
    with (
        translate_disk_full(path.name),
        atomic_path(path, prefix=TEMPORARY, sync=True) as temporary,
        temporary.open("xb") as file,
    ):
        file.write(data)


def sync_folder(path: Folder) -> None:
    """Sync a folder to disk, so that renamed files survive a power loss."""
    if not isinstance(path, Path):
        return
    with translate_disk_full(path.name):
        fsync(path)
