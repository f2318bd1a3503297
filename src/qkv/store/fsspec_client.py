"""The class `FsspecClient`, which reads objects through a file system of fsspec, such as sftp:// or hf://."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from qkv.errors import QkvError, StorageError
from qkv.store.object_client import Entry, ReadCounter, check_size, split_ranges

__all__ = ["FsspecClient"]


class FsspecClient(ReadCounter):
    """Reads objects through a file system of fsspec, which is read-only here because it has no conditional writes.

    Args:
        system: the file system.
        root: the path of the store in the file system.
        url: names the store in messages.
    """

    writable, lists = False, True

    def __init__(self, system: Any, root: str, url: str) -> None:
        super().__init__(url.rstrip("/"))
        self._system, self._root = system, root.rstrip("/")

    def get(self, key: str, largest: int | None = None) -> bytes:
        """Return the contents of an object of at most `largest` bytes, or raise a `FileNotFoundError`."""
        with self._request(key):
            if largest is not None:
                check_size(key, int(self._system.size(self._path(key))), largest)
            data = bytes(self._system.cat_file(self._path(key)))
        self.count(0, read=len(data))
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of an object from each start to each stop, or raise a `FileNotFoundError`."""
        found = []
        for start, stop in ranges:
            with self._request(key, len(split_ranges([(start, stop)]))):
                pieces = [self._system.cat_file(self._path(key), *part) for part in split_ranges([(start, stop)])]
            found.append(memoryview(b"".join(pieces)))
        self.count(0, read=sum(len(part) for part in found))
        return found

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        try:
            with self._request(key):
                found = self._system.info(self._path(key))
        except FileNotFoundError:
            return None
        return int(found["size"]) if found.get("type", "file") == "file" else None

    def entries(self, prefix: str, after: str = "") -> list[Entry]:
        """Return the objects below a prefix whose keys come after the key `after`, without their times."""
        try:
            with self._request(prefix):
                found = self._system.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return []
        start, unknown = len(self._path("")) + 1, datetime.fromtimestamp(0, UTC)
        entries = (Entry(str(path)[start:], int(each["size"]), unknown) for path, each in sorted(found.items()))
        return [entry for entry in entries if entry.key > after]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}".rstrip("/")

    @contextmanager
    def _request(self, key: str, requests: int = 1) -> Iterator[None]:
        """Count requests, and raise a `StorageError` in place of an error of the file system."""
        self.count(requests)
        try:
            yield
        except (FileNotFoundError, QkvError):
            raise
        except Exception as error:  # each file system has errors of its own
            raise StorageError(
                f"{self.url}/{key} cannot be read: {type(error).__name__}. Check the URL, the network and the "
                "credentials of the file system."
            ) from None
