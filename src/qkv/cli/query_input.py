"""Queries from files and pipes, a chunk at a time, as soon as they are there."""

import os
import sys
from collections.abc import Iterator, Sequence

from qkv.errors import DataError, QueryError

__all__ = ["lines", "read_queries"]

_MOST = 256


def read_queries(given: Sequence[str], path: str | None, keys: Sequence[str]) -> Iterator[list[str]]:
    """Lists of queries: those on the command line, else one per line of a file or of standard input.

    A first line that names the key columns is a header, and is left out, as are empty lines.

    Raises:
        QueryError: queries are given in two ways.
        DataError: the file is not there, or is not text in UTF-8.
    """
    if given and path is not None:
        raise QueryError("queries were given on the command line and by --queries. Choose one.")
    if given:
        yield list(given)
        return
    if path is None and sys.stdin is None:
        raise QueryError("there is no query. Write one after the file, or use --queries.")
    if path is None and sys.stdin.isatty():
        print("One query per line; end with Ctrl-D.", file=sys.stderr)
    header = ",".join(keys).lower()
    first = True
    for chunk in lines(path):
        if first:
            chunk[0] = chunk[0].removeprefix("\ufeff")
            if chunk[0].replace(" ", "").lower() == header:
                chunk = chunk[1:]
        first = False
        asked = [line for line in chunk if line.strip()]
        for start in range(0, len(asked), _MOST):
            yield asked[start : start + _MOST]


def lines(path: str | None) -> Iterator[list[str]]:
    """The lines that have arrived, whenever some have: from a file, or from standard input for None and "-".

    Read by the descriptor, not by Python's buffer, which would wait until it is full: a slow producer is
    answered line by line, a fast one in large chunks.
    """
    if path in (None, "-"):
        descriptor, name = sys.stdin.fileno(), "standard input"
    else:
        assert path is not None
        try:
            descriptor, name = os.open(path, os.O_RDONLY), path
        except OSError as error:
            raise DataError(f"the queries {path!r} cannot be read: {error.strerror}. Check the name.") from None
    rest = b""
    try:
        while block := os.read(descriptor, 1 << 16):
            *whole, rest = (rest + block).split(b"\n")
            if whole:
                yield [_text(line, name) for line in whole]
        if rest:
            yield [_text(rest, name)]
    except IsADirectoryError:
        raise DataError(f"the queries {name!r} are a folder. Name a file with one query per line.") from None
    finally:
        if descriptor != 0:
            os.close(descriptor)


def _text(line: bytes, name: str) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(f"{name} is not text in UTF-8. Convert it, for instance with iconv.") from None
