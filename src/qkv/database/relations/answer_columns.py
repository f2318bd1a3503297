"""Arrow columns of answers, whose types do not depend on the answers, so that batches of answers form one relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qkv.database.answer import Answer, Entry
from qkv.database.io.arrow_columns import with_microseconds
from qkv.database.io.sources import suggest_name
from qkv.database.keys.columns import Column
from qkv.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.execute.row_reader import StoredRows

__all__ = ["AnswerColumns"]


@dataclass(frozen=True, eq=False)
class AnswerColumns:
    """The columns of a relation of answers over one database.

    Attributes:
        value: the value column of the database.
        votes: whether answers are votes.
        table: the rows of the database.
        id: the column by which evidence rows are named; None: the index of the row, from 0.
        measure: "similarity" or "distance", which the evidence states; "" for neither.
    """

    value: Column
    votes: bool
    table: pa.Table | StoredRows
    id: str | None = None
    measure: str = ""

    def __post_init__(self) -> None:
        if self.id is not None and self.id not in self.table.column_names:
            raise DataError(
                f"id must be one of {', '.join(self.table.column_names)}, got {self.id!r}."
                f"{suggest_name(self.id, self.table.column_names)}"
            )

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the columns.

        It is that of `Answer.to_arrow` without the queries, and with `evidence`: a list of structs with the id, the
        weight, and the similarity or distance of each row.
        """
        import pyarrow as pa

        number, type_, ends = pa.float64(), pa.float64(), pa.float64()
        length = number
        if self.value.kind == "boolean":
            type_ = pa.bool_()
        elif self.votes and self.value.kind in ("text", "category"):
            type_ = pa.string()
        elif self.votes:
            type_ = self.value.type
        elif self.value.kind == "vector":
            type_ = pa.list_(number)
        elif self.value.kind == "timestamp":
            type_ = ends = with_microseconds(pa.table({"": pa.array([], self.value.type)})).schema.field(0).type
            length = pa.duration("us")
        fields = [("value", type_)] + [("probability", number)] * self.votes
        fields += [("standard_error", length), ("lower", ends), ("upper", ends), ("spread", length)]
        fields += [("effective_rows", number), ("found", pa.bool_()), ("reason", pa.string())]
        return pa.schema([*fields, ("evidence", pa.list_(self._evidence_type()))])

    def arrays(self, answer: Answer) -> list[pa.Array]:
        """Return the columns of some answers, in the order of `schema`."""
        import pyarrow as pa

        entries = answer.entries
        intervals = [entry.prediction_interval or (None, None) for entry in entries]
        columns: dict[str, list[object]] = {
            "value": [e.value.tolist() if isinstance(e.value, np.ndarray) else e.value for e in entries],
            "probability": [e.probabilities.get(e.value) for e in entries] if self.votes else [],
            "standard_error": [entry.standard_error for entry in entries],
            "lower": [lower for lower, _ in intervals],
            "upper": [upper for _, upper in intervals],
            "spread": [entry.spread for entry in entries],
            "effective_rows": [entry.effective_rows for entry in entries],
            "found": [entry.found for entry in entries],
            "reason": [entry.reason or None for entry in entries],
        }
        simple = [pa.array(columns[field.name], field.type) for field in self.schema if field.name in columns]
        return [*simple, self._evidence(entries)]

    def _evidence_type(self) -> pa.DataType:
        import pyarrow as pa

        id_type = pa.int64() if self.id is None else self._rows(np.zeros(0, np.int64)).type
        fields = [("id", id_type), ("weight", pa.float64())]
        return pa.struct(fields + [(self.measure, pa.float64())] * bool(self.measure))

    def _evidence(self, entries: Sequence[Entry]) -> pa.Array:
        import pyarrow as pa

        counts = [len(entry.rows) for entry in entries]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        rows = np.concatenate([np.zeros(0, np.int64), *(entry.rows for entry in entries)])
        weights = np.concatenate([np.zeros(0), *(entry.weights for entry in entries)])
        parts = [pa.array(rows) if self.id is None else self._rows(rows), pa.array(weights)]
        if self.measure:
            unknown = [np.full(count, np.nan) for count in counts]
            near = [u if e.nearness is None else e.nearness for e, u in zip(entries, unknown, strict=True)]
            parts.append(pa.array(np.concatenate([np.zeros(0), *near]).astype(np.float64), from_pandas=True))
        type_ = self._evidence_type()
        structs = pa.StructArray.from_arrays(parts, fields=list(type_))
        return pa.ListArray.from_arrays(pa.array(offsets), structs, type=pa.list_(type_))

    def _rows(self, rows: np.ndarray) -> pa.Array:
        """Return the cells of the column `id` in some rows."""
        import pyarrow as pa

        assert self.id is not None
        wanted, places = np.unique(rows, return_inverse=True)
        if isinstance(self.table, pa.Table):
            cells = self.table.select([self.id]).take(pa.array(wanted)).column(0)
        else:
            cells = self.table.take(wanted, [self.id]).column(0)
        cells = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        taken = cells.take(pa.array(places))
        return taken.dictionary_decode() if pa.types.is_dictionary(taken.type) else taken
