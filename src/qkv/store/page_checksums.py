"""The class `PageChecksums`, the checksums of the pages of a file of rows and the pages that each column needs.

The manifest of a store has one checksum for each file. A reader of some columns of a file in an object store verifies
these columns alone, by the checksums of pages of 64 KiB, which are in an object next to the file:

    STORE/rows/9c….arrow     the rows
    STORE/pages/9c….json     the checksums of the pages of the rows, and which pages each column needs

A few rows, such as those of evidence, are read without their columns. A file of rows has one Arrow batch, so that the
buffers of a column are contiguous, and their places are saved with the checksums:

    numbers, dates      a bit of validity and a range of the data
    texts               the same for two offsets, then the range between these
    vectors             the bits of validity of the row and of its numbers, and a range of the data

Other types, such as lists of any length and dictionaries, have no such places and are read as whole columns.

A file of one page has no such object. A file without one, such as that of a store that was uploaded from a disk, is
read as a whole once, after which its pages are in the local cache.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from qkv.core.checksums import checksum
from qkv.core.typing import Bool, Int
from qkv.core.untrusted_json import Fields
from qkv.errors import DamagedError
from qkv.store.manifest import RowFile, seal, unseal

Place: TypeAlias = tuple[int, int]
"""The first byte of a buffer in its file and its number of bytes; (0, 0) for a buffer that does not exist."""

Span: TypeAlias = tuple[int, int]
"""The first byte of a range and the last + 1."""


def buffer_places(data: pa.Buffer) -> tuple[tuple[Place, ...], ...]:
    """Return the places of the buffers of each column of an Arrow file; none for a column that is read as a whole.

    Args:
        data: the bytes of the file, which has one batch.
    """
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
    return bool(types.is_string(type_) or types.is_binary(type_) or _is_large(type_))


def _is_large(type_: pa.DataType) -> bool:
    return bool(types.is_large_string(type_) or types.is_large_binary(type_))


def check_rows(table: pa.Table, rows: Int[np.ndarray, " n"]) -> None:
    """Check that some rows of a table can be taken, whose other rows may be zeros.

    Raises:
        DamagedError: A buffer is shorter than its column, or a text is not in its buffer.
    """
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


PAGE = 2**16
"""Number of bytes of a page."""


@dataclass(frozen=True, eq=False)
class PageChecksums:
    """The checksums of the pages of a file of rows.

    Attributes:
        checks: the CRC-32 of each page.
        columns: for each column of the file, the first and the last page + 1 of each run of pages that reading the
            column needs.
        buffers: for each column the places of its buffers, by which rows are read; none for a column that is read
            as a whole, and for all columns of a file that was written before 2026-11-23.
    """

    checks: Int[np.ndarray, " pages"]
    columns: tuple[tuple[tuple[int, int], ...], ...]
    buffers: tuple[tuple[Place, ...], ...] = ()

    @classmethod
    def of(cls, data: bytes | memoryview | pa.Buffer, columns: int) -> PageChecksums:
        """Return the checksums of the pages of the bytes of an Arrow file with a number of columns."""
        view = memoryview(data).cast("B")
        checks = [checksum(view[start : start + PAGE]) for start in range(0, len(view), PAGE)]
        needed = tuple(_pages_of(view, column) for column in range(columns))
        return cls(np.array(checks, np.int64), needed, buffer_places(pa.py_buffer(data)))

    @classmethod
    def parse(cls, data: bytes, file: RowFile, columns: int) -> PageChecksums:
        """Return the checksums in the bytes of a file.

        Args:
            columns: its number of columns.

        Raises:
            DamagedError: The bytes are damaged, or belong to another file.
        """
        name = f"the page checksums of {file.name}"
        fields = unseal(data, name)
        if [fields.text("file"), fields.integer("size"), fields.integer("check")] != [file.name, file.size, file.check]:
            raise fields.damaged("file", f"{file.name} of {file.size:,} bytes")
        try:
            checks = np.frombuffer(base64.b64decode(fields.text("pages"), validate=True), "<u4").astype(np.int64)
        except (ValueError, binascii.Error):
            raise fields.damaged("pages", "checksums in base64") from None
        count = page_count(file.size)
        listed = fields.items("columns")
        if len(checks) != count or len(listed) != columns or fields.integer("page") != PAGE:
            raise fields.damaged("pages", f"checksums of {count:,} pages and {columns} columns")
        places = fields.items("buffers") if "buffers" in fields else []
        if places and len(places) != columns:
            raise fields.damaged("buffers", f"the buffers of {columns} columns")
        needed = tuple(
            _parse_pairs(each or None, fields, "columns", "runs of pages", lambda start, stop: start < stop <= count)
            for each in listed
        )
        buffers = tuple(
            _parse_pairs(each, fields, "buffers", "places of buffers", lambda start, size: start + size <= file.size)
            for each in places
        )
        return cls(checks, needed, buffers)

    def serialized(self, file: RowFile) -> bytes:
        """Return the bytes that are saved next to a file of rows."""
        pages = base64.b64encode(self.checks.astype("<u4").tobytes()).decode()
        columns = [[place for run in each for place in run] for each in self.columns]
        buffers = [[number for place in each for number in place] for each in self.buffers]
        described = {"file": file.name, "size": file.size, "check": file.check, "page": PAGE}
        return seal({**described, "pages": pages, "columns": columns, "buffers": buffers})

    def descriptive(self, columns: Sequence[int]) -> Bool[np.ndarray, " pages"]:
        """Return a boolean array that is True for the pages of some columns that hold more than one of their buffers.

        These describe the file, which pyarrow reads, or are at the edges of buffers.
        """
        needed = self.needed(columns)
        for column in columns:
            for start, size in self.buffers[column]:
                needed[page_count(start) : max(page_count(start), (start + size) // PAGE)] = False
        return needed

    def needed(self, columns: Sequence[int]) -> Bool[np.ndarray, " pages"]:
        """Return a boolean array that is True for the pages that some columns need."""
        needed = np.zeros(len(self.checks), bool)
        for column in columns:
            for start, stop in self.columns[column]:
                needed[start:stop] = True
        return needed


def page_count(size: int) -> int:
    """Return the number of pages of a file of `size` bytes."""
    return -(-size // PAGE)


def runs(chosen: Bool[np.ndarray, " pages"]) -> list[tuple[int, int]]:
    """Return the first and the last page + 1 of each run of consecutive chosen pages.

    Example:
        >>> runs(np.array([True, True, False, True]))
        [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


class PagedFile:
    """A file for `pyarrow.PythonFile`, whose pages are read before they are used. Its reads are views of a buffer.

    Args:
        view: the buffer, which has the size of the file.
        present: True for the pages that the buffer holds.
        fetch: a function that reads some pages into the buffer.

    Attributes:
        used: True for the pages that were used.
    """

    closed = False

    def __init__(
        self,
        view: memoryview,
        present: Bool[np.ndarray, " pages"],
        fetch: Callable[[memoryview, Bool[np.ndarray, " pages"]], None],
    ) -> None:
        self._view, self._present, self._fetch = view, present, fetch
        self._place = 0
        self.used = np.zeros(len(present), bool)

    def require(self, pages: Bool[np.ndarray, " pages"]) -> None:
        """Read those of some pages that the buffer does not hold."""
        missing = pages & ~self._present
        if missing.any():
            self._fetch(self._view, missing)
            self._present |= missing

    def read(self, count: int = -1) -> memoryview:
        """Return the next bytes."""
        start = self._place
        stop = len(self._view) if count < 0 else min(start + count, len(self._view))
        if stop > start:
            pages = np.zeros(len(self.used), bool)
            pages[start // PAGE : page_count(stop)] = True
            self.used |= pages
            self.require(pages)
        self._place = stop
        return self._view[start:stop]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the place of the next read, and return it."""
        self._place = offset + (0, self._place, len(self._view))[whence]
        return self._place

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._place

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Mark the file as closed."""
        self.closed = True


def _pages_of(view: memoryview, column: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of pages that pyarrow reads for one column, including the metadata of the file."""
    traced = PagedFile(view, np.ones(page_count(len(view)), bool), lambda _view, _pages: None)
    read_columns(traced, [column])
    return tuple(runs(traced.used))


def read_columns(file: object, columns: Sequence[int]) -> pa.Table:
    """Return some columns of an Arrow file, in the order of the file, reading only their bytes.

    Args:
        file: an object with the methods of a file that is opened in binary mode.
        columns: the indices of the columns.
    """
    options = pa.ipc.IpcReadOptions(included_fields=sorted(columns), use_threads=False)
    return pa.ipc.open_file(pa.PythonFile(file, "r"), options=options).read_all()


def _parse_pairs(
    value: object, fields: Fields, name: str, what: str, is_valid: Callable[[int, int], bool]
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of consecutive numbers of a list, or raise a `DamagedError` if one is negative or invalid."""
    numbers = value if isinstance(value, list) else [-1]
    if len(numbers) % 2 == 0 and all(isinstance(number, int) and number >= 0 for number in numbers):
        found = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        if all(is_valid(*pair) for pair in found):
            return found
    raise fields.damaged(name, what)
