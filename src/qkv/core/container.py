"""Containers: files that hold JSON settings and arrays with their checksums, and are replaced atomically.

    qkv container 1  <bytes of the manifest> <CRC-32 of the manifest>     one line of 64 bytes
    manifest         JSON: kind, number, settings, and the name, type, place and CRC-32 of each part
    parts            the bytes of arrays, each at a multiple of 64 bytes

Search indexes, encoders, models and results that are saved with a store are containers. A container has the number 1
when it is first written and the next number whenever it is replaced, together with the SHA-256 of the manifest before.
Arrays may be mapped into memory; the checksum of a part is verified when it is first read.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np

from qkv.core.checksums import checksum, checksums_wanted, digest
from qkv.core.files import fsync, write_atomic
from qkv.core.typing import Shaped
from qkv.core.untrusted_json import Fields, parse_json
from qkv.errors import DamagedError, DataError

_MAGIC = b"qkv container "
_FORMAT = 1
_LINE = 64
_ALIGNMENT = 64
_KINDS = "biufc"
"""Kinds of NumPy's types that a part may have: booleans, integers, floats and complex numbers."""

_BYTES = "bytes"


@dataclass(frozen=True)
class _Part:
    """The entry of a part in the manifest.

    Attributes:
        name: the name.
        dtype: the type of an array, or "bytes".
        shape: the shape of an array, or the number of bytes.
        start: the place of the first byte in the file.
        size: number of bytes.
        check: the CRC-32 of the bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int
    check: int

    @classmethod
    def parse(cls, value: object, name: str, total: int) -> _Part:
        """Return the entry that JSON describes, for a file of `total` bytes."""
        fields = Fields(value, f"a part of {name}")
        start = fields.integer("start", most=total)
        size = fields.integer("size", most=total - start)
        shape = fields.items("shape")
        if len(shape) > 8 or not all(type(length) is int and 0 <= length <= total for length in shape):
            raise fields.damaged("shape", "a list of at most 8 lengths")
        lengths = tuple(int(str(length)) for length in shape)
        dtype = fields.text("dtype")
        if math.prod(lengths) * _item_size(dtype) != size:
            raise fields.damaged("shape", f"a shape of {size:,} bytes of the type {ascii(dtype)[:20]}")
        return cls(fields.text("name"), dtype, lengths, start, size, fields.integer("check", most=2**32 - 1))


def _item_size(dtype: str) -> int:
    """Return the number of bytes of an element, or −1 if the type is not allowed."""
    if dtype == _BYTES:
        return 1
    try:
        parsed = np.dtype(dtype) if len(dtype) <= 4 else None
    except (TypeError, ValueError):  # half of a surrogate pair
        return -1
    return parsed.itemsize if parsed is not None and parsed.kind in _KINDS and parsed.str == dtype else -1


class Container:
    """A container that was read by `read_container`.

    Attributes:
        path: the file.
        kind: what the container holds, such as `search index`.
        number: 1 for the first version of the file, increased by 1 whenever it was replaced.
        written: the time at which it was written, in ISO format.
        settings: the JSON values, as they were passed to `write_container`.
        digest: the SHA-256 of the manifest.
    """

    def __init__(self, path: Path, data: memoryview, text: bytes, fields: Fields, remedy: str) -> None:
        self.path = path
        self.digest = digest(text)
        self.kind = fields.text("kind")
        self.number = fields.integer("number", 1)
        self.written = fields.text("written")
        self.settings = fields.record("settings")
        self._data, self._remedy, self._checked = data, remedy, checksums_wanted()
        parts = [_Part.parse(value, fields.name, len(data)) for value in fields.items("parts")]
        self._parts = {part.name: part for part in parts}
        self._verified: set[str] = set()
        if len(self._parts) < len(parts):
            raise fields.damaged("parts", "parts with distinct names")

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def fields(self) -> Fields:
        """Return the settings for reading with checks of their types."""
        return Fields(self.settings, f"the settings of {self.path.name}")

    def bytes(self, name: str) -> memoryview:
        """Return the bytes of a part, as a view of the mapped file.

        Raises:
            DamagedError: there is no such part, or its checksum does not match.
        """
        part = self._parts.get(name)
        if part is None:
            raise self.damaged(f"have the part {name!r}", "no such part")
        data = self._data[part.start : part.start + part.size]
        if self._checked and name not in self._verified:
            if checksum(data) != part.check:
                raise self.damaged(f"be intact, and its part {name!r} match its checksum", "another checksum")
            self._verified.add(name)
        return data

    def array(self, name: str, ndim: int | None = None) -> Shaped[np.ndarray, "*_"]:
        """Return an array, as a view of the mapped file that cannot be written.

        Args:
            name: the name of the part.
            ndim: the number of axes that it must have; None: any.

        Raises:
            DamagedError: there is no such array, it has another number of axes, or its checksum does not match.
        """
        data, part = self.bytes(name), self._parts[name]
        if part.dtype == _BYTES or ndim not in (None, len(part.shape)):
            expected = "an array" if ndim is None else f"an array of {ndim} axes"
            raise self.damaged(f"have {expected} as part {name!r}", f"{part.dtype} of shape {part.shape}")
        try:
            return np.frombuffer(data, np.dtype(part.dtype)).reshape(part.shape)
        except ValueError as error:
            raise self.damaged(f"have an array as part {name!r}", str(error)) from None

    def verify(self) -> list[str]:
        """Return the names of the parts whose checksums do not match."""
        damaged = []
        for name, part in self._parts.items():
            if checksum(self._data[part.start : part.start + part.size]) != part.check:
                damaged.append(name)
        return damaged

    def damaged(self, condition: str, got: str) -> DamagedError:
        """Return the error for a container that does not meet a condition."""
        return DamagedError(f"{str(self.path)!r} must {condition}, got {got}. {self._remedy}")


def is_container(path: Path) -> bool:
    """Return whether a file begins like a container. It may be damaged."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def container_problem(path: Path) -> str | None:
    """Return a text that describes the damage of a container of any kind, or None if all its bytes are intact."""
    try:
        with path.open("rb") as file:
            words = file.read(_LINE)[len(_MAGIC) :].split()
            length = int(words[1])
            kind = Fields(parse_json(file.read(min(length, 2**28)), path.name), path.name).text("kind")
        damaged = read_container(path, kind, "").verify()
    except FileNotFoundError:
        return "missing"
    except (DataError, OSError, ValueError, IndexError):
        return "its manifest is damaged"
    return f"the checksum of {', '.join(damaged)} does not match" if damaged else None


def write_container(
    path: Path,
    kind: str,
    settings: Mapping[str, object],
    parts: Mapping[str, Shaped[np.ndarray, "*_"] | bytes],
    description: str = "the file",
) -> None:
    """Write a container atomically and sync it to the disk. An existing file is replaced.

    Args:
        kind: what the container holds.
        settings: JSON values.
        parts: arrays of numbers, and bytes, by name.
        description: name of the file in error messages.

    Raises:
        DataError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "model"
        ...     write_container(file, "example", {"rank": 2}, {"x": np.arange(3)})
        ...     read = read_container(file, "example", "Write it again.")
        ...     read.settings, read.array("x").tolist(), read.number
        ({'rank': 2}, [0, 1, 2], 1)
    """
    number, parent = _previous(path, kind)
    arrays = {name: _contiguous(part) for name, part in parts.items()}
    entries, start = [], 0
    for name, array in arrays.items():
        whole = isinstance(parts[name], bytes)
        dtype, shape = (_BYTES, (array.size,)) if whole else (array.dtype.str, array.shape)
        entries.append(_Part(name, dtype, shape, start, array.nbytes, checksum(_flat(array))))
        start += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    manifest = {
        "kind": kind,
        "number": number + 1,
        "parent": parent,
        "written": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "settings": dict(settings),
        "parts": [asdict(entry) for entry in entries],
    }
    text = _encode(manifest)
    # The places of the parts depend on the length of the manifest, which depends on the digits of the places.
    while True:
        first = -(-(_LINE + len(text)) // _ALIGNMENT) * _ALIGNMENT
        places = [{**asdict(entry), "start": entry.start + first} for entry in entries]
        moved = _encode({**manifest, "parts": places, "size": first + start})
        if len(moved) <= len(text):
            moved = moved.ljust(len(text))
            break
        text = moved

    def write(stream: IO[bytes]) -> None:
        line = _MAGIC + f"{_FORMAT} {len(moved)} {checksum(moved):08x}".encode()
        stream.write(line.ljust(_LINE - 1) + b"\n" + moved)
        stream.write(bytes(first - _LINE - len(moved)))
        for array in arrays.values():
            stream.write(_flat(array))
            stream.write(bytes(-array.nbytes % _ALIGNMENT))

    write_atomic(path, write, description, sync=True)
    try:
        fsync(path.parent)
    except OSError as error:
        raise DataError(f"{description} {str(path)!r} cannot be synced: {error.strerror}. Check the disk.") from None


def read_container(path: Path, kind: str, remedy: str, description: str = "the file") -> Container:
    """Read a container, after checking its manifest. The checksum of each part is verified when it is read.

    Args:
        kind: what the container must hold.
        remedy: the last sentence of errors.
        description: name of the file in error messages.

    Raises:
        DataError: the file cannot be read, or was written by a newer version of qkv.
        DamagedError: the file is no container of this kind, or is damaged.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{description} must be a readable file, got {str(path)!r}: {reason}. Check the path."
        ) from None
    data = memoryview(mapped)
    line = bytes(data[:_LINE])
    words = line[len(_MAGIC) :].split()
    if not line.startswith(_MAGIC) or len(line) < _LINE or len(words) != 3:
        raise DamagedError(f"{description} must be a container that qkv wrote, got {str(path)!r}. {remedy}")
    if words[0].isdigit() and int(words[0]) > _FORMAT:
        raise DataError(f"{str(path)!r} was written by a newer version of qkv. Update: pip install -U qkv.")
    length = int(words[1]) if words[1].isdigit() and len(words[1]) < 12 else 0
    text = bytes(data[_LINE : _LINE + length])
    if words[0] != b"%d" % _FORMAT or f"{checksum(text):08x}".encode() != words[2]:
        raise DamagedError(f"{str(path)!r} must have an intact manifest, got another checksum. {remedy}")
    try:
        fields = Fields(parse_json(text, path.name), path.name)
        if fields.integer("size") != size:
            raise DamagedError(
                f"{str(path)!r} must have {fields.integer('size'):,} bytes, got {size:,} bytes. {remedy}"
            )
        container = Container(path, data, text, fields, remedy)
        if container.kind != kind:
            raise DamagedError(f"{str(path)!r} must hold {kind}, got {ascii(container.kind)[:80]}. {remedy}")
    except DamagedError as error:
        raise DamagedError(str(error).replace("Restore the file from a copy.", remedy)) from None
    return container


def _previous(path: Path, kind: str) -> tuple[int, str | None]:
    """Return the number of the container in a file, and the SHA-256 of its manifest; 0 and None if there is none."""
    if not is_container(path):
        return 0, None
    try:
        before = read_container(path, kind, "")
    except DataError:
        return 0, None
    return before.number, before.digest


def _contiguous(part: Shaped[np.ndarray, "*_"] | bytes) -> Shaped[np.ndarray, "*_"]:
    return np.frombuffer(part, np.uint8) if isinstance(part, bytes) else np.asarray(part, order="C")


def _flat(array: Shaped[np.ndarray, "*_"]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=0).encode("utf-8", "surrogatepass")
