"""Which bytes of a file of rows hold the cells of a few rows, so that a row of evidence is read without its column.

A file of rows has one Arrow batch, so that the buffers of a column are contiguous. Their places are saved with the
checksums of the pages when the file is written:

    numbers, dates      a bit of validity and a range of the data
    texts               the same for two offsets, then the range between these
    vectors             the bits of validity of the row and of its numbers, and a range of the data

Other types, such as lists of any length and dictionaries, have no such places and are read as whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from qkv.core.typing import Int
from qkv.errors import DamagedError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Place", "Span", "buffer_places", "check_rows", "require_rows"]

Place: TypeAlias = tuple[int, int]
"""The first byte of a buffer in its file and its number of bytes; (0, 0) for a buffer that does not exist."""

Span: TypeAlias = tuple[int, int]
"""The first byte of a range and the last + 1."""


def buffer_places(data: pa.Buffer) -> tuple[tuple[Place, ...], ...]:
    """Return the places of the buffers of each column of an Arrow file; none for a column that is read as a whole.

    Args:
        data: the bytes of the file, which has one batch.
    """
    import pyarrow as pa

    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    return tuple(_places(column, data) for column in table.columns)


def _places(column: pa.ChunkedArray, data: pa.Buffer) -> tuple[Place, ...]:
    if column.num_chunks != 1 or _buffer_count(column.type) is None:
        return ()
    places = []
    for buffer in column.chunk(0).buffers():
        start = 0 if buffer is None else buffer.address - data.address
        if buffer is not None and buffer.size and not 0 <= start <= data.size - buffer.size:
            return ()  # a copy, as pyarrow makes of buffers that are not aligned
        places.append((start, buffer.size) if buffer is not None and buffer.size else (0, 0))
    return tuple(places) if len(places) == _buffer_count(column.type) else ()


def _buffer_count(type_: pa.DataType) -> int | None:
    """Return the number of buffers of a column of a type, or None for a type that is read as a whole."""
    from pyarrow import types

    if types.is_boolean(type_):
        return 2
    if _is_text(type_):
        return 3
    if types.is_fixed_size_list(type_):
        inner = None if _is_text(type_.value_type) else _buffer_count(type_.value_type)
        return None if inner is None else 1 + inner
    fixed = types.is_primitive(type_) or types.is_decimal(type_) or types.is_fixed_size_binary(type_)
    return 2 if fixed and type_.bit_width % 8 == 0 else None


def _is_text(type_: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(type_) or types.is_binary(type_) or _is_large(type_))


def _is_large(type_: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_large_string(type_) or types.is_large_binary(type_))


def check_rows(table: pa.Table, rows: Int[np.ndarray, " n"]) -> None:
    """Check that some rows of a table can be taken, whose other rows may be zeros.

    Raises:
        DamagedError: A buffer is shorter than its column, or a text is not in its buffer.
    """
    import pyarrow as pa

    for column in table.columns:
        try:
            column.validate()
        except pa.ArrowInvalid as error:
            raise DamagedError(str(error)) from None
        for chunk in column.chunks if _is_text(column.type) else ():
            _, offsets, texts = chunk.buffers()
            places = (0, 0), (0, offsets.size), (0, texts.size if texts is not None else 0)
            list(_text_spans(memoryview(offsets), column.type, places, rows))


def require_rows(
    view: memoryview,
    columns: Iterable[tuple[pa.DataType, Sequence[Place]]],
    rows: Int[np.ndarray, " n"],
    require: Callable[[list[Span]], None],
) -> None:
    """Read the bytes of some rows into the buffer of a file, in one round of requests, and in a second one for texts.

    Args:
        view: the buffer, which has the size of the file.
        columns: the type of each column and the places of its buffers.
        rows: the indices of the rows in the file.
        require: a function that reads some ranges into the buffer.

    Raises:
        DamagedError: The offsets of a text are impossible.
    """
    given = [(type_, tuple(places)) for type_, places in columns]
    require([span for type_, places in given for span in _spans(type_, places, rows)])
    texts = [span for type_, places in given if _is_text(type_) for span in _text_spans(view, type_, places, rows)]
    if texts:
        require(texts)


def _spans(type_: pa.DataType, places: Sequence[Place], rows: Int[np.ndarray, " n"]) -> Iterator[Span]:
    from pyarrow import types

    yield from _ranges(places[0], rows // 8, 1)
    if types.is_fixed_size_list(type_):
        size = type_.list_size
        inner = (rows[:, None] * size + np.arange(size)).ravel()
        yield from _spans(type_.value_type, places[1:], inner)
    elif types.is_boolean(type_):
        yield from _ranges(places[1], rows // 8, 1)
    elif _is_text(type_):
        width = 8 if _is_large(type_) else 4
        yield from _ranges(places[1], np.concatenate([rows, rows + 1]), width)
    else:
        yield from _ranges(places[1], rows, type_.bit_width // 8)


def _ranges(place: Place, items: Int[np.ndarray, " n"], width: int) -> Iterator[Span]:
    """Yield the ranges of some items of a buffer, joined where they touch."""
    start, size = place
    if not size or not width:
        return
    items = np.unique(items)
    for run in np.split(items, np.flatnonzero(np.diff(items) > 1) + 1):
        first, last = int(run[0]) * width, (int(run[-1]) + 1) * width
        if last > size:
            raise DamagedError("the rows of a buffer are not in it")
        yield start + first, start + last


def _text_spans(
    view: memoryview, type_: pa.DataType, places: Sequence[Place], rows: Int[np.ndarray, " n"]
) -> Iterator[Span]:
    (start, size), (first_byte, length) = places[1], places[2]
    if not size:
        return
    offsets = np.frombuffer(view[start : start + size], "<i8" if _is_large(type_) else "<i4")
    for low, high in zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True):
        if not 0 <= low <= high <= length:
            raise DamagedError("the offsets of a text are not in its buffer")
        if low < high:
            yield first_byte + low, first_byte + high
