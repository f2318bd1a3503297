"""Files that are written whole or not at all, and are on the disk when the call returns."""

import errno
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.core.files import atomic_path, fsync
from qkv.errors import StoreFullError

__all__ = ["TEMPORARY", "checksum", "full_disk_in_words", "sync_folder", "write_synced"]

TEMPORARY = ".writing-"
"""Start of the names of temporary files."""

_PIECE = 2**24
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def checksum(data: Any) -> int:
    """The CRC-32 of bytes, piece by piece, so that a mapped file passes through memory once.

    Example:
        >>> checksum(b"123456789") == 0xCBF43926
        True
    """
    view = memoryview(data).cast("B")
    value = 0
    for start in range(0, len(view), _PIECE):
        value = zlib.crc32(view[start : start + _PIECE], value)
    return value


@contextmanager
def full_disk_in_words(name: str) -> Iterator[None]:
    """Turn a full disk, a spent quota and a file that would be too large into a `StoreFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StoreFullError(
            f"{name!r} cannot be written: {os.strerror(error.errno)}. "
            "The store is as it was; free some space and repeat."
        ) from None


def write_synced(path: Path, data: Any) -> None:
    """Write a file atomically and wait until its bytes are on the disk; its name is not: see `sync_folder`.

    Raises:
        StoreFullError: the disk is full, or the file would be larger than is allowed. Nothing is left behind.
    """
    with (
        full_disk_in_words(path.name),
        atomic_path(path, prefix=TEMPORARY, sync=True) as temporary,
        temporary.open("xb") as file,
    ):
        file.write(data)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder, so that a rename survives a loss of power."""
    with full_disk_in_words(path.name):
        fsync(path)
