"""Checksums of files and arrays: CRC-32 at the speed of reading memory, and SHA-256 for links between files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    import pyarrow as pa

    Bytes: TypeAlias = bytes | bytearray | memoryview | mmap.mmap | pa.Buffer


_CHUNK = 2**18
"""Number of bytes that are read at a time, so that they are in the cache of a core when their checksum is computed."""


@cache
def _crc32() -> Callable[..., int]:
    # On an AMD EPYC of 2026 zlib-ng computes CRC-32 at 34 GB/s, the speed of a sum in NumPy, and Python's zlib at 7.
    try:
        from zlib_ng.zlib_ng import crc32
    except ImportError:
        from zlib import crc32
    return crc32


def checksum(data: Bytes, value: int = 0) -> int:
    """Return the CRC-32 checksum of a buffer of bytes.

    Args:
        value: the checksum of the bytes before these, if they are the next piece of a file.

    Example:
        >>> checksum(b"123456789") == 0xCBF43926
        True
    """
    return _crc32()(memoryview(data).cast("B"), value)


def file_checksum(path: Path) -> int:
    """Return the CRC-32 checksum of the contents of a file."""
    value, buffer = 0, memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            value = _crc32()(buffer[:count], value)
    return value


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def checksums_wanted() -> bool:
    """Return whether checksums are verified on reading: True unless the environment has `QKV_CHECKSUMS=0`."""
    return os.environ.get("QKV_CHECKSUMS", "1").lower() not in ("0", "false", "no", "off")
