"""Queries in an Arrow stream that somebody else has written: every length is checked before a value is read.

A few bytes of Arrow can stand for gigabytes: compressed buffers, columns of nulls, texts that many rows share. Such
bodies are refused, or their values are counted first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyarrow import types

from qkv.encoders.arrow_columns import to_python
from qkv.errors import QueryError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
_LARGEST = 2**26
"""Largest number of bytes of the texts of a body, each counted as often as a row has it."""


def read_queries(body: bytes, names: Sequence[str], most: int) -> list[object]:
    """Return the queries in a body: one per row, a value for a single key column and a tuple for several.

    Args:
        body: an Arrow stream without compression.
        names: the key columns. A stream with a single column may name it differently.
        most: the largest number of rows.

    Raises:
        QueryError: The body is no valid Arrow stream, is compressed, or has too many rows, other columns or a type
            that no query has.
    """
    if not body:
        raise _refused("an empty body")
    try:
        if _is_compressed(body):
            raise _refused("compressed buffers")
        batches, rows = [], 0
        with pa.ipc.open_stream(body) as reader:
            chosen = _choose(reader.schema, names)
            for batch in reader:
                rows += batch.num_rows
                if rows > most:
                    raise QueryError(
                        f"queries must have at most {most:,} rows, got {rows:,} or more. Send several requests."
                    )
                part = batch.select(chosen)
                part.validate(full=True)
                batches.append(part)
        columns: list[list[object]] = [[] for _ in names]
        size = 0
        for part in batches:
            for cells, column in zip(columns, part.columns, strict=True):
                size += _text_size(column)
                if size > _LARGEST:
                    raise _refused(f"texts of more than {_LARGEST:,} bytes together")
                cells += to_python(column)
    except (pa.ArrowException, ArithmeticError, EOFError, OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, QueryError):
            raise
        raise _refused(f"bytes that cannot be read: {' '.join(str(error).split())[:100]}") from None
    return columns[0] if len(names) == 1 else list(zip(*columns, strict=True))


def _refused(found: str) -> QueryError:
    return QueryError(f"the body must be an Arrow stream of queries without compression, got {found}. Write it anew.")


def _choose(schema: pa.Schema, names: Sequence[str]) -> list[int]:
    """Return the places of the key columns, after checking their types."""
    places = [schema.get_field_index(name) for name in names]
    if len(names) == 1 and len(schema) == 1:
        places = [0]
    absent = [name for name, place in zip(names, places, strict=True) if place < 0]
    if absent:
        raise QueryError(
            f"queries must have one column {absent[0]!r}, got the columns {', '.join(schema.names)[:200]}. "
            "Give the columns of the queries the same names as the key columns."
        )
    for place in places:
        if not _is_allowed(schema.field(place).type):
            raise QueryError(
                f"the columns of queries must hold texts, numbers, dates or vectors, got {schema.field(place).type} "
                f"in {schema.names[place]!r}. Convert the column."
            )
    return places


def _is_allowed(type_: pa.DataType) -> bool:
    if types.is_fixed_size_list(type_) or types.is_list(type_) or types.is_large_list(type_):
        return bool(types.is_integer(type_.value_type) or types.is_floating(type_.value_type))
    if types.is_dictionary(type_):
        return bool(types.is_string(type_.value_type) or types.is_large_string(type_.value_type))
    plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(check(type_) for check in (*plain, *texts))


def _text_size(column: pa.Array) -> int:
    """Return how many bytes the texts of a column have, each counted as often as a row has it."""
    type_ = column.type
    if types.is_string_view(type_):
        views = column.buffers()[1]
        lengths = np.frombuffer(views, np.int32).reshape(-1, 4)[column.offset : column.offset + len(column), 0]
        return int(lengths.astype(np.int64).sum())
    if types.is_dictionary(type_):
        import pyarrow.compute as pc

        lengths = pc.fill_null(pc.binary_length(column.dictionary), 0)
        return int(pc.sum(lengths.take(column.indices)).as_py() or 0)
    return 0  # the bytes of other types are in the body once per row


def _is_compressed(body: bytes) -> bool:
    """Return whether a message of a stream says that its buffers are compressed.

    The metadata of a message are a flatbuffer, whose third field is a batch, or a dictionary with a batch as its second
    field. The fourth field of a batch is its compression.

    Raises:
        ValueError: The metadata are no flatbuffer.
    """
    for message in pa.ipc.MessageReader.open_stream(body):
        metadata = message.metadata.to_pybytes()
        try:
            batch = _Table(metadata, struct.unpack_from("<I", metadata)[0]).table(2)
            if message.type == "dictionary" and batch is not None:
                batch = batch.table(1)
            if message.type in ("dictionary", "record batch") and batch is not None and batch.table(3) is not None:
                return True
        except struct.error:
            raise ValueError("an incomplete message") from None
    return False


class _Table:
    """A table of a flatbuffer, whose fields are found by their number."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data, self.start = data, start
        self.fields = start - struct.unpack_from("<i", data, start)[0]
        if self.fields < 0:
            raise ValueError("a place before the start")
        (self.size,) = struct.unpack_from("<H", data, self.fields)

    def place(self, number: int) -> int:
        """Return where a field is; 0 if the table does not have it."""
        slot = 4 + 2 * number
        if slot + 2 > self.size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, self.fields + slot)
        return self.start + offset if offset else 0

    def table(self, number: int) -> _Table | None:
        """Return a field that is a table; None if the table does not have it."""
        place = self.place(number)
        return _Table(self.data, place + struct.unpack_from("<I", self.data, place)[0]) if place else None
