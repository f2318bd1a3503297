"""The class `RemoteStore`, a store of Arrow files in an object store, without a full copy on this machine.

    STORE/versions/0000000003.json   the same manifests as those of a store on a disk; created only if absent
    STORE/versions/newest.json       replaced only if unchanged, and never by an older version
    STORE/rows/….arrow               the same files of rows; never changed
    STORE/pages/….json               checksums of the pages of files of more than a page

Creating the manifest commits a version. Of two writers that create the same one, the object store accepts one; the
other reads what was committed and repeats its own commit after it. There is no lock, so that a writer that stops at any
point leaves the last version readable, and nobody waits for it.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from qkv.core.checksums import checksum, digest
from qkv.core.files import user_cache
from qkv.core.threads import prefetched
from qkv.core.typing import Int
from qkv.errors import DamagedError, DataError, StorageError, StoreBusyError, StoreConflictError
from qkv.store import row_files
from qkv.store.arrow import ArrowStore, read_block
from qkv.store.attachments import attached_damages
from qkv.store.base import BlockSelector, Metadata
from qkv.store.block import Block, Version
from qkv.store.block_cache import BlockCache, default_cache
from qkv.store.damage import Damage
from qkv.store.manifest import Manifest, RowFile, manifest_path, numbers, read_record, replace_by_checkpoint
from qkv.store.object_client import ObjectPath, Traffic
from qkv.store.page_checksums import PAGE, PageChecksums
from qkv.store.remote_rows import PAGES, RemoteRows, pages_name
from qkv.store.versions import NEWEST, find_history, newest_bytes, parse_newest

_MOST_BYTES = 2**26


class RecentTables:
    """The last tables by the name of their block and of their columns, of at most 64 MiB together."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, tuple[str, ...]], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, name: tuple[str, tuple[str, ...]]) -> pa.Table | None:
        """Return a table if it is one of the last ones, otherwise None."""
        with self._lock:
            return self._tables.get(name)

    def get(self, name: tuple[str, tuple[str, ...]], read: Callable[[], pa.Table]) -> pa.Table:
        """Return a table, which is read unless it is one of the last ones."""
        with self._lock:
            if name in self._tables:
                self._tables.move_to_end(name)
                return self._tables[name]
        table = read()
        with self._lock:
            self._tables[name] = table
            while len(self._tables) > 1 and sum(each.nbytes for each in self._tables.values()) > _MOST_BYTES:
                self._tables.popitem(last=False)
        return table


FILES_AHEAD = 4
"""Number of files that are read or written at the same time."""

_SMALL_AHEAD = 16
"""Number of manifests that are read at the same time."""

_PATIENCE_SECONDS = 60.0
"""Time for which a commit is repeated after those of other writers."""

_MOST_WAIT_SECONDS = 1.0

_UNNAMED_SECONDS = 86_400.0
"""Age from which files of no version, which another writer may be about to commit, are removed by `compact`."""


class RemoteStore(ArrowStore):
    """A store of Arrow files in an object store.

    Args:
        path: the folder of the store.
        version: an older version; None: the newest.
        damaged: `"refuse"` raises when a damaged file is read; `"skip"` reads all files at opening, and continues
            without the rows of the damaged ones.
        checksums: has no effect: whatever is read is verified.
        cache: the local cache; None: the one of the environment, see `default_cache`.

    Raises:
        DataError: The store or the version does not exist.
        StorageError: The object store cannot be reached, or refuses a request.
    """

    path: ObjectPath  # type: ignore[assignment]
    _versions: ObjectPath  # type: ignore[assignment]
    _rows: ObjectPath  # type: ignore[assignment]
    _written: list[ObjectPath]  # type: ignore[assignment]

    def __init__(
        self,
        path: ObjectPath,
        version: int | None = None,
        damaged: str = "refuse",
        checksums: bool | None = None,
        cache: BlockCache | None = None,
    ) -> None:
        self._cache = cache or default_cache()
        self._recent = RecentTables()
        self._committing = False
        super().__init__(path, version, damaged, checksums)  # type: ignore[arg-type]
        self.cache_folder: Path = user_cache("stores") / digest(str(path).encode())[:32]
        with suppress(OSError):
            self.cache_folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def create(cls, path: ObjectPath, schema: pa.Schema, metadata: Metadata, tables: Iterable[pa.Table] = ()) -> None:  # type: ignore[override]
        """Write version 1 of a store with the rows of tables; see `qkv.store.create`.

        Raises:
            DataError: Another process has created a store there in the meantime.
        """
        parts, written = row_files.split_tables(tables), list[ObjectPath]()
        files = tuple(prefetched(lambda table: upload(path, table, written), parts, FILES_AHEAD))
        manifest = Manifest.first(schema, metadata, files)
        data, target = manifest.serialized(), path / "versions" / manifest_path(Path(), 1).name
        if not target.writer.create(target.key, data) and target.read_bytes() != data:
            raise DataError(f"path must be new, got {str(path)!r}, where another process has created a store. Open it.")
        update_newest(path / "versions", replace(manifest, digest=digest(data)), 1)

    @property
    def traffic(self) -> Traffic:
        """The requests to the object store and the bytes that were read since it was first used."""
        return replace(self.path.client.traffic)

    def at(self, version: int) -> Self:
        return type(self)(self.path, version, "skip" if self._skip else "refuse", self._checksums, self._cache)

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        return prefetched(lambda rows: read_block(rows, columns), self._readable(), FILES_AHEAD)

    def unverified_blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """Yield the blocks, whose pages are verified when they are read; see `blocks`."""
        return self.blocks(columns)

    def size_of(self, columns: Sequence[str]) -> int:
        """Return the number of bytes that one reading of the columns needs, in whole pages."""
        files = [self._remote_rows(name) for name in self.block_names()]
        return sum(prefetched(lambda file: file.size_of(columns), files, _SMALL_AHEAD))

    def versions(self) -> list[Version]:
        found = self._read_records()
        return super().versions() if found is None else [record.version for record in found]

    # -- writing ----------------------------------------------------------------------------------------

    def delete_chosen(self, choose: BlockSelector, columns: Sequence[str] | None = None) -> int:
        """Delete the rows that a function of all blocks selects, and return their number.

        If another writer commits in the meantime, the function is called again with the rows of the newest version.

        Raises:
            StoreConflictError: Other writers committed again and again. Nothing was deleted.
        """
        with self._writing():
            deadline = time.monotonic() + _PATIENCE_SECONDS
            for attempt in range(2**20):
                remaining, deleted = self._without_chosen(choose, columns)
                if not deleted:
                    return 0
                try:
                    self._commit("delete", remaining)
                    return deleted
                except StoreConflictError:
                    self._remove_written()
                    if time.monotonic() > deadline:
                        raise
                self._follow(attempt)
        raise AssertionError("unreachable")

    # -- private ----------------------------------------------------------------------------------------

    def _take_parts(
        self, parts: list[tuple[str, Int[np.ndarray, " n"]]], columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        names = tuple(self.schema.names if columns is None else columns)

        def take(part: tuple[str, Int[np.ndarray, " n"]]) -> pa.Table:
            name, inside = part
            source = self._remote_rows(name)
            inside = inside if source.present is None else np.flatnonzero(source.present)[inside]
            known = self._recent.known((name, names))
            if known is None and (own := source.take(inside, names)) is not None:
                return own
            return self._recent.get((name, names), lambda: source.table(names)).take(pa.array(inside))

        return prefetched(take, parts, FILES_AHEAD)

    def _remote_rows(self, name: str) -> RemoteRows:
        rows = self._mapped[name]
        assert isinstance(rows, RemoteRows)
        return rows

    def _read_records(self) -> list[Manifest] | None:
        """Return the manifests of all versions, or None if they cannot be listed or are not linked."""
        if not self.path.client.lists:
            return None
        history = find_history(self._versions)
        listed = [number for number in numbers(self._versions, history.oldest) if number <= history.number]
        try:
            records = list(prefetched(lambda number: read_record(self._versions, number), listed, _SMALL_AHEAD))
        except DataError:
            return None
        links = [record.parent for record in records[1:]]
        return records if links == [record.link for record in records[:-1]] else None

    def _find_damages(self, manifest: Manifest, files: list[RowFile], schema: pa.Schema) -> list[Damage]:
        """Return the damages of all files if damaged ones are skipped; others are verified when they are used."""
        if not self._skip:
            return []
        found = [each for file in files for each in row_files.find_damages(self._rows, file, lambda _: True, schema)]
        return found + attached_damages(self.path, manifest.metadata)

    def _open_rows(
        self, file: RowFile, schema: pa.Schema, known: row_files.MappedRows | RemoteRows | None
    ) -> RemoteRows:
        if isinstance(known, RemoteRows) and known.file == file:
            return known
        return RemoteRows(self.path, file, schema, self._cache)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Open the newest version, and remove uncommitted files if an exception is raised."""
        self._require_newest()
        _ = self.path.writer
        self._written, self._committing = [], False
        self.refresh()
        self._prepare_commit()
        try:
            yield
        except BaseException:
            self._remove_written()
            raise

    def _remove_written(self) -> None:
        """Remove the files that were written and not committed, unless it is not known whether they were committed."""
        if not self._committing:
            with suppress(StorageError):
                self.path.writer.delete([path.key for path in self._written])
        self._written, self._committing = [], False

    def _write_rows(self, tables: Iterable[pa.Table]) -> tuple[RowFile, ...]:
        return tuple(prefetched(lambda table: upload(self.path, table, self._written), tables, FILES_AHEAD))

    def _write_newest(self, manifest: Manifest, oldest: int) -> bool:
        return update_newest(self._versions, manifest, oldest)

    def _follow(self, attempt: int) -> None:
        """Open the version that another writer committed, after a random time that doubles with each attempt."""
        time.sleep(random.uniform(0, min(_MOST_WAIT_SECONDS, 0.01 * 2**attempt)))
        self._load_newest()
        self._prepare_commit()

    def _commit(self, operation: str, files: tuple[RowFile, ...]) -> None:
        """Commit a version. If another writer committed first, commit after it, provided that no row is affected."""
        before, deadline = self._manifest.row_files, time.monotonic() + _PATIENCE_SECONDS
        rebased = files
        for attempt in range(2**20):
            manifest = self._publish(self._manifest.next(self.version + 1, operation, rebased))
            if manifest is not None:
                break
            if operation == "delete":
                raise self._conflict(operation)
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    f"other processes have been writing to {self.path.name!r} for {_PATIENCE_SECONDS:.0f} seconds. "
                    "Wait until they have finished and try again."
                )
            self._follow(attempt)
            now = self._manifest.row_files
            if operation == "append":
                rebased = now + files[len(before) :]
            elif now[: len(before)] == before:
                rebased = files + now[len(before) :]
            else:
                raise self._conflict(operation)
        assert manifest is not None
        self._finish_commit(manifest)

    def _conflict(self, operation: str) -> StoreConflictError:
        return StoreConflictError(
            f"the {operation} of {self.path.name!r} must replace rows that no other process changes, but another one "
            "changed them first. Nothing was committed; try again."
        )

    def _publish(self, manifest: Manifest) -> Manifest | None:
        """Create a manifest, and return it with its digest, or None if another writer has created this version."""
        path, data = manifest_path(self._versions, manifest.number), manifest.serialized()
        assert isinstance(path, ObjectPath)
        self._committing = True  # also afterwards if the answer is lost
        committed = path.writer.create(path.key, data)
        if not committed:
            # After a lost answer the request is repeated, and finds what it has written.
            with suppress(FileNotFoundError):
                committed = path.read_bytes() == data
        self._committing = False
        return replace(manifest, digest=digest(data)) if committed else None

    def _remove_unneeded(self, keep: int | None) -> int:
        """Remove all but the `keep` newest versions, and the files of no version that are older than a day.

        The manifests of removed versions remain for a day, so that no writer that was slow creates one of them again.
        """
        while True:
            oldest = self._history.oldest
            listed = numbers(self._versions)
            if keep is None:
                break
            oldest = [number for number in listed if number >= oldest][-keep:][0]
            replace_by_checkpoint(self._versions, oldest)
            if self._write_newest(self._manifest, oldest):
                break
            self._load_newest()
        remaining = [number for number in listed if number >= oldest]
        needed = {name for names in prefetched(self._files_of, remaining, _SMALL_AHEAD) for name in names}
        older = [number for number in listed if number < oldest]
        removed = {name for names in prefetched(self._files_of_removed, older, _SMALL_AHEAD) for name in names}
        client, freed, keys = self.path.writer, 0, []
        latest = time.time() - _UNNAMED_SECONDS
        for folder in (self._rows, self.path / PAGES):
            for entry in client.entries(folder.key):
                name = f"{entry.key.rpartition('/')[2].partition('.')[0]}.arrow"
                if name not in needed and (name in removed or entry.modified.timestamp() < latest):
                    keys.append(entry.key)
                    freed += entry.size
        for entry in client.entries(self._versions.key):
            stem = entry.key.rpartition("/")[2].partition(".")[0]
            if stem.isdecimal() and int(stem) < oldest and entry.modified.timestamp() < latest:
                keys.append(entry.key)
                freed += entry.size
        client.delete(keys)
        return freed

    def _files_of(self, number: int) -> set[str]:
        return read_record(self._versions, number).files()

    def _files_of_removed(self, number: int) -> set[str]:
        with suppress(DataError):
            return self._files_of(number)
        return set()


def upload(folder: ObjectPath, table: pa.Table, written: list[ObjectPath]) -> RowFile:
    """Write a file of rows and the checksums of its pages, and return its entry in the manifest.

    Args:
        written: a list to which the path of each object is appended before it is written.
    """
    data = row_files.serialize(table)
    file = RowFile(f"{uuid.uuid4().hex}.arrow", table.num_rows, data.size, checksum(data), time.time_ns())
    if data.size > PAGE:
        pages = folder / PAGES / pages_name(file)
        written.append(pages)
        pages.write_bytes(PageChecksums.of(data, len(table.schema)).serialized(file))
    written.append(folder / "rows" / file.name)
    written[-1].write_bytes(data)
    return file


def update_newest(folder: ObjectPath, manifest: Manifest, oldest: int) -> bool:
    """Write `newest.json` unless it names a newer version, and return whether it names `oldest` or a later version.

    Args:
        oldest: the number of the oldest version that is not removed.
    """
    path = folder / NEWEST
    while True:
        try:
            found, tag = path.writer.get_with_tag(path.key)
        except FileNotFoundError:
            if path.writer.create(path.key, newest_bytes(manifest, oldest)):
                return True
            continue
        with suppress(DamagedError):
            newest = parse_newest(found)
            if newest.number > manifest.number or newest == parse_newest(newest_bytes(manifest, oldest)):
                return newest.oldest >= oldest
            oldest = max(oldest, newest.oldest)
        data = newest_bytes(manifest, oldest)
        if tag is None:
            path.write_bytes(data)
            return True
        if path.writer.replace(path.key, data, tag):
            return True
