"""The class `ObjectPath`, the path of a folder or an object in an object store.

It has those methods of `pathlib.Path` with which the modules of this package read a store, so that manifests, their
history and their verification are the same code for a folder and for an object store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qkv.errors import StorageError
from qkv.store.object_client import ObjectClient, ObjectReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Folder", "ObjectPath"]


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

    def is_dir(self) -> bool:
        """Return whether there is an object in this folder; False where objects cannot be listed."""
        return self.client.lists and bool(self.client.entries(self.key))

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
