"""A few example rows of a store, saved in its cache folder, so that a query does not read them from every block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.checksums import digest
from qkv.core.typing import Int
from qkv.database.execute.notes import read_note, save_note
from qkv.errors import DamagedError
from qkv.store.arrow_files import parse_table
from qkv.store.row_files import serialize

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.execute.row_reader import StoredRows

__all__ = ["load_example_rows"]


def load_example_rows(rows: StoredRows, indices: Int[np.ndarray, " n"], columns: Sequence[str]) -> pa.Table:
    """Return the rows of a store with some indices from its cache folder, or read and save them.

    Args:
        rows: the rows of a store.
        indices: their indices, in ascending order.
        columns: the columns to read.
    """
    import pyarrow as pa

    chosen = digest("\n".join(columns).encode())
    path = rows.store.cache_folder / f"{chosen[:24]}.examples"
    made_from = {"store": rows.store.identity, "columns": chosen, "rows": digest(indices.tobytes())}
    schema = rows.store.empty(columns).schema
    if (note := read_note(path, made_from)) is not None and "rows" in note:
        try:
            saved = parse_table(pa.py_buffer(note.bytes("rows")), path.name)
        except DamagedError:
            saved = schema.empty_table()
        if saved.num_rows == len(indices) and saved.schema.equals(schema):
            return saved
    table = rows.take(indices, columns)
    save_note(path, made_from, {}, {"rows": np.frombuffer(serialize(table), np.uint8)})
    return table
