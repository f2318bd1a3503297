"""The class `PageChecksums`, the checksums of the pages of a file of rows and the pages that each column needs.

The manifest of a store has one checksum for each file. A reader of some columns of a file in an object store verifies
these columns alone, by the checksums of pages of 64 KiB, which are in an object next to the file:

    STORE/rows/9c….arrow     the rows
    STORE/pages/9c….json     the checksums of the pages of the rows, and which pages each column needs

A file of one page has no such object. A file without one, such as that of a store that was uploaded from a disk, is
read as a whole once, after which its pages are in the local cache.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.checksums import checksum
from qkv.core.typing import Bool, Int
from qkv.core.untrusted_json import Fields
from qkv.store.manifest import RowFile, seal, unseal
from qkv.store.row_pages import Place, buffer_places

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["PAGE", "PageChecksums", "PagedFile", "page_count", "read_columns", "runs"]

PAGE = 2**16
"""Number of bytes of a page."""


@dataclass(frozen=True, eq=False)
class PageChecksums:
    """The checksums of the pages of a file of rows.

    Attributes:
        checks: the CRC-32 of each page.
        columns: for each column of the file, the first and the last page + 1 of each run of pages that reading the
            column needs.
        buffers: for each column the places of its buffers, by which rows are read, see `row_pages`; none for a column
            that is read as a whole, and for all columns of a file that was written before 2026-11-23.
    """

    checks: Int[np.ndarray, " pages"]
    columns: tuple[tuple[tuple[int, int], ...], ...]
    buffers: tuple[tuple[Place, ...], ...] = ()

    @classmethod
    def of(cls, data: bytes | memoryview | pa.Buffer, columns: int) -> PageChecksums:
        """Return the checksums of the pages of the bytes of an Arrow file with a number of columns."""
        import pyarrow as pa

        view = memoryview(data).cast("B")
        checks = [checksum(view[start : start + PAGE]) for start in range(0, len(view), PAGE)]
        needed = tuple(_pages_of(view, column) for column in range(columns))
        return cls(np.array(checks, np.int64), needed, buffer_places(pa.py_buffer(data)))

    @classmethod
    def parse(cls, data: bytes, file: RowFile, columns: int) -> PageChecksums:
        """Return the checksums in the bytes of a file.

        Args:
            data: what `serialized` returned.
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
        needed = tuple(_parse_runs(each, count, fields) for each in listed)
        return cls(checks, needed, tuple(_parse_places(each, file.size, fields) for each in places))

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
    """Return the runs of pages that pyarrow reads of a column, including those that describe the file."""
    traced = PagedFile(view, np.ones(page_count(len(view)), bool), lambda _view, _pages: None)
    read_columns(traced, [column])
    return tuple(runs(traced.used))


def read_columns(file: object, columns: Sequence[int]) -> pa.Table:
    """Return some columns of an Arrow file, in the order of the file, reading only their bytes.

    Args:
        file: an object with the methods of a file that is opened in binary mode.
        columns: the indices of the columns.
    """
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(included_fields=sorted(columns), use_threads=False)
    return pa.ipc.open_file(pa.PythonFile(file, "r"), options=options).read_all()


def _parse_places(value: object, size: int, fields: Fields) -> tuple[Place, ...]:
    numbers = value if isinstance(value, list) else [-1]
    if len(numbers) % 2 or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise fields.damaged("buffers", "places of buffers")
    found = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    if any(start + length > size for start, length in found):
        raise fields.damaged("buffers", "places of buffers")
    return found


def _parse_runs(value: object, count: int, fields: Fields) -> tuple[tuple[int, int], ...]:
    places = value if isinstance(value, list) else []
    valid = all(isinstance(place, int) and 0 <= place <= count for place in places) and len(places) % 2 == 0
    if not places or not valid:
        raise fields.damaged("columns", "runs of pages")
    found = tuple(zip(places[::2], places[1::2], strict=True))
    if any(start >= stop for start, stop in found):
        raise fields.damaged("columns", "runs of pages")
    return found
