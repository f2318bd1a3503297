"""Read queries from files and pipes in chunks, without waiting for the end of the input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from qkv.errors import DataError, QueryError

__all__ = ["read_queries"]

_MAX_CHUNK = 256
"""Maximum number of queries per chunk."""


def read_queries(given: Sequence[str], path: str | None, keys: Sequence[str]) -> Iterator[list[str]]:
    """Yield lists of queries from the command line, a file or standard input.

    A file has one query per line. Empty lines are skipped, and so is a first line with the names of the key columns.

    Args:
        given: queries from the command line; empty: read the file.
        path: file of queries; None or "-": standard input.
        keys: names of the key columns.

    Raises:
        QueryError: queries are given both on the command line and by a file, or there are none.
        DataError: the file cannot be read, or is not text in UTF-8.
    """
    if given and path is not None:
        raise QueryError("QUERY and --queries must not be given together. Omit one of them.")
    if given:
        yield list(given)
        return
    if path is None and sys.stdin is None:
        raise QueryError("QUERY or --queries must be given. Write a query after FILE, or name a file of queries.")
    if path is None and sys.stdin.isatty():
        print("Enter one query per line; end with Ctrl-D.", file=sys.stderr)
    header = ",".join(keys).lower()
    for number, chunk in enumerate(_read_lines(path)):
        if number == 0:
            chunk[0] = chunk[0].removeprefix("\ufeff")
            if chunk[0].replace(" ", "").lower() == header:
                chunk = chunk[1:]
        queries = [line for line in chunk if line.strip()]
        for start in range(0, len(queries), _MAX_CHUNK):
            yield queries[start : start + _MAX_CHUNK]


def _read_lines(path: str | None) -> Iterator[list[str]]:
    """Yield lists of the lines of a file or of standard input, each list as soon as its lines have arrived.

    The function reads from the file descriptor, because Python's buffer waits until it is full. Lines of a slow
    producer therefore arrive one by one, and lines of a fast producer in large chunks.

    Args:
        path: a file; None or "-": standard input.

    Raises:
        DataError: the file cannot be read, or is not text in UTF-8.
    """
    if path is None or path == "-":
        descriptor, name = sys.stdin.fileno(), "standard input"
    else:
        try:
            descriptor, name = os.open(path, os.O_RDONLY), path
        except OSError as error:
            raise DataError(
                f"--queries must be a readable file, got {path!r}, but opening it failed: {error.strerror}. "
                "Check the file name."
            ) from None
    rest = b""
    try:
        while block := os.read(descriptor, 1 << 16):
            *whole, rest = (rest + block).split(b"\n")
            if whole:
                yield [_text(line, name) for line in whole]
        if rest:
            yield [_text(rest, name)]
    except IsADirectoryError:
        raise DataError(
            f"--queries must be a file, got the folder {name!r}. Name a file with one query per line."
        ) from None
    finally:
        if descriptor != 0:
            os.close(descriptor)


def _text(line: bytes, name: str) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(
            f"queries must be encoded in UTF-8, got another encoding in {name}. "
            "Convert the file, for example with iconv."
        ) from None
