"""The class `ArrowStore`, a store in a folder of Arrow IPC files that are memory-mapped.

    STORE/versions/0000000003.json   the files of version 3 and its link to version 2; written atomically, and synced
    STORE/versions/newest.json       the newest version, which is written after its manifest
    STORE/rows/….arrow               rows, and indices of deleted rows; never changed
    STORE/rows/verified.json         modification times of files that were verified
    STORE/attached/                  files of all versions, see `qkv.store.attachments`
    STORE/notes/                     a cache of results about the rows; may be removed
    STORE/writer.lock                held by the one process that writes

Renaming the manifest into place commits a version. A crash before that leaves files that belong to no version,
which `compact` removes.

Nothing that is read from the disk is used before it is checked: manifests when they are opened, and the checksum and
the Arrow structure of each file of rows when a process first reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv.core.progress import Progress, track
from qkv.core.typing import Bool
from qkv.errors import DamagedStoreError, DataError, StorageError, StoreFullError
from qkv.store import row_files
from qkv.store.arrow_files import parse_schema
from qkv.store.arrow_verification import verify_arrow
from qkv.store.attachments import attached_damages
from qkv.store.base import BlockSelector, Metadata, Store
from qkv.store.block import Block, Version, missing_version
from qkv.store.damage import Damage
from qkv.store.disk import TEMPORARY, sync_folder
from qkv.store.manifest import (
    Manifest,
    RowFile,
    exists,
    manifest_path,
    numbers,
    read_record,
    replace_by_checkpoint,
    write,
)
from qkv.store.remote_rows import RemoteRows
from qkv.store.versions import find_history, find_newest, read_chain, read_newest, read_version, write_newest

FAN_IN = 8
"""Number of consecutive files of at most the same level that are merged."""

FULL_BYTES = 2**24
"""Size of a file of rows, 16 MiB, from which on appends and `compact` do not merge it with others."""


def first_merged(files: Sequence[RowFile]) -> int:
    """Return the index of the first of the last files that should be merged, or the number of files if none should.

    Example:
        >>> small = RowFile("a", rows=10, size=1000, check=0, changed=0)
        >>> first_merged([small] * 7), first_merged([small] * 8)
        (7, 0)
    """
    start, merged = len(files) - 1, len(files)
    rows = files[start].rows if files and files[start].size < FULL_BYTES else 0
    while rows:
        first, level = start, _level(rows)
        while first > 0 and files[first - 1].size < FULL_BYTES and _level(files[first - 1].rows) <= level:
            first -= 1
        # The files that are merged already count as one.
        if start - first + 1 < FAN_IN:
            break
        rows += sum(file.rows for file in files[first:start])
        start = merged = first
    return merged


def _level(rows: int) -> int:
    return (rows.bit_length() - 1) // 3


class ArrowStore(Store):
    """A store in a folder of Arrow IPC files, which are memory-mapped.

    Args:
        path: the folder, created by `create`.
        version: an older version; None: the newest.
        damaged: `"refuse"` raises if a file is damaged; `"skip"` reads all files at opening, continues without the
            rows of the damaged ones, and lists them in `damages`.
        checksums: whether the contents of a file are verified when a process first reads it.

    Raises:
        DamagedStoreError: Files are missing, cut off or changed.
        DataError: The store or the version does not exist.
    """

    def __init__(
        self, path: Path, version: int | None = None, damaged: str = "refuse", checksums: bool | None = None
    ) -> None:
        super().__init__(path, version, damaged, checksums)
        self._versions, self._rows = self.path / "versions", self.path / "rows"
        self._written: list[Path] = []
        self._mapped: dict[str, row_files.MappedRows | RemoteRows] = {}
        self._modified = set[str]()
        if version is None:
            self._load_newest()
        else:
            try:
                self._load(read_version(self._versions, version))
            except (DamagedStoreError, FileNotFoundError):
                if exists(self._versions, version):
                    raise
                # A compaction removed the version after its manifest was read.
                raise missing_version(self.path.name, version, self._numbers()) from None

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, metadata: Metadata, tables: Iterable[pa.Table] = ()) -> None:
        """Write version 1 of a store with the rows of tables into a folder; see `qkv.store.create`."""
        for folder in (path / "versions", path / "rows"):
            folder.mkdir(parents=True)
        files = row_files.write_rows(path / "rows", row_files.split_tables(tables), [])
        manifest = write(path / "versions", Manifest.first(schema, metadata, files))
        write_newest(path / "versions", manifest, 1)
        for folder in (path / "versions", path):
            sync_folder(folder)

    @property
    def identity(self) -> str:
        """The SHA-256 of the manifest of the open version."""
        return self._manifest.digest

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        return (read_block(rows, columns) for rows in self._readable())

    def unverified_blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        for rows in self._readable():
            table, check = rows.start_check(columns)
            yield Block(rows.file.name, table, rows.present, check)

    def block_names(self) -> list[str]:
        return [rows.file.name for rows in self._readable()]

    def block(self, name: str, columns: Sequence[str] | None = None) -> Block:
        if name not in self._mapped:
            raise self._missing_block(name)
        return read_block(self._mapped[name], columns)

    def block_lengths(self) -> list[int]:
        return [rows.file.present_rows for rows in self._readable()]

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        return list(verify_arrow(self.path, progress).damages)

    def versions(self) -> list[Version]:
        chain = read_chain(self._versions)
        self._report(list(chain.damages))
        return [record.version for record in chain.records.values()]

    # -- writing ----------------------------------------------------------------------------------------

    def delete_chosen(self, choose: BlockSelector, columns: Sequence[str] | None = None) -> int:
        """Delete the rows that a function of all blocks selects, and return their number.

        For each changed block, a file with the indices of all its deleted rows is written.
        """
        with self._writing():
            remaining, deleted = self._without_chosen(choose, columns)
            if deleted:
                self._commit("delete", remaining)
        return deleted

    # -- private ----------------------------------------------------------------------------------------

    def _without_chosen(self, choose: BlockSelector, columns: Sequence[str] | None) -> tuple[tuple[RowFile, ...], int]:
        """Return the files of a version without the selected rows, and the number of these rows."""
        remaining, deleted = [], 0
        blocks = list(self.blocks(columns))
        chosen = {block.name: rows for block, rows in zip(blocks, choose(blocks), strict=True)}
        by_name = {block.name: block for block in blocks}
        for row_file in self._manifest.row_files:
            block = by_name.get(row_file.name)
            present = None if block is None else _present_after(block, chosen[row_file.name])
            if block is None or present is None:
                remaining.append(row_file)
                continue
            deleted += len(block) - int(present.sum())
            if present.any():
                remaining.append(self._with_deleted_rows(row_file, present))
        return tuple(remaining), deleted

    def _numbers(self) -> list[int]:
        return numbers(self._versions)

    def _latest(self) -> int:
        try:
            self._history = find_history(self._versions, self._manifest.link)
        except DataError:
            return 0
        return self._history.number

    def _describe(self, number: int) -> Version:
        return read_record(self._versions, number).version

    def _start_writing(self) -> None:
        self._written.clear()

    def _uncommitted(self) -> Iterable[Path]:
        return self._written

    def _write_rows(self, tables: Iterable[pa.Table]) -> tuple[RowFile, ...]:
        return row_files.write_rows(self._rows, tables, self._written)

    def _readable(self) -> list[row_files.MappedRows | RemoteRows]:
        return [self._mapped[file.name] for file in self._manifest.row_files if file.name in self._mapped]

    def _load_newest(self) -> None:
        while True:
            self._history = history = find_history(self._versions)
            try:
                self._report(list(history.problems))
                self._load(read_newest(self._versions, history), list(history.problems))
                return
            except (DataError, FileNotFoundError):
                # A compaction may remove the manifest or files after they are found and before they are read.
                if find_newest(self._versions) == history.number:
                    raise

    def _load(
        self, manifest: Manifest, damages: Sequence[Damage] = (), known: frozenset[RowFile] = frozenset()
    ) -> None:
        """Open the version of a manifest and its files, except those that are already open.

        Args:
            damages: damages that were found before.
            known: files of the open version that are not checked again.
        """
        schema = parse_schema(manifest.schema_bytes, f"version {manifest.number} of {self.path.name!r}")
        names = {f"rows/{file.name}" for file in row_files.with_deleted(known)}
        found = [*damages, *(damage for damage in self.damages if damage.file in names)]
        found += self._find_damages(manifest, [file for file in manifest.row_files if file not in known], schema)
        self._report(found)
        broken = {damage.file for damage in found}
        mapped = {
            file.name: self._open_rows(file, schema, self._mapped.get(file.name))
            for file in manifest.row_files
            if broken.isdisjoint(f"rows/{each.name}" for each in row_files.with_deleted([file]))
        }
        self._manifest, self._mapped, self.damages = manifest, mapped, found
        self.version, self.metadata, self.schema = manifest.number, manifest.metadata, schema

    def _find_damages(self, manifest: Manifest, files: list[RowFile], schema: pa.Schema) -> list[Damage]:
        """Return a `Damage` for each damaged file among some files of rows and the attached files."""
        every = row_files.with_deleted(files)
        modified = {file.name for file in every} if self._skip else row_files.modified_files(self._rows, every)
        modified = modified if self._checksums else set()
        if not self._skip:
            self._modified |= modified
        found = []
        for file in files:
            found += row_files.find_damages(self._rows, file, modified.__contains__, schema)
        return found + attached_damages(self.path, manifest.metadata)

    def _open_rows(
        self, file: RowFile, schema: pa.Schema, known: row_files.MappedRows | RemoteRows | None
    ) -> row_files.MappedRows | RemoteRows:
        """Return a file that can be read; `known` is the same file, perhaps with other deleted rows."""
        assert known is None or isinstance(known, row_files.MappedRows)
        if known is not None and known.file == file:
            return known
        return row_files.MappedRows(self._rows, file, schema, self._checksums, known)

    def _append(self, tables: Iterator[pa.Table]) -> None:
        if files := self._write_rows(row_files.split_tables(tables)):
            self._commit("append", self._manifest.row_files + files)
            self._merge_last_files()

    def _merge_last_files(self) -> None:
        """Merge the last files if there are many of about the same size, so that few files remain after many appends.

        The rows are saved already, so that this is left to a later append if the disk is full or a file is damaged.
        """
        files = self._manifest.row_files
        start = first_merged(files)
        if start == len(files) or any(file.name not in self._mapped for file in files[start:]):
            return
        try:
            tables = [read_block(self._mapped[file.name]).present_rows() for file in files[start:]]
            merged = self._write_rows(row_files.split_tables([pa.concat_tables(tables)]))
            self._commit("compact", files[:start] + merged)
        except (DataError, StorageError, OSError):
            self._remove_written()

    def _remove_written(self) -> None:
        """Remove the files that were written and not committed."""
        for path in self._written:
            path.unlink(missing_ok=True)
        self._written.clear()

    def _prepare_commit(self) -> None:
        """Write `newest.json` if a crash, damage or an earlier version of qkv left it behind the open version.

        The times of files that were verified at opening, because another program copied them, are saved.
        """
        if self._history.expected is None or self._history.problems:
            self._write_newest(self._manifest, self._history.oldest)
        if self._modified:
            with contextlib.suppress(OSError, StoreFullError):
                row_files.save_verified(self._rows, row_files.with_deleted(self._manifest.row_files))
            self._modified = set()

    def _commit(self, operation: str, files: tuple[RowFile, ...]) -> None:
        number = self.version + 1
        if exists(self._versions, number):  # a file that is not a version of this store
            number = numbers(self._versions)[-1] + 1
        self._finish_commit(write(self._versions, self._manifest.next(number, operation, files)))

    def _finish_commit(self, manifest: Manifest) -> None:
        self._written.clear()
        # The version is committed. If this fails, the version is found by its link, and the next writer repeats this.
        with contextlib.suppress(StoreFullError, StorageError, OSError):
            self._write_newest(manifest, self._history.oldest)
        self._load(manifest, known=frozenset(self._manifest.row_files))

    def _write_newest(self, manifest: Manifest, oldest: int) -> bool:
        """Write `newest.json`, and return whether it names the version `oldest` or a later one as the oldest."""
        write_newest(self._versions, manifest, oldest)
        return True

    def _with_deleted_rows(self, row_file: RowFile, present: Bool[np.ndarray, " rows"]) -> RowFile:
        table = pa.table({"row": np.flatnonzero(~present).astype(np.uint32)})
        (deleted,) = self._write_rows([table])
        return replace(row_file, deleted=deleted)

    def _compact(self, progress: Progress | None) -> None:
        done: list[RowFile] = []
        small: list[RowFile] = []
        tables: list[pa.Table] = []

        def flush() -> None:
            if len(small) == 1 and small[0].deleted is None:
                done.extend(small)
            elif small:
                done.extend(self._write_rows(row_files.split_tables([pa.concat_tables(tables)])))
            small.clear()
            tables.clear()

        files = self._manifest.row_files
        for row_file in track(files, "compacting", progress):
            if row_file.name not in self._mapped or (row_file.size >= FULL_BYTES and row_file.deleted is None):
                flush()
                done.append(row_file)
            else:
                small.append(row_file)
                tables.append(read_block(self._mapped[row_file.name]).present_rows())
                if sum(table.nbytes for table in tables) >= row_files.BYTES:
                    flush()
        flush()
        if tuple(done) != files:
            self._commit("compact", tuple(done))

    def _remove_unneeded(self, keep: int | None) -> int:
        oldest = self._history.oldest
        if keep is not None:
            oldest = [number for number in numbers(self._versions) if number >= oldest][-keep:][0]
            replace_by_checkpoint(self._versions, oldest)
            self._write_newest(self._manifest, oldest)
        # Also those whose removal was interrupted.
        for number in numbers(self._versions):
            if number < oldest:
                manifest_path(self._versions, number).unlink()
        sync_folder(self._versions)
        needed = {row_files.VERIFIED}
        for number in numbers(self._versions):
            needed |= read_record(self._versions, number).files()
        unnamed = [path for path in self._rows.iterdir() if path.name not in needed]
        unnamed += [path for path in self._versions.iterdir() if path.name.startswith(TEMPORARY)]
        freed = 0
        for path in unnamed:
            freed += path.stat().st_size
            path.unlink()
        return freed


def read_block(rows: row_files.MappedRows | RemoteRows, columns: Sequence[str] | None = None) -> Block:
    """Return an open file of rows as a block with some columns; None: all."""
    return Block(rows.file.name, rows.table(columns), rows.present)


def _present_after(block: Block, chosen: Bool[np.ndarray, " rows"] | None) -> Bool[np.ndarray, " rows"] | None:
    """Return a boolean array that is False for the deleted rows of a block, or None if `chosen` deletes no row."""
    if chosen is None:
        return None
    before = np.ones(block.table.num_rows, bool) if block.present is None else block.present
    after = before & ~np.asarray(chosen, bool)
    return None if after.sum() == before.sum() else after
