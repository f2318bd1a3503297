"""Clients of object stores, and `ObjectPath`, the path of a folder or an object in one.

`ObjectClient` reads and writes objects through obstore. It counts requests and bytes, reads ranges in parallel, and
converts errors of obstore to those of qkv. obstore repeats requests that failed, with exponential backoff. Objects are
created or replaced on a condition that the server checks (`If-None-Match`, `If-Match`), so that of two writers only one
succeeds.

`ObjectPath` has those methods of `pathlib.Path` with which the modules of this package read a store, so that manifests,
their history and their verification are the same code for a folder and for an object store.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from qkv.errors import DamagedError, QkvError, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_MOST_PER_REQUEST = 2**23
"""Largest number of bytes of one request, 8 MiB; longer ranges are read by several requests at the same time."""

_MOST_GAP = 2**16
"""Largest number of bytes between two ranges that are read by one request, because a request costs more than they."""


@dataclass
class Traffic:
    """The requests to an object store and the bytes that were read.

    Attributes:
        requests: number of requests.
        read: number of bytes that were read from the object store.
        cached: number of bytes that were read from the local block cache instead.
        written: number of bytes that were written to the object store.
    """

    requests: int = 0
    read: int = 0
    cached: int = 0
    written: int = 0

    def __sub__(self, other: Traffic) -> Traffic:
        """Return the requests and bytes since an earlier state."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Traffic(*(mine - theirs for mine, theirs in pairs))


@dataclass(frozen=True)
class Entry:
    """An object in a listing: its key, its size in bytes, and the time of its last change."""

    key: str
    size: int
    modified: datetime


class ObjectReader(ABC):
    """Base class of places to read from: objects by key, whole or in ranges. Requests and bytes are counted.

    Attributes:
        traffic: the requests and bytes so far.
    """

    writable: bool
    lists: bool

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.traffic = Traffic()
        self._lock = threading.Lock()

    def count(self, requests: int = 1, read: int = 0, cached: int = 0, written: int = 0) -> None:
        """Add requests and bytes to `traffic`. Threads may call it at the same time."""
        with self._lock:
            self.traffic.requests += requests
            self.traffic.read += read
            self.traffic.cached += cached
            self.traffic.written += written

    @abstractmethod
    def get(self, key: str, largest: int | None = None) -> bytes:
        """Return the contents of an object, or raise a `FileNotFoundError`.

        Raises:
            DamagedError: The object has more than `largest` bytes, which are not read.
        """

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of an object from each start to each stop, or raise a `FileNotFoundError`."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""

    @abstractmethod
    def entries(self, prefix: str, after: str = "") -> list[Entry]:
        """Return the objects below a prefix whose keys come after the key `after`."""


class ObjectClient(ObjectReader):
    """Reads and writes the objects of an object store.

    Args:
        store: a store of obstore, such as `obstore.store.S3Store("bucket")`.
        url: names the store in messages.
        lists: whether the objects of a folder can be listed; those of a web server cannot.
        writable: whether objects can be written.
    """

    def __init__(self, store: ObjectStore, url: str, *, lists: bool = True, writable: bool = True) -> None:
        super().__init__(url)
        self._store = store
        self.lists, self.writable = lists, writable

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, key: str, largest: int | None = None) -> bytes:
        return self.get_with_tag(key, largest)[0]

    def get_with_tag(self, key: str, largest: int | None = None) -> tuple[bytes, str | None]:
        """Return the contents of an object and the tag by which `replace` names it; see `get`."""
        import obstore

        with self._request(key):
            found = obstore.get(self._store, key)
            _check_size(key, found.meta["size"], largest)
            data, tag = found.bytes().to_bytes(), found.meta["e_tag"]
        self.count(0, read=len(data))
        return data, tag

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of an object from each start to each stop, read by parallel requests."""
        import obstore

        requests = _split_ranges(ranges)
        starts, stops = zip(*requests, strict=True) if requests else ((), ())
        with self._request(key, len(requests)):
            parts = obstore.get_ranges(self._store, key, starts=starts, ends=stops, coalesce=0)
        self.count(0, read=sum(len(part) for part in parts))
        found = []
        for start, stop in ranges:
            pieces = [
                memoryview(part)[max(start - first, 0) : stop - first]
                for (first, last), part in zip(requests, parts, strict=True)
                if first < stop and last > start
            ]
            found.append(pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)))
        return found

    def size(self, key: str) -> int | None:
        import obstore

        try:
            with self._request(key):
                return int(obstore.head(self._store, key)["size"])
        except FileNotFoundError:
            return None

    def entries(self, prefix: str, after: str = "") -> list[Entry]:
        """Return the objects below a prefix whose keys come after the key `after`. A request lists up to 1,000."""
        import obstore

        found = []
        with self._request(prefix, 0):
            for chunk in obstore.list(self._store, prefix or None, offset=after or None):
                self.count()
                found += [Entry(each["path"], each["size"], each["last_modified"]) for each in chunk]
        return found

    # -- writing ----------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write an object, and replace an older one."""
        self._put_if(key, data, None)

    def create(self, key: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """Write an object unless it exists, and return whether it was written by this call."""
        return self._put_if(key, data, "create")

    def replace(self, key: str, data: bytes | memoryview | pa.Buffer, tag: str) -> bool:
        """Replace an object unless another writer replaced it since `get_with_tag`, and return whether it was."""
        return self._put_if(key, data, {"e_tag": tag})

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Those that do not exist are ignored."""
        import obstore

        if keys:
            with self._request(keys[0]):
                try:
                    obstore.delete(self._store, list(keys))
                except FileNotFoundError:
                    for key in keys if len(keys) > 1 else ():
                        self.delete([key])

    def _put_if(self, key: str, data: bytes | memoryview | pa.Buffer, mode: Any) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._request(key):
            try:
                whole = data if isinstance(data, bytes) else memoryview(data).cast("B")
                obstore.put(self._store, key, whole, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                return False
        self.count(0, written=len(memoryview(data)))
        return True

    @contextmanager
    def _request(self, key: str, requests: int = 1) -> Iterator[None]:
        """Count requests, and raise a `StorageError` in place of an error of obstore."""
        from obstore.exceptions import BaseError

        self.count(requests)
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise StorageError(
                    f"the bucket of {self.url} must exist, got none of this name. Check the URL and the region."
                ) from None
            raise FileNotFoundError(f"{self.url}/{key} does not exist") from None
        except (BaseError, OSError) as error:
            raise StorageError(
                f"{self.url}/{key} cannot be read or written: {_reason(error)}. Check the URL, the network, and the "
                "credentials of the environment or of storage_options."
            ) from None


class FsspecClient(ObjectReader):
    """Reads objects through a file system of fsspec, which is read-only here because it has no conditional writes.

    Args:
        system: the file system.
        root: the path of the store in the file system.
        url: names the store in messages.
    """

    writable, lists = False, True

    def __init__(self, system: Any, root: str, url: str) -> None:
        super().__init__(url)
        self._system, self._root = system, root.rstrip("/")

    def get(self, key: str, largest: int | None = None) -> bytes:
        with self._request(key):
            if largest is not None:
                _check_size(key, int(self._system.size(self._path(key))), largest)
            data = bytes(self._system.cat_file(self._path(key)))
        self.count(0, read=len(data))
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        found = []
        for start, stop in ranges:
            with self._request(key, len(_split_ranges([(start, stop)]))):
                pieces = [self._system.cat_file(self._path(key), *part) for part in _split_ranges([(start, stop)])]
            found.append(memoryview(b"".join(pieces)))
        self.count(0, read=sum(len(part) for part in found))
        return found

    def size(self, key: str) -> int | None:
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


def _check_size(key: str, size: int, largest: int | None) -> None:
    """Raise a `DamagedError` if an object has more than `largest` bytes."""
    if largest is not None and size > largest:
        raise DamagedError(
            f"{key.rpartition('/')[2]} must have at most {largest:,} bytes, got {size:,} bytes. Restore it from a copy."
        )


def _split_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the requests that read some ascending ranges: near ones are joined, and long ones are split.

    Example:
        >>> _split_ranges([(0, 10), (20, 30), (2**20, 2**20 + 2**23 + 1)])
        [(0, 30), (1048576, 9437184), (9437184, 9437185)]
    """
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and start - joined[-1][1] <= _MOST_GAP:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return [
        (first, min(first + _MOST_PER_REQUEST, stop))
        for start, stop in joined
        for first in range(start, stop, _MOST_PER_REQUEST)
    ]


def _reason(error: Exception) -> str:
    """Return the first line of an error without the parts of a URL that may hold a signature or a password."""
    line = (str(error).strip().split("\n")[0] or type(error).__name__)[:300]
    line = re.sub(r"://[^/@\s]*@", "://", re.sub(r"\?[^\s\"')]+", "?…", line))
    return line.rstrip(". ")


@dataclass(frozen=True)
class _Status:
    st_size: int
    st_mtime_ns: int = 0


class ObjectPath:
    """The path of a folder or an object in an object store.

    Args:
        client: reads the objects.
        key: the path of the object, relative to the URL of the client.

    Example:
        >>> from obstore.store import MemoryStore
        >>> folder = ObjectPath(ObjectClient(MemoryStore(), "memory://"), "people")
        >>> (folder / "versions" / "newest.json").key, folder.name, folder.exists()
        ('people/versions/newest.json', 'people', False)
    """

    def __init__(self, client: ObjectReader, key: str = "") -> None:
        self.client, self.key = client, key.strip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        """Return the path of an object or folder in this folder."""
        return ObjectPath(self.client, f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{self.client.url}/{self.key}".rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and (self.client, self.key) == (other.client, other.key)

    def __hash__(self) -> int:
        return hash((id(self.client), self.key))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self).rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder of this object or folder."""
        return ObjectPath(self.client, self.key.rpartition("/")[0]) if self.key else self

    def with_name(self, name: str) -> ObjectPath:
        """Return the path of another object or folder in the same folder."""
        return self.parent / name

    def absolute(self) -> ObjectPath:
        """Return this path, which does not depend on a current folder."""
        return self

    def exists(self) -> bool:
        """Return whether there is an object of this name."""
        return self.client.size(self.key) is not None

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        return self.exists()

    def stat(self) -> _Status:
        """Return the size, or raise a `FileNotFoundError`."""
        size = self.client.size(self.key)
        if size is None:
            raise FileNotFoundError(f"{self} does not exist")
        return _Status(size)

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the objects in this folder and in its folders."""
        return (ObjectPath(self.client, entry.key) for entry in self.client.entries(self.key))

    def names(self, after: str = "") -> list[str]:
        """Return the names of the objects in this folder that come after a name."""
        entries = self.client.entries(self.key, f"{self.key}/{after}".strip("/") if after else "")
        start = len(self.key) + 1 if self.key else 0
        return [entry.key[start:] for entry in entries]

    def read_bytes(self) -> bytes:
        """Return the contents, or raise a `FileNotFoundError`."""
        return self.client.get(self.key)

    def read_bounded(self, largest: int) -> bytes:
        """Return the contents of an object of at most `largest` bytes, or raise a `DamagedError`."""
        return self.client.get(self.key, largest)

    @property
    def writer(self) -> ObjectClient:
        """The client, if it can write.

        Raises:
            StorageError: The place is read-only.
        """
        if not isinstance(self.client, ObjectClient) or not self.client.writable:
            raise StorageError(
                f"{self} must be an object store that can be written, such as s3://, gs:// or az://, got one that is "
                "read-only. Copy the store to one of these, or to a folder."
            )
        return self.client

    def write_bytes(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Write the object, and replace an older one."""
        self.writer.put(self.key, data)

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the object. An object that does not exist is ignored, as object stores do."""
        self.writer.delete([self.key])


Folder: TypeAlias = Path | ObjectPath
"""A folder on a disk or in an object store."""
