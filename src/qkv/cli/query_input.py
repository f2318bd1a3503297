"""Read queries from files and pipes in chunks, without waiting for the end of the input."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qkv.core.progress import checkpoint
from qkv.errors import DataError, QueryError

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.answer import Answer
    from qkv.database.relations.query_relation import QueryRelation


_MAX_CHUNK = 256
"""Maximum number of queries per chunk."""


class QueryLine(NamedTuple):
    """A query with the number of its line.

    Attributes:
        text: the query.
        number: the number of the line in the file, from 1; 0 for queries of the command line.
        decoded: whether the line is text in UTF-8; otherwise `text` has replacement characters.
    """

    text: str
    number: int = 0
    decoded: bool = True


def read_queries(given: Sequence[str], path: str | None, keys: Sequence[str]) -> Iterator[list[QueryLine]]:
    """Yield lists of queries from the command line, a file or standard input.

    A file has one query per line. Empty lines are skipped, and so is a first line with the names of the key columns.

    Raises:
        QueryError: queries are given both on the command line and by a file, or there are none; or the file is a table
            with other columns than the keys.
        DataError: the file cannot be read, or is encoded in UTF-16.
    """
    if given and path is not None:
        raise QueryError("QUERY and --queries must not be given together. Omit one of them.")
    if given:
        yield [QueryLine(text) for text in given]
        return
    lines = path is None or path.lower().endswith((".csv", ".tsv")) or Path(path).is_dir()
    if path is not None and is_query_table(path) and not lines:
        raise QueryError(
            f"--queries must be lines of text unless --output is given, got {path!r}. Add, for example, "
            "--output answers.parquet."
        )
    if path is None and sys.stdin is None:
        raise QueryError("QUERY or --queries must be given. Write a query after FILE, or name a file of queries.")
    if path is None and sys.stdin.isatty():
        print("Enter one query per line; end with Ctrl-D.", file=sys.stderr)
    header = ",".join(keys).lower()
    for chunk in _read_lines(path):
        if chunk[0].number == 1:
            first = chunk[0]._replace(text=chunk[0].text.removeprefix("\ufeff"))
            _check_columns(path, first.text, keys)
            chunk = chunk[1:] if first.text.replace(" ", "").lower() == header else [first, *chunk[1:]]
        queries = [line for line in chunk if line.text.strip()]
        for start in range(0, len(queries), _MAX_CHUNK):
            yield queries[start : start + _MAX_CHUNK]


def _check_columns(path: str | None, line: str, keys: Sequence[str]) -> None:
    """Check that the first line of a delimited file does not name other columns; numbers may be those of a vector."""
    if path is None or not path.lower().endswith((".csv", ".tsv")):
        return
    from qkv.encoders.number_formats import NumberFormat

    cells: list[str] = []
    with contextlib.suppress(csv.Error):  # a line that is no CSV is a text
        cells = next(csv.reader([line], delimiter="\t" if path.lower().endswith(".tsv") else ","), [])
    if len(cells) not in (0, 1, len(keys)) and not any(map(NumberFormat().parse, cells)):
        raise QueryError(
            f"--queries must have one column for each key column ({', '.join(keys)}), got {len(cells)} in "
            f"{path!r}. Add --output answers.csv, which reads a table by the names of its columns, and --on if the "
            "names differ; or name a file .txt whose lines are queries."
        )


def is_query_table(path: str) -> bool:
    """Return whether a path names a table of queries, or a pattern or folder of tables, rather than lines of text."""
    from qkv.database.io.sources import is_table_name

    table = is_table_name(path) and not path.lower().endswith(".txt")
    return path != "-" and (table or Path(path).is_dir())


def number_lines(answer: Answer, lines: Sequence[QueryLine]) -> Answer:
    """Return a copy of the answers to lines of a file whose reasons name the line of each query that cannot be read."""
    entries = []
    for entry, line in zip(answer.entries, lines, strict=True):
        if not line.decoded:
            reason = "the query must be text in UTF-8, got other bytes. Convert the file, for example with iconv."
            entry = type(entry)(line.text, False, reason=reason, invalid=True)
        if entry.invalid and line.number:
            entry = dataclasses.replace(entry, reason=f"line {line.number:,}: {entry.reason}")
        entries.append(entry)
    return dataclasses.replace(answer, entries=tuple(entries))


def _read_lines(path: str | None) -> Iterator[list[QueryLine]]:
    """Yield lists of the lines of a file or of standard input, each list as soon as its lines have arrived.

    The function reads from the file descriptor, because Python's buffer waits until it is full. Lines of a slow
    producer therefore arrive one by one, and lines of a fast producer in large chunks.
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
    rest, count = b"", 0
    try:
        while block := _read_block(descriptor):
            *whole, rest = (rest + block).split(b"\n")
            if whole:
                yield [_decode(line, count + index, name) for index, line in enumerate(whole, 1)]
                count += len(whole)
        if rest:
            yield [_decode(rest, count + 1, name)]
    except IsADirectoryError:
        raise DataError(
            f"--queries must be a file, got the folder {name!r}. Name a file with one query per line."
        ) from None
    finally:
        if descriptor != 0:
            os.close(descriptor)


def _read_block(descriptor: int) -> bytes:
    checkpoint()  # a Ctrl-C that was lost would wait for the end of the input
    return os.read(descriptor, 1 << 16)


def _decode(line: bytes, number: int, name: str) -> QueryLine:
    if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(
            f"queries must be encoded in UTF-8, got UTF-16 in {name}. Convert the file: iconv -f utf-16 -t utf-8 FILE."
        )
    try:
        return QueryLine(line.decode("utf-8").rstrip("\r"), number)
    except UnicodeDecodeError:
        return QueryLine(line.decode("utf-8", "replace").rstrip("\r"), number, False)


_UNREADABLE = "the query must be text in UTF-8, got other bytes. Convert the file, for example with iconv."


def line_relation(chunks: Iterator[list[QueryLine]], name: str) -> QueryRelation:
    """Return lines of queries as a relation with the columns `line` (null on the command line) and `query`."""
    import pyarrow as pa

    from qkv.database.relations.query_relation import QueryRelation

    schema = pa.schema([("line", pa.int64()), ("query", pa.string()), ("unreadable", pa.string())])

    def tables() -> Iterator[pa.Table]:
        for lines in chunks:
            yield pa.table(
                {
                    "line": [line.number or None for line in lines],
                    "query": [line.text if line.decoded else None for line in lines],
                    "unreadable": [None if line.decoded else _UNREADABLE for line in lines],
                },
                schema=schema,
            )

    return QueryRelation(name, schema, tables(), ("query",), "unreadable")
