"""The class `EvidenceRows`, the rows of a table that answers name as evidence, without the rest of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Int
from qkv.database.execute.row_reader import StoredRows
from qkv.encoders.arrow_columns import to_records
from qkv.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.answer import Answer

__all__ = ["EvidenceRows"]


class EvidenceRows:
    """Some rows of a table, with the methods of `StoredRows` that `Answer` calls.

    Attributes:
        row_bytes: the mean size of a row in memory.

    Example:
        >>> import pyarrow as pa
        >>> EvidenceRows(pa.table({"name": ["Li", "Hu"]}), np.array([3, 70]), 100).slice(70).to_pylist()
        [{'name': 'Hu'}]
    """

    def __init__(self, rows: pa.Table, indices: Int[np.ndarray, " n"], num_rows: int) -> None:
        self.rows, self.indices, self.num_rows = rows, indices, num_rows
        self.column_names: list[str] = rows.column_names
        self.row_bytes = rows.nbytes / max(1, rows.num_rows)
        # A function of NumPy that releases the lock of Python would wait for the scans of other threads.
        self._places = {int(index): place for place, index in enumerate(indices)}

    @classmethod
    def of(cls, answer: Answer) -> EvidenceRows:
        """Return the rows that the entries of an answer name."""
        named = [entry.rows for entry in answer.entries]
        distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *named]))
        if isinstance(answer.table, EvidenceRows):
            return cls(answer.table.take(distinct), distinct, answer.table.num_rows)
        if isinstance(answer.table, StoredRows):
            rows = answer.table.take(distinct, answer.table.column_names)
        else:
            import pyarrow as pa

            rows = answer.table.take(pa.array(distinct))
        return cls(rows, distinct, answer.table.num_rows)

    def slice(self, start: int, length: int = 1) -> pa.Table:
        """Return a pyarrow table of `length` consecutive rows from row `start`."""
        return self.take(np.arange(start, start + length))

    def records(self, rows: Sequence[int]) -> list[dict[str, object]]:
        """Return some rows in any order as dicts of Python objects."""
        return to_records(self.take(rows))

    def take(self, rows: Sequence[int] | Int[np.ndarray, " n"], columns: Sequence[str] | None = None) -> pa.Table:
        """Return a pyarrow table of the rows whose indices are in `rows`.

        Raises:
            DataError: A row is no evidence.
        """
        import pyarrow as pa

        places = [self._places.get(int(row), -1) for row in rows]
        if -1 in places:
            raise DataError("rows must be evidence of the answer, got another row. Only evidence is sent by a server.")
        chosen = self.rows if columns is None else self.rows.select(list(columns))
        if len(rows) == 1:
            return chosen.slice(places[0], 1)
        return chosen.take(pa.array(places, pa.int64()))
