"""The files whose contents this process has verified, so that each is verified once."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from qkv.store.object_path import Folder

__all__ = ["is_verified", "remember_verified"]

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
