"""The class `RemoteRows`, a file of rows in an object store, of which those pages are read that some columns need."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from qkv.core.checksums import checksum
from qkv.core.printable import first_line
from qkv.core.typing import Bool, Int
from qkv.errors import DamagedError, DamagedStoreError, StorageError
from qkv.store.arrow_files import arrow_problem
from qkv.store.block_cache import BlockCache
from qkv.store.damage import Damage, problem_of
from qkv.store.manifest import RowFile
from qkv.store.object_client import ObjectPath
from qkv.store.page_checksums import (
    PAGE,
    PageChecksums,
    PagedFile,
    check_rows,
    page_count,
    read_columns,
    require_rows,
    runs,
)
from qkv.store.row_files import deleted_schema, present_without, size_problem

PAGES = "pages"
"""Name of the folder of page checksums."""

_VALIDATED: set[tuple[str, str]] = set()
"""The columns whose offsets, lengths and indices this process has validated, by file and name."""

_MOST_VALIDATED = 100_000
"""Number of columns in `_VALIDATED`, about 20 MB, from which it is emptied; columns are then validated again."""


def pages_name(file: RowFile) -> str:
    """Return the name of the object with the page checksums of a file of rows."""
    return f"{file.name.removesuffix('.arrow')}.json"


class RemoteRows:
    """A file of rows in an object store, whose pages are verified whenever they are read.

    Pages are read from the cache if their checksums match there, and the others by parallel requests of ranges.

    Args:
        schema: the schema that the rows must have.
        cache: the local cache of pages.
    """

    def __init__(self, folder: ObjectPath, file: RowFile, schema: pa.Schema, cache: BlockCache) -> None:
        self.file = file
        self._folder, self._schema, self._cache = folder, schema, cache
        self._path = folder / "rows" / file.name
        # The same file of two stores has the same contents.
        self._cached_name = f"{file.name} {file.size} {file.check}"
        self._present: Bool[np.ndarray, " rows"] | None = None
        self._pages: PageChecksums | None = None
        self._has_pages = True
        self._lock = threading.Lock()

    @property
    def present(self) -> Bool[np.ndarray, " rows"] | None:
        """A boolean array that is False for deleted rows, which is read once; None if no row is deleted."""
        if self._present is None and self.file.deleted is not None:
            deleted = RemoteRows(self._folder, self.file.deleted, deleted_schema(), self._cache)
            self._present = present_without(self.file, deleted.table(), self._folder.name)
        return self._present

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return some columns of the rows, in the order of `columns`; None: all columns.

        Raises:
            DamagedStoreError: The file is missing, a checksum does not match, or the contents are no table with the
                recorded rows.
        """
        names = list(self._schema.names) if columns is None else list(columns)
        with self._translate_damage():
            return self._read(names)

    @contextmanager
    def _translate_damage(self) -> Iterator[None]:
        """Raise a `DamagedStoreError` that names the file in place of one that names the damage, or no object."""
        try:
            yield
        except (DamagedError, FileNotFoundError) as error:
            problem = "missing" if isinstance(error, FileNotFoundError) else problem_of(error)
            damage = Damage(f"rows/{self.file.name}", problem, self.file.present_rows)
            raise DamagedStoreError(
                f"{self._folder.name!r} is damaged: {damage}. If another process removed old versions, refresh; "
                "otherwise restore this object from a copy, or open the store with damaged='skip' to read the other "
                "rows."
            ) from None

    def take(self, rows: Int[np.ndarray, " n"], columns: Sequence[str]) -> pa.Table | None:
        """Return some rows, for which only their own pages are read; None if reading whole columns reads hardly more.

        Raises:
            DamagedStoreError: As in `table`.
        """
        pages = self._load_pages()
        if pages is None or not pages.buffers:
            return None
        indices = self._indices(columns)
        by_row = [index for index in indices if pages.buffers[index]]
        whole = [index for index in indices if not pages.buffers[index]]
        least = int(pages.descriptive(by_row).sum()) + len(rows) * len(by_row)
        if 2 * least > int(pages.needed(by_row).sum()) or not columns:
            return None
        with self._translate_damage():
            by_page = self._take(pages, rows, by_row)
        others = self.table([self._schema.field(index).name for index in whole]).take(pa.array(rows)) if whole else None
        names = list(columns)
        found = {
            name: table.column(name) for table in (by_page, others) if table is not None for name in table.column_names
        }
        return pa.table([found[name] for name in names], schema=pa.schema([self._schema.field(name) for name in names]))

    def _take(self, pages: PageChecksums, rows: Int[np.ndarray, " n"], indices: list[int]) -> pa.Table:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.file.rows:
            raise DamagedError(f"no row {int(rows.max()):,} of {self.file.rows:,}")
        view = np.zeros(self.file.size, np.uint8).data
        paged = PagedFile(view, np.zeros(len(pages.checks), bool), self._fetch)
        needed = pages.descriptive(indices)

        def require(spans: list[tuple[int, int]]) -> None:
            for start, stop in spans:
                needed[start // PAGE : page_count(stop)] = True
            paged.require(needed)

        require_rows(view, [(self._schema.field(i).type, pages.buffers[i]) for i in indices], rows, require)
        # The cells of other rows are zeros, which nobody reads.
        read = PagedFile(view, np.ones(len(pages.checks), bool), self._fetch)
        table = self._parse(read, indices)
        check_rows(table, rows)
        return table.take(pa.array(rows))

    def start_check(self, columns: Sequence[str] | None = None) -> tuple[pa.Table, None]:
        """Return the rows, whose pages are verified already; see `MappedRows.start_check`."""
        return self.table(columns), None

    def size_of(self, columns: Sequence[str]) -> int:
        """Return the number of bytes that reading some columns needs; the size of the file if that is not known."""
        pages = self._load_pages()
        if pages is None:
            return self.file.size
        return min(int(pages.needed(self._indices(columns)).sum()) * PAGE, self.file.size)

    def _indices(self, columns: Sequence[str]) -> list[int]:
        # A table without columns has no number of rows.
        return sorted(self._schema.get_field_index(name) for name in columns) or [0]

    def _read(self, names: list[str]) -> pa.Table:
        indices = self._indices(names)
        table = self._parse(self._contents(indices), indices)
        fresh = [name for name in table.column_names if (self._cached_name, name) not in _VALIDATED]
        if fresh:
            if (problem := arrow_problem(table.select(fresh))) is not None:
                raise DamagedError(problem)
            if len(_VALIDATED) >= _MOST_VALIDATED:
                _VALIDATED.clear()
            _VALIDATED.update((self._cached_name, name) for name in fresh)
        return table.select(names) if names else table

    def _parse(self, contents: PagedFile, indices: list[int]) -> pa.Table:
        """Return some columns of the file, after checking their number of rows and their types."""
        try:
            table = read_columns(contents, indices)
            expected = [self._schema.field(index) for index in indices]
            if table.num_rows != self.file.rows:
                raise DamagedError(f"{table.num_rows:,} rows instead of {self.file.rows:,}")
            if not all(found.equals(field) for found, field in zip(table.schema, expected, strict=True)):
                raise DamagedError("the columns are not those of the store")
        except (DamagedError, FileNotFoundError):
            raise
        except Exception as error:  # pyarrow raises many kinds, as in `parse_table`
            raise DamagedError(f"it must be an Arrow file, but {first_line(error)}") from None
        return table

    def _contents(self, indices: list[int]) -> PagedFile:
        """Return the file with the pages of some columns read."""
        pages = self._load_pages()
        # The memory of pages that are not touched is not allocated.
        view = np.zeros(self.file.size, np.uint8).data
        if pages is None:
            self._read_whole(view)
            return PagedFile(view, np.ones(page_count(self.file.size), bool), self._fetch)
        paged = PagedFile(view, np.zeros(len(pages.checks), bool), self._fetch)
        paged.require(pages.needed(indices))
        return paged

    def _load_pages(self) -> PageChecksums | None:
        """Return the page checksums, or None if there are none for this file. They are read once."""
        with self._lock:
            if self._pages is None and self._has_pages:
                self._pages = self._known_pages()
                self._has_pages = self._pages is not None
            return self._pages

    def _known_pages(self) -> PageChecksums | None:
        """Return the page checksums, or None if there are none for this file."""
        columns = len(self._schema)
        if self.file.size <= PAGE:
            return PageChecksums(np.array([self.file.check]), (((0, 1),),) * columns)
        name = f"{self._cached_name}.pages"
        buffer = bytearray(4 * (self.file.size // PAGE) + 2**20)
        length = self._cache.read(name, 0, memoryview(buffer))
        if length:
            try:
                return PageChecksums.parse(bytes(buffer[:length]), self.file, columns)
            except DamagedError:
                pass
        try:
            data = (self._folder / PAGES / pages_name(self.file)).read_bounded(2**28)
            found = PageChecksums.parse(data, self.file, columns)
        except (FileNotFoundError, DamagedError):  # then the whole file is read and compared with the manifest
            return None
        self._cache.write(name, 0, data)
        return found

    def _read_whole(self, view: memoryview) -> None:
        """Read the whole file, and save its pages and their checksums in the cache."""
        (data,) = self._get([(0, self.file.size)])
        if len(data) != self.file.size:
            raise DamagedError(size_problem(len(data), self.file.size))
        if checksum(data) != self.file.check:
            raise DamagedError("the checksum does not match")
        view[:] = data
        self._pages = PageChecksums.of(view, len(self._schema))
        self._cache.write(f"{self._cached_name}.pages", 0, self._pages.serialized(self.file))
        self._cache.write(self._cached_name, 0, view)

    def _fetch(self, view: memoryview, chosen: Bool[np.ndarray, " pages"]) -> None:
        """Read pages into the buffer of the file, from the cache or the object store.

        Raises:
            DamagedError: The checksum of a page does not match, or the object is shorter than recorded.
            FileNotFoundError: The object does not exist.
        """
        assert self._pages is not None
        missing = chosen.copy()
        cached = 0
        for first, last in runs(chosen):
            start, stop = first * PAGE, min(last * PAGE, self.file.size)
            if self._cache.read(self._cached_name, start, view[start:stop]):
                intact = self._intact(view, first, last)
                missing[first:last] &= ~intact
                cached += int(intact.sum()) * PAGE
        self._path.client.count(0, cached=min(cached, self.file.size))
        ranges = [(first * PAGE, min(last * PAGE, self.file.size)) for first, last in runs(missing)]
        if not ranges:
            return
        for (start, stop), data in zip(ranges, self._get(ranges), strict=True):
            if len(data) != stop - start:
                raise DamagedError(size_problem(start + len(data), self.file.size))
            view[start:stop] = data
            if not self._intact(view, start // PAGE, -(-stop // PAGE)).all():
                raise DamagedError("the checksum does not match")
            self._cache.write(self._cached_name, start, data)

    def _get(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """Return ranges of the object."""
        try:
            return self._path.client.get_ranges(self._path.key, ranges)
        except StorageError:
            # A range beyond the end is an error of its own in every object store.
            size = self._path.client.size(self._path.key)
            if size is None or size == self.file.size:
                raise
            raise DamagedError(size_problem(size, self.file.size)) from None

    def _intact(self, view: memoryview, first: int, last: int) -> Bool[np.ndarray, " pages"]:
        """Return for each of some pages in a buffer whether its checksum matches."""
        assert self._pages is not None
        found = [checksum(view[page * PAGE : (page + 1) * PAGE]) for page in range(first, last)]
        return np.asarray(np.array(found, np.int64) == self._pages.checks[first:last])
