"""Preparation of the rows that are appended to a store, with the vectors of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qkv.core.progress import Progress
from qkv.database.io.sources import report_rows
from qkv.database.storage.encoding import Encoding
from qkv.store.base import fit_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["prepare_rows"]


def prepare_rows(
    encoding: Encoding | None,
    tables: Iterator[pa.Table],
    schema: pa.Schema,
    name: str,
    progress: Progress | None = None,
    done: int = 0,
) -> Iterator[pa.Table]:
    """Yield tables in the form in which a store keeps them, with a column of vectors if the store has an encoder.

    Args:
        encoding: the encoder of the store, or None.
        tables: tables with the visible columns.
        schema: the visible columns of the store.
        name: names the store in errors.
        progress: as in `StoredDatabase.append`.
        done: number of rows that were already prepared.
    """
    if encoding is None:
        return report_rows(tables, progress)
    return encoding.encode_tables((fit_table(table, schema, name) for table in tables), progress, done)
