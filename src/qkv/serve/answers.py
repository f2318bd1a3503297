"""Answers as bodies of responses: JSON, tables of Arrow, and the exact form that `Client` reads.

JSON         one object per query with the attributes of `Answer`; dates in ISO 8601, durations in days
Arrow        one row per query: the columns of `Answer.to_arrow`, then the rows of evidence
exact        an Arrow stream of the distinct rows of evidence, with the entries in the metadata of its schema
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from qkv.core.progress import checkpoint
from qkv.core.typing import Int
from qkv.core.untrusted_json import to_json
from qkv.database.answer import Answer, Call, Entry
from qkv.database.execute.row_reader import StoredRows
from qkv.database.relations.answer_relation import evidence_arrays
from qkv.database.storage.stored import StoredDatabase
from qkv.encoders.arrow_columns import to_records
from qkv.encoders.columns import Column
from qkv.errors import DamagedError, DataError
from qkv.serve.typed_json import decode, encode

if TYPE_CHECKING:
    from qkv.database.protocol import Queryable
    from qkv.plan import Plan
    from qkv.search.hits import Hit
    from qkv.serve.limits import Limits
    from qkv.serve.served_store import Answered, ServedStore


def describe_store(served: ServedStore, limits: Limits) -> dict[str, object]:
    """Return the columns, rows and version of a served database, its index and the limits, for `json.dumps`."""
    database, index = served.database, served.index
    found: dict[str, object] = {"database": None if database is None else _describe_database(database, served.version)}
    found["problem"] = served.problem
    found["index"] = None
    if index is not None:
        found["index"] = {"passages": len(index), "documents": index.documents, "encoder": index.encoder.name}
    found["limits"] = asdict(limits)
    return found


def _describe_database(database: Queryable, version: int | None) -> dict[str, object]:
    return {
        "name": database.name,
        "key": [{"name": name, "kind": _kind(database, name)} for name in database.key],
        "value": {"name": database.value, "kind": _kind(database, database.value)},
        "votes": database.votes,
        "rows": len(database),
        "version": version,
        "missing": database.store.skipped if isinstance(database, StoredDatabase) else "",
    }


def _kind(database: Queryable, name: str) -> str:
    """Return the kind of a column; that of a store is known without reading rows."""
    if isinstance(database, StoredDatabase):
        return Column.from_table(database.store.empty([name]), name).kind
    return database.column(name).kind


EXACT = "application/vnd.qkv.answers"
"""Media type of the exact form."""
_METADATA = b"qkv.answers"
_ARRAYS = ("rows", "weights", "nearness", "nearest")
"""The fields of `Entry` that name rows."""
_SCALARS = tuple(each.name for each in fields(Entry) if each.name not in {"query", "probabilities", "calls", *_ARRAYS})
"""The fields of `Entry` that are sent as they are."""


class SentPlan(str):
    """The text of a plan that a server sent, which is shown as a plan is."""

    __repr__ = str.__str__


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
        places = [self._places.get(int(row), -1) for row in rows]
        if -1 in places:
            raise DataError("rows must be evidence of the answer, got another row. Only evidence is sent by a server.")
        chosen = self.rows if columns is None else self.rows.select(list(columns))
        if len(rows) == 1:
            return chosen.slice(places[0], 1)
        return chosen.take(pa.array(places, pa.int64()))


def answer_object(answered: Answered) -> dict[str, Any]:
    """Return the answers to a question as an object that `json.dumps` writes."""
    answer = answered.answer
    assert answer is not None
    return {
        "answers": [_entry_object(answer, entry) for entry in answer.entries],
        "key": list(answer.keys),
        "value": answer.value_name,
        "votes": answer.votes,
        "notes": list(answer.notes),
        "version": answered.version,
    }


def answer_bytes(answered: Answered) -> bytes:
    """Return the answers to a question as JSON, which is written one answer at a time."""
    found = answer_object(answered)
    written = [_write(entry) for entry in found.pop("answers")]
    return b'{"answers": [' + b", ".join(written) + b"], " + _write(found)[1:]


def _write(value: object) -> bytes:
    checkpoint()
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _entry_object(answer: Answer, entry: Entry) -> dict[str, object]:
    checkpoint()
    one = Answer((entry,), True, answer.table, answer.keys, answer.value_name, answer.measure, answer.plan, ())
    fields: dict[str, object] = {"query": entry.query}
    fields |= {name: getattr(entry, name) for name in _SCALARS}
    fields["probabilities"] = entry.probabilities
    fields["calls"] = [call.record() for call in entry.calls]
    fields["rows"] = [
        {"weight": row.weight, "index": row.index}
        | ({answer.measure: getattr(row, answer.measure)} if answer.measure else {})
        | {"record": row.record}
        for row in one.rows
    ]
    found = to_json(fields)
    assert isinstance(found, dict)
    return found


def hits_object(answered: Answered) -> dict[str, object]:
    """Return the passages that a search found as an object that `json.dumps` writes."""
    return {"results": [[_hit_object(hit) for hit in hits] for hits in answered.hits]}


def _hit_object(hit: Hit) -> object:
    checkpoint()
    return to_json(hit.record())


def arrow_bytes(answered: Answered) -> bytes:
    """Return the answers to a question as an Arrow stream with one row per query.

    Its columns are those of `Answer.to_arrow`, and `evidence`: a list of structs with the weight and the index of each
    row, its similarity or distance, and its cells as `record`. The metadata of the schema hold the version and the
    notes.
    """
    answer = answered.answer
    assert answer is not None
    table = _columns(answer)
    offsets, rows, numbers = evidence_arrays(answer.entries, answer.measure)
    evidence = EvidenceRows.of(answer)
    cells = evidence.rows.take(pa.array(np.searchsorted(evidence.indices, rows))).combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in cells.columns]
    record = pa.StructArray.from_arrays(arrays, fields=list(cells.schema))
    parts = {"weight": numbers["weight"], "index": pa.array(rows), **numbers, "record": record}
    structs = pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
    table = table.append_column("evidence", pa.ListArray.from_arrays(offsets, structs))
    about = {"version": answered.version, "notes": list(answer.notes), "votes": answer.votes}
    return stream_bytes(table.replace_schema_metadata({"qkv": json.dumps(about)}))


def _columns(answer: Answer) -> pa.Table:
    """Return the table of an answer; queries of several types become texts of JSON."""
    try:
        return answer.to_arrow()
    except (pa.ArrowException, DataError, OverflowError):
        texts = [json.dumps(to_json(entry.query), ensure_ascii=False) for entry in answer.entries]
        entries = tuple(Entry(**{**vars(e), "query": text}) for e, text in zip(answer.entries, texts, strict=True))
        return Answer(
            entries, False, answer.table, ("query",), answer.value_name, answer.measure, answer.plan, ()
        ).to_arrow()


def stream_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def exact_bytes(answered: Answered) -> bytes:
    """Return the answers to a question in the form that `read_exact` restores."""
    answer = answered.answer
    assert answer is not None
    evidence = EvidenceRows.of(answer)
    content = {
        "version": answered.version,
        "single": answer.single,
        "keys": list(answer.keys),
        "value_name": answer.value_name,
        "measure": answer.measure,
        "plan": str(answer.plan),
        "notes": list(answer.common_notes),
        "column_notes": list(answer.column_notes),
        "votes": answer.votes,
        "num_rows": evidence.num_rows,
        "indices": evidence.indices.tolist(),
        "entries": [_exact_entry(entry) for entry in answer.entries],
    }
    return stream_bytes(evidence.rows.replace_schema_metadata({_METADATA: json.dumps(content)}))


def _exact_entry(entry: Entry) -> dict[str, object]:
    fields = {name: encode(getattr(entry, name)) for name in _SCALARS}
    fields["probabilities"] = [[encode(name), encode(share)] for name, share in entry.probabilities.items()]
    fields["calls"] = [call.record() for call in entry.calls]
    return fields | {name: encode(getattr(entry, name)) for name in _ARRAYS}


def read_exact(body: bytes, queries: tuple[object, ...]) -> tuple[Answer, int | None]:
    """Return the answers in a body of `exact_bytes`, and the version of the store.

    Raises:
        DamagedError: The body has another form, for example that of another version of qkv.
    """
    try:
        table = pa.ipc.open_stream(body).read_all()
        content = json.loads(table.schema.metadata[_METADATA])
        entries = tuple(_read_entry(fields, query) for fields, query in zip(content["entries"], queries, strict=True))
        rows = EvidenceRows(
            table.replace_schema_metadata(None), np.array(content["indices"], np.int64), content["num_rows"]
        )
        answer = Answer(
            entries,
            content["single"],
            rows,
            tuple(content["keys"]),
            content["value_name"],
            content["measure"],
            cast("Plan", SentPlan(content["plan"])),  # shown only
            tuple(content["notes"]),
            tuple(content["column_notes"]),
            content["votes"],
        )
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"the response must be answers of qkv serve, got another form: {str(error)[:100]}. Install the version of "
            "qkv of the server."
        ) from None
    return answer, content["version"]


def _read_entry(fields: dict[str, Any], query: object) -> Entry:
    given = {name: decode(fields[name]) for name in (*_SCALARS, *_ARRAYS)}
    given["probabilities"] = {decode(name): decode(share) for name, share in fields["probabilities"]}
    return Entry(query, **given, calls=tuple(Call(**call) for call in fields["calls"]))
