"""Partial results as Arrow record batches: one row per query, and what they are about in the metadata of the schema.

    maximum, total, entropy_sum, square_sum     of sums, see `qkv.database.execute.partial_sums`
    weighted, mean, squares, mass, negative     of sums of averages
    votes, negative                             of sums of votes: label, weight, fragment, row
    rows                                        evidence or candidates: fragment, row, logit, record

`fragment` is an index into the list of fragments of the metadata, and `row` the index of the row in its fragment. The
metadata has one key, `qkv.partial`, with a JSON object.
"""

from __future__ import annotations

import base64
import dataclasses
import json

import numpy as np
import pyarrow as pa

import qkv.normalizers as normalizer_module
from qkv.core.typing import Int
from qkv.core.untrusted_json import Fields, parse_json
from qkv.database.execute.aggregates import NO_ROW, AverageSums, ValueSums, VoteSums
from qkv.database.execute.partial_sums import PartialSums
from qkv.database.execute.row_lists import FRAGMENT_ROWS, RowLists
from qkv.database.partials.query_partial import QueryPartial, Subject
from qkv.errors import DamagedError, KindError, OptionError, QkvError
from qkv.normalizers.base import Normalizer
from qkv.store.arrow_files import parse_schema

FORMAT = 1
"""The version of the format."""

_METADATA = b"qkv.partial"
_NUMBERS = ("maximum", "total", "entropy_sum", "square_sum")


def to_batch(partial: QueryPartial) -> pa.RecordBatch:
    """Return a partial result as a record batch."""
    subject, columns = partial.subject, dict[str, object]()
    if partial.sums is not None:
        columns = {name: pa.array(getattr(partial.sums, name)) for name in _NUMBERS}
        columns |= _value_columns(partial.sums.values, partial.value_type)
    columns["rows"] = lists_by_query(partial.rows.query, subject.count, _row_structs(partial.rows))
    record = {
        "format": FORMAT,
        "score": subject.score,
        "normalizer": normalizer_record(partial.normalizer),
        "version": subject.version,
        "fragments": list(partial.fragments),
        "queries": subject.queries,
        "count": subject.count,
        "key": list(subject.key),
        "value": subject.value,
        "top": subject.top,
        "value_type": base64.b64encode(pa.schema({"value": partial.value_type}).serialize().to_pybytes()).decode(),
    }
    return pa.record_batch(columns).replace_schema_metadata({_METADATA: json.dumps(record).encode()})


def from_batch(batch: object) -> QueryPartial:
    """Return the partial result in a record batch, in a table, or in the bytes of an Arrow IPC stream.

    Raises:
        KindError: It is none of them.
        DamagedError: It is not a partial result of this format.
    """
    if isinstance(batch, (bytes, bytearray, memoryview, pa.Buffer)):
        try:
            with pa.ipc.open_stream(batch) as reader:
                batch = reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise _damaged(f"reading the bytes failed: {str(error)[:200]}") from None
    if not isinstance(batch, (pa.Table, pa.RecordBatch)):
        raise KindError(
            "a partial result must be a pyarrow RecordBatch, a Table or the bytes of an Arrow IPC stream, got "
            f"{type(batch).__name__}. Pass what partials.compute returned."
        )
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    metadata = (table.schema.metadata or {}).get(_METADATA)
    if metadata is None:
        raise _damaged("the schema has no metadata 'qkv.partial'")
    try:
        table.validate(full=True)
        return _parse(table.combine_chunks(), Fields(parse_json(metadata, "a partial result"), "a partial result"))
    except (pa.ArrowException, KeyError, AttributeError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise _damaged(f"reading it failed: {str(error)[:200]}") from None


def _damaged(problem: str) -> DamagedError:
    return DamagedError(
        f"a partial result must be what partials.compute or partials.merge returned, but {problem}. Compute it again."
    )


def _parse(table: pa.Table, fields: Fields) -> QueryPartial:
    if (found := fields.integer("format", most=2**31)) != FORMAT:
        raise _damaged(f"its format is {found} instead of {FORMAT}; another version of qkv computed it")
    normalizer = _normalizer_from_record(fields.get("normalizer"), "a partial result")
    given = fields.get("fragments")
    if not isinstance(given, list) or len({type(name) for name in given} | {int}) > 2 or len(set(given)) != len(given):
        raise _damaged("its fragments are not different integers or texts")
    fragments = tuple(given)
    if any(type(name) not in (int, str) for name in fragments) or list(fragments) != sorted(fragments):
        raise _damaged("its fragments are not ascending integers or texts")
    count = table.num_rows
    subject = Subject(
        fields.text("queries"),
        fields.integer("count", most=2**53),
        tuple(fields.texts("key")),
        fields.text("value"),
        fields.text("score"),
        json.dumps(normalizer_record(normalizer)),
        fields.text("version"),
        fields.integer("top", 1),
    )
    if subject.count != count:
        raise _damaged(f"it has {count} rows for {subject.count} queries")
    sums = None
    if "total" in table.column_names:
        maximum, total, entropy_sum, square_sum = (_floats(table.column(name)) for name in _NUMBERS)
        sums = PartialSums(maximum, total, entropy_sum, square_sum, _value_sums(table, len(fragments)))
    rows = _row_lists(table.column("rows"), len(fragments))
    schema = parse_schema(base64.b64decode(fields.text("value_type"), validate=True), "a partial result")
    return QueryPartial(subject, normalizer, fragments, sums, rows, schema.field(0).type)


# -- rows -----------------------------------------------------------------------------------------------


def _row_structs(rows: RowLists) -> pa.StructArray:
    fragment, row = np.divmod(rows.position, FRAGMENT_ROWS)
    arrays = {"fragment": pa.array(fragment, pa.int32()), "row": pa.array(row), "logit": pa.array(rows.logit)}
    if rows.record is not None:
        arrays["record"] = rows.record
    return pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


def _row_lists(column: pa.ChunkedArray, fragments: int) -> RowLists:
    query, structs = _flat(column)
    names = [structs.type.field(index).name for index in range(structs.type.num_fields)]
    record = structs.field("record") if "record" in names else None
    return RowLists(query, _positions(structs, fragments), _floats(structs.field("logit")), record)


def _positions(structs: pa.StructArray, fragments: int) -> Int[np.ndarray, " n"]:
    fragment = structs.field("fragment").to_numpy(zero_copy_only=False).astype(np.int64)
    row = structs.field("row").to_numpy(zero_copy_only=False).astype(np.int64)
    if len(row) and not (0 <= fragment.min() <= fragment.max() < fragments and row.min() >= 0 and row.max() < 2**40):
        raise _damaged("a row is outside of its fragments")
    return np.asarray(fragment * FRAGMENT_ROWS + row)


def lists_by_query(query: Int[np.ndarray, " n"], count: int, cells: pa.Array) -> pa.ListArray:
    """Return an Arrow array with a list for each query, from cells in the order of the queries."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(query, minlength=count))])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), cells)


def _flat(column: pa.ChunkedArray) -> tuple[Int[np.ndarray, " n"], pa.Array]:
    """Return the elements of a column of lists, and the index of the list of each."""
    lists = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    if lists.null_count:
        raise _damaged("a list is null")
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.intp)
    cells = lists.flatten()
    if cells.null_count:
        raise _damaged("an element of a list is null")
    return np.repeat(np.arange(len(lists)), lengths), cells


# -- sums -----------------------------------------------------------------------------------------------


def _value_columns(sums: ValueSums, type_: pa.DataType) -> dict[str, object]:
    assert isinstance(sums, (AverageSums, VoteSums))
    columns: dict[str, object] = {"negative": pa.array(sums.negative)}
    if isinstance(sums, AverageSums):
        for name in ("weighted", "mean"):
            matrix = getattr(sums, name)
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])
        return columns | {name: pa.array(getattr(sums, name)) for name in ("squares", "mass")}
    query, label = np.nonzero(sums.first < NO_ROW)
    fragment, row = np.divmod(sums.first[query, label], FRAGMENT_ROWS)
    labels = list(sums.labels)
    arrays = [
        pa.array([labels[index] for index in label.tolist()], type_),
        pa.array(sums.votes[query, label]),
        pa.array(fragment, pa.int32()),
        pa.array(row),
    ]
    votes = pa.StructArray.from_arrays(arrays, names=["label", "weight", "fragment", "row"])
    return columns | {"votes": lists_by_query(query, len(sums.votes), votes)}


def _value_sums(table: pa.Table, fragments: int) -> ValueSums:
    negative = table.column("negative").to_numpy().astype(bool)
    if "votes" not in table.column_names:
        weighted, mean = (_matrix(table.column(name)) for name in ("weighted", "mean"))
        if weighted.shape != mean.shape:
            raise _damaged("its means and sums differ in width")
        squares, mass = (_floats(table.column(name)) for name in ("squares", "mass"))
        return AverageSums(weighted, mean, squares, mass, negative)
    query, structs = _flat(table.column("votes"))
    cells = structs.field("label").to_pylist()
    labels = {label: index for index, label in enumerate(dict.fromkeys(cells))}
    votes = np.zeros((table.num_rows, len(labels)))
    first = np.full(votes.shape, NO_ROW)
    index = np.array([labels[cell] for cell in cells], np.int64)
    votes[query, index] = _floats(structs.field("weight"))
    first[query, index] = _positions(structs, fragments)
    return VoteSums(labels, votes, first, negative)


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    width, rows = column.type.list_size, len(column)
    if not width or not rows:
        return np.zeros((rows, width))
    return _floats(column.chunk(0).flatten()).reshape(rows, width)


def _floats(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    if column.null_count:
        raise _damaged("a number is null")
    numbers = column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False)
    return np.array(numbers, np.float64)


# -- normalizers ----------------------------------------------------------------------------------------


def normalizer_record(normalizer: Normalizer) -> dict[str, object]:
    """Return a normalizer as a record of its class and its fields.

    Raises:
        OptionError: The class is not one of `qkv.normalizers`, or a field is an array.

    Example:
        >>> normalizer_record(normalizer_module.TopK(3))
        {'class': 'TopK', 'k': 3, 'normalizer': {'class': 'Softmax', 'temperature': 1.0, 'sink': None}}
    """
    name = type(normalizer).__name__
    if getattr(normalizer_module, name, None) is not type(normalizer):
        raise OptionError(
            f"normalizer must be a class of qkv.normalizers to be saved with a partial result, got {normalizer}. "
            "Choose one of them."
        )
    record: dict[str, object] = {"class": name}
    for field in dataclasses.fields(normalizer):
        value = getattr(normalizer, field.name)
        if isinstance(value, Normalizer):
            value = normalizer_record(value)
        elif value is not None and not isinstance(value, (int, float, str)):
            raise OptionError(
                f"{field.name} of the normalizer {name} must be a number to be saved with a partial result, got "
                f"{type(value).__name__}. Pass a number."
            )
        record[field.name] = value
    return record


def _normalizer_from_record(record: object, name: str) -> Normalizer:
    """Return the normalizer of a record, after checking its class and fields.

    Args:
        record: as returned by `normalizer_record`, possibly damaged or crafted.
        name: names the record in errors.

    Raises:
        DamagedError: The record does not describe a normalizer of `qkv.normalizers`.
    """
    fields = Fields(record, name)
    kind = fields.text("class")
    known = getattr(normalizer_module, kind, None) if kind in normalizer_module.__all__ else None
    values = {key: value for key, value in fields.fields.items() if key != "class"}
    parsed = {
        key: _normalizer_from_record(each, name) if isinstance(each, dict) else each for key, each in values.items()
    }
    plain = all(each is None or isinstance(each, (int, float, str, Normalizer)) for each in parsed.values())
    try:
        if plain and isinstance(known, type) and issubclass(known, Normalizer) and known is not Normalizer:
            return known(**parsed)
    except (TypeError, QkvError):
        pass
    raise DamagedError(
        f"the normalizer in {name} must be one of qkv.normalizers with valid fields, got {kind!r}. Compute the partial "
        "result again."
    )
