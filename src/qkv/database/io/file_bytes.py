"""The bytes of a file of text: decompression, encoding, conversion to UTF-8, and lines that are too long."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from qkv.core.formatting import memory_bytes, memory_text
from qkv.errors import DataError

COMPRESSIONS = (".gz", ".zst")
_BLOCK, _END = 1 << 20, 1 << 16


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, which are decompressed if its name ends in .gz or .zst."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", _gzip()[0](path))
    if suffix == ".zst":
        stream: IO[bytes] = pa.input_stream(str(path), compression="zstd")
        return stream
    return path.open("rb")


@cache
def _gzip() -> tuple[Callable[[Path], object], type[Exception]]:
    """Return the function that opens .gz files and the error that it raises, of zlib-ng if possible: twice as fast."""
    try:
        from zlib_ng import gzip_ng, zlib_ng
    except ImportError:
        return gzip.open, zlib.error
    return cast("Callable[[Path], object]", gzip_ng.open), cast("type[Exception]", zlib_ng.error)


def unpacking_errors() -> tuple[type[Exception], ...]:
    """Return the errors that the files of `open_binary` raise if their contents are truncated or damaged."""
    return OSError, EOFError, _gzip()[1]


def unpacked_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, decompressed as by `open_binary`, in blocks.

    Raises:
        DataError: The file grows to more than 64 MiB and to more than a hundred times its size, or to more than the
            environment variable QKV_UNPACKED allows.
    """
    most = (
        _limit("QKV_UNPACKED", max(2**26, 100 * path.stat().st_size)) if path.suffix.lower() in COMPRESSIONS else None
    )
    size = 0
    with open_binary(path) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            if most is not None and size > most:
                raise DataError(
                    f"{str(path)!r} must be at most {memory_text(most)} when it is decompressed, got more. Set "
                    "QKV_UNPACKED='8 GiB' in the environment if this is right."
                )
            yield block


def longest_line() -> int:
    """Return the most bytes of a line of a delimited file, which the environment variable QKV_LINE raises."""
    return _limit("QKV_LINE", 2_000_000)


def check_lines(path: Path) -> None:
    """Raise a `DataError` for a delimited file with a line that is too long, on which readers would spend a minute."""
    most = longest_line()
    if path.suffix.lower() in COMPRESSIONS or path.stat().st_size <= most:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 0
        while start + most < len(data):
            # The last end within reach, so that most of the file is not read.
            end = max(data.rfind(b"\n", start, start + most), data.rfind(b"\r", start, start + most))
            if end < 0:
                raise DataError(
                    f"a line of {str(path)!r} must have at most {most:,} bytes, got more from byte {start:,} on. Check "
                    "the quotation marks, or set QKV_LINE='128 MiB' in the environment for longer lines."
                )
            start = end + 1


def _limit(name: str, usual: int) -> int:
    return memory_bytes(os.environ[name]) if os.environ.get(name) else usual


def read_ends(path: Path) -> tuple[bytes, bytes]:
    """Return the first and the last 64 KiB of a file, which overlap if it is shorter.

    A compressed file is read to its end: DuckDB verifies no checksums. It returns the first rows of a truncated .zst
    file, and before version 2.0 also those of a truncated .gz file, without an error.

    Raises:
        DataError: The file is compressed, and truncated or damaged.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in COMPRESSIONS:
            head = tail = b""
            for block in unpacked_blocks(path):
                head, tail = (head + block)[:_END] if len(head) < _END else head, (tail + block)[-_END:]
            return head, tail
        with path.open("rb") as file:
            head = tail = file.read(_END)
            if path.stat().st_size > 2 * _END:
                file.seek(-_END, os.SEEK_END)
            return head, (tail + file.read())[-_END:]
    except unpacking_errors() as error:
        kind, reason = "gzip" if suffix == ".gz" else "zstd", str(error).rstrip(". ")
        raise DataError(
            f"{str(path)!r} must be a complete {kind} file, but reading it failed: {reason}. Check the file."
        ) from None


def guess_encoding(path: Path) -> str:
    """Return "utf-16", "utf-16-le" or "utf-16-be" if the first bytes of a file look like it, otherwise "latin-1"."""
    with open_binary(path) as file:
        first = file.read(64)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    # The high bytes of most characters of tables are 0.
    at_odd, at_even = first[1::2].count(0), first[::2].count(0)
    return "latin-1" if at_odd == at_even else "utf-16-le" if at_odd > at_even else "utf-16-be"


def invalid_line(path: Path) -> int:
    """Return the number of the first line of a file that is not text in UTF-8, or 0."""
    with contextlib.suppress(*unpacking_errors()), open_binary(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 0


@contextmanager
def in_utf_8(path: Path, encoding: str | None) -> Iterator[Path]:
    """Yield the path of a temporary copy of a file in UTF-8, or `path` if the encoding is None.

    Raises:
        DataError: The file is not text in this encoding.
    """
    if encoding is None or codecs.lookup(encoding).name == "utf-8":
        yield path
        return
    suffixes = [suffix for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        copy = Path(folder) / f"table{suffixes[-1] if suffixes else ''}"
        failures: tuple[type[Exception], ...] = (UnicodeError, *unpacking_errors())
        try:
            with copy.open("w", encoding="utf-8", newline="") as out:
                decoder = codecs.getincrementaldecoder(encoding)()
                for block in unpacked_blocks(path):
                    out.write(decoder.decode(block))
                out.write(decoder.decode(b"", True))
        except failures as error:
            raise DataError(
                f"{path.name!r} must be text in {encoding}, but reading it failed: {error}. Name another encoding."
            ) from None
        yield copy
