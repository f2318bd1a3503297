"""The suffixes of files that are tables, and whether a source is a table or a stored database."""

from __future__ import annotations

import os

from qkv.database.io import duckdb_reader
from qkv.database.io.read_options import COMPRESSIONS
from qkv.store import is_store, is_url

__all__ = ["ARROW", "SUFFIXES", "is_stored"]

ARROW = (".arrow", ".feather", ".ipc")
SUFFIXES = (*duckdb_reader.DELIMITED, *duckdb_reader.JSON, *duckdb_reader.PARQUET, *ARROW)


def is_stored(source: object) -> bool:
    """Return whether a source is a database on a disk or at a URL, rather than a table.

    A URL whose last part ends like a file of a table, such as `https://host/people.csv`, is none.

    Example:
        >>> is_stored("s3://bucket/people"), is_stored("s3://bucket/people.parquet")
        (True, False)
    """
    if not is_url(source):
        return isinstance(source, (str, os.PathLike)) and is_store(source)
    name = str(source).lower().partition("?")[0]
    return not name.endswith(tuple(s + c for s in SUFFIXES for c in ("", *COMPRESSIONS)))
