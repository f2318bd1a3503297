"""Expansion of paths, patterns and folders to files, and tables from open files such as standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from qkv.database.io.duckdb_file import DELIMITED, JSON, PARQUET
from qkv.database.io.file_bytes import COMPRESSIONS
from qkv.errors import DataError
from qkv.store import is_store, is_url

ARROW = (".arrow", ".feather", ".ipc")
SUFFIXES = (*DELIMITED, *JSON, *PARQUET, *ARROW)
_ENDINGS = tuple(suffix + compression for suffix in SUFFIXES for compression in ("", *COMPRESSIONS))
_PATTERN = set("*?[")


def is_stored(source: object) -> bool:
    """Return whether a source is a database on a disk or at a URL, rather than a table.

    A URL whose last part ends like a file of a table, such as `https://host/people.csv`, is none.

    Example:
        >>> is_stored("s3://bucket/people"), is_stored("s3://bucket/people.parquet")
        (True, False)
    """
    if not is_url(source):
        return isinstance(source, (str, os.PathLike)) and is_store(source)
    return not str(source).lower().partition("?")[0].endswith(_ENDINGS)


def is_paths(source: object) -> bool:
    """Return whether a source is a path, or a list of paths."""
    if isinstance(source, (str, os.PathLike)):
        return True
    listed = isinstance(source, Sequence) and bool(source)
    return listed and all(isinstance(each, (str, os.PathLike)) for each in source)  # type: ignore[attr-defined]


def source_files(source: object) -> list[Path]:
    """Return the files that a path, a pattern such as `parts/*.csv`, a folder, or a list of these names, in order.

    A folder stands for the tables that lie in it, sorted by name. A path that exists is never a pattern.

    Raises:
        DataError: A pattern matches no file, or a folder has no table.
    """
    given = [source] if isinstance(source, (str, os.PathLike)) else source
    assert isinstance(given, Sequence)
    out: list[Path] = []
    for each in given:
        path = Path(each)
        if "://" in str(each) or "\0" in str(each) or not str(each):
            remedy = "Download the file, and name the copy." if "://" in str(each) else "Name a file."
            raise DataError(f"source must be a file or a folder, got {str(each)!r}. {remedy}")
        if path.is_dir():
            tables = sorted(p for p in path.iterdir() if p.is_file() and p.name.lower().endswith(_ENDINGS))
            tables = [p for p in tables if not p.name.startswith((".", "_"))]
            if not tables:
                raise DataError(
                    f"source must be a file or a folder of tables, got the folder {str(path)!r} without tables. "
                    "Name a file."
                )
            _refuse_copies(tables, SUFFIXES)
            out += tables
        elif not path.exists() and _PATTERN & set(str(path)):
            matches = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
            if not matches:
                raise DataError(
                    f"source must match at least one file, got the pattern {str(path)!r}, which matches none. "
                    "Check the pattern."
                )
            _refuse_copies(matches, SUFFIXES)
            out += matches
        else:
            out.append(path)
    _refuse_copies(out)
    return out


def _refuse_copies(paths: Sequence[Path], suffixes: tuple[str, ...] = ()) -> None:
    """Raise a `DataError` if two paths name one file, or files whose names differ in suffixes alone.

    Files of one name in several formats are allowed unless `suffixes` names the formats.
    """
    first: dict[str, Path] = {}
    for path in paths:
        name = os.path.realpath(path)
        for endings in (COMPRESSIONS, suffixes):
            name = next((name[: -len(each)] for each in endings if name.lower().endswith(each)), name)
        other = first.setdefault(name, path)
        if other is not path:
            raise DataError(
                f"each table must be given once, got {str(other)!r} and {str(path)!r}, which may hold the same rows. "
                "Name the files that are meant."
            )


def stream_suffix(first: bytes) -> str:
    """Return the suffix of a file that begins with the bytes `first`, such as ".parquet"; ".csv" if unknown.

    Example:
        >>> stream_suffix(b"PAR1"), stream_suffix(b'{"a": 1}'), stream_suffix(b"a,b")
        ('.parquet', '.jsonl', '.csv')
    """
    if first[:4] == b"PAR1":
        return ".parquet"
    if first[:6] == b"ARROW1" or first[:4] in (b"FEA1", b"\xff\xff\xff\xff"):
        return ".arrow"
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    return ".jsonl" if text[:1] in (b"{", b"[") else ".csv"
