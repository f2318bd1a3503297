"""The class `BlockCache`, a bounded folder on this machine with parts of the files of stores in object stores.

    CACHE/blocks/3f….part     the parts of a file of rows that were read, at the places where they are in the file
    CACHE/blocks/3f….pages    the checksums of its pages

A file has holes where nothing was read. Which parts are there is not recorded: whoever reads a page compares its
checksum, and a hole does not match. So a process may be killed at any time, and several processes share the folder.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from pathlib import Path

from qkv.core.checksums import digest
from qkv.core.files import user_cache
from qkv.core.formatting import memory_bytes

_DEFAULT = "1 GiB"
_CHECKS = 16
"""The folder is measured whenever this fraction of its limit was written."""


class BlockCache:
    r"""A folder that holds parts of files, of at most a number of bytes.

    When it is full, files are removed at random. A table that is scanned again and again and is larger than the cache
    would find nothing in it if the oldest were removed.

    Args:
        folder: the folder, created when the first part is written.
        most: the largest number of bytes on the disk; 0: nothing is saved.

    Example:
        >>> import tempfile
        >>> cache = BlockCache(Path(tempfile.mkdtemp()) / "blocks", 2**20)
        >>> cache.write("a.arrow", 2, b"lo")
        >>> part = bytearray(4)
        >>> cache.read("a.arrow", 0, memoryview(part)), part
        (4, bytearray(b'\x00\x00lo'))
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._since_check = most
        self._lock = threading.Lock()

    def read(self, name: str, start: int, view: memoryview) -> int:
        """Read the bytes of a file from `start` on into a buffer, and return their number; holes are read as zeros."""
        if not self.most:
            return 0
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                file.seek(start)
                return file.readinto(view) or 0
        except OSError:
            return 0

    def write(self, name: str, start: int, data: bytes | memoryview) -> None:
        """Save bytes of a file from `start` on. Errors are ignored, because the bytes can be read again."""
        if not self.most or len(data) > self.most:
            return
        with suppress(OSError):
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            try:
                os.lseek(file, start, os.SEEK_SET)
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
            finally:
                os.close(file)
        with self._lock:
            self._since_check += len(data)
            full = self._since_check > self.most // _CHECKS
            if full:
                self._since_check = 0
        if full:
            self._shrink(keep=name)

    def size(self) -> int:
        """Return the number of bytes that the folder occupies on the disk."""
        return sum(_occupied(path) for path in self._files())

    def _shrink(self, keep: str) -> None:
        """Remove files at random until the folder is small enough."""
        sizes = {path: _occupied(path) for path in self._files()}
        total, newest = sum(sizes.values()), self._path(keep)
        most = self.most - self.most // _CHECKS
        paths = [path for path in sizes if path != newest]
        random.shuffle(paths)
        while paths and total > most:
            path = paths.pop()
            with suppress(OSError):
                path.unlink()
                total -= sizes[path]
        if total > most:
            with suppress(OSError):
                newest.unlink()

    def _files(self) -> list[Path]:
        with suppress(OSError):
            return [path for path in self.folder.iterdir() if path.suffix in (".part", ".pages")]
        return []

    def _path(self, name: str) -> Path:
        suffix = ".pages" if name.endswith(".pages") else ".part"
        return self.folder / f"{digest(name.encode())[:32]}{suffix}"


def default_cache() -> BlockCache:
    """Return the cache in the folder `blocks` of the user's caches, see `user_cache`.

    The environment variable `QKV_BLOCK_CACHE` is its limit, such as "200 MiB" or "0" for no cache; by default 1 GiB.
    """
    limit = os.environ.get("QKV_BLOCK_CACHE", _DEFAULT).strip()
    return BlockCache(user_cache("blocks"), 0 if limit == "0" else memory_bytes(limit))


def _occupied(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else 512 * int(blocks)
