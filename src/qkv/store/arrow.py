"""The class `ArrowStore`, a store in a folder of Arrow IPC files that are memory-mapped.

    STORE/versions/0000000003.json   the files of version 3; written atomically, and synced
    STORE/rows/….arrow               rows, and indices of deleted rows; never changed
    STORE/rows/verified.json         modification times of files that were verified
    STORE/attached/                  files of all versions, see `qkv.store.attachments`
    STORE/notes/                     a cache of results about the rows; may be removed
    STORE/writer.lock                held by the one process that writes

Renaming the manifest into place commits a version. A crash before that leaves files that belong to no version,
which `compact` removes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.progress import Progress, track
from qkv.core.typing import Bool
from qkv.errors import DamagedStoreError
from qkv.store import row_files
from qkv.store.attachments import attached_damages
from qkv.store.base import Block, BlockSelector, Damage, Metadata, Store
from qkv.store.disk import TEMPORARY, sync_folder
from qkv.store.manifest import Manifest, RowFile, latest, manifest_path, numbers, read_manifest
from qkv.store.versions import Version

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowStore"]

# Files below this size are rewritten by `compact`.
_SMALL = row_files.BYTES // 2


class ArrowStore(Store):
    """A store in a folder of Arrow IPC files, which are memory-mapped.

    Args:
        path: the folder, created by `create`.
        version: an older version; None: the newest.
        damaged: `"refuse"` raises if a file is damaged; `"skip"` continues without its rows, and lists the
            file in `damages`.

    Raises:
        DamagedStoreError: Files are missing, cut off or changed.
        DataError: The store or the version does not exist.
    """

    _row_folders = ("rows",)

    def __init__(self, path: Path, version: int | None = None, damaged: str = "refuse") -> None:
        super().__init__(path, version, damaged)
        self._versions, self._rows = self.path / "versions", self.path / "rows"
        self._blocks: dict[str, Block] = {}
        if version is None:
            self._load_newest()
        else:
            self._load(read_manifest(self._versions, version))

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, metadata: Metadata) -> ArrowStore:
        """Create a store without rows in a folder; see `qkv.store.create`."""
        for folder in (path / "versions", path / "rows"):
            folder.mkdir(parents=True)
        text = base64.b64encode(schema.serialize().to_pybytes()).decode()
        Manifest.first(text, metadata).write(path / "versions")
        for folder in (path, path.absolute().parent):
            sync_folder(folder)
        return cls(path)

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """Yield the memory-mapped blocks of the open version; see `Store.blocks`."""
        for row_file in self._manifest.row_files:
            if block := self._blocks.get(row_file.name):
                table = block.table if columns is None else block.table.select(list(columns))
                yield Block(block.name, table, block.present)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Verify the checksums of all files of the open version, and return a `Damage` for each damaged file."""
        files = self._manifest.row_files
        damages = [
            damage
            for row_file in track(files, "verifying", progress)
            for damage in row_files.find_damages(self._rows, row_file, read=lambda name: True)
        ]
        damages += attached_damages(self.path, self.metadata, read=True)
        if not damages:
            row_files.save_verified(self._rows, row_files.with_deleted(files))
        return damages

    # -- writing ----------------------------------------------------------------------------------------

    def delete_chosen(self, choose: BlockSelector) -> int:
        """Delete the rows that a function of all blocks selects, and return their number.

        For each changed block, a file with the indices of all its deleted rows is written.
        """
        with self._writing():
            remaining, deleted = [], 0
            blocks = list(self.blocks())
            chosen = {block.name: rows for block, rows in zip(blocks, choose(blocks), strict=True)}
            for row_file in self._manifest.row_files:
                block = self._blocks.get(row_file.name)
                present = None if block is None else _present_after(block, chosen[row_file.name])
                if block is None or present is None:
                    remaining.append(row_file)
                    continue
                deleted += len(block) - int(present.sum())
                if present.any():
                    remaining.append(self._with_deleted_rows(row_file, present))
            if deleted:
                self._commit("delete", tuple(remaining))
        return deleted

    # -- private ----------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        return numbers(self._versions)

    def _describe(self, number: int) -> Version:
        return read_manifest(self._versions, number).version

    def _load_newest(self) -> None:
        while True:
            number = latest(self._versions)
            try:
                self._load(read_manifest(self._versions, number))
                return
            except (DamagedStoreError, FileNotFoundError):
                # A compaction may remove files after the manifest is read and before the files are.
                if latest(self._versions) == number:
                    raise

    def _load(self, manifest: Manifest) -> None:
        """Open the version of a manifest and memory-map its files, except those that are already mapped."""
        import pyarrow as pa

        modified = row_files.modified_files(self._rows, row_files.with_deleted(manifest.row_files))
        damages = [
            damage
            for file in manifest.row_files
            for damage in row_files.find_damages(self._rows, file, modified.__contains__)
        ]
        damages += attached_damages(self.path, manifest.metadata)
        self._report(damages)
        broken = {damage.file for damage in damages}
        blocks = {}
        for row_file in manifest.row_files:
            if any(file.name in broken for file in row_files.with_deleted([row_file])):
                continue
            old = self._blocks.get(row_file.name)
            table = old.table if old else row_files.load(self._rows, row_file)
            blocks[row_file.name] = Block(row_file.name, table, row_files.load_present(self._rows, row_file))
        self._manifest, self._blocks, self.damages = manifest, blocks, damages
        self.version, self.metadata = manifest.number, manifest.metadata
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.schema)))

    def _append(self, tables: Iterator[pa.Table]) -> None:
        parts = (part for rows in tables for part in row_files.split_table(rows))
        if files := row_files.write_rows(self._rows, parts):
            self._commit("append", self._manifest.row_files + files)

    def _commit(self, operation: str, files: tuple[RowFile, ...]) -> None:
        manifest = self._manifest.next(operation, files)
        manifest.write(self._versions)
        self._load(manifest)

    def _with_deleted_rows(self, row_file: RowFile, present: Bool[np.ndarray, " rows"]) -> RowFile:
        import pyarrow as pa

        table = pa.table({"row": np.flatnonzero(~present).astype(np.uint32)})
        (deleted,) = row_files.write_rows(self._rows, [table])
        return replace(row_file, deleted=deleted)

    def _compact(self, progress: Progress | None) -> None:
        import pyarrow as pa

        done: list[RowFile] = []
        small: list[RowFile] = []
        tables: list[pa.Table] = []

        def flush() -> None:
            if len(small) == 1 and small[0].deleted is None:
                done.extend(small)
            elif small:
                done.extend(row_files.write_rows(self._rows, row_files.split_table(pa.concat_tables(tables))))
            small.clear()
            tables.clear()

        files = self._manifest.row_files
        for row_file in track(files, "compacting", progress):
            block = self._blocks.get(row_file.name)
            if block is None or (row_file.size >= _SMALL and row_file.deleted is None):
                flush()
                done.append(row_file)
            else:
                small.append(row_file)
                tables.append(block.present_rows())
                if sum(table.nbytes for table in tables) >= row_files.BYTES:
                    flush()
        flush()
        if tuple(done) != files:
            self._commit("compact", tuple(done))

    def _remove_unneeded(self, keep: int | None) -> int:
        if keep is not None:
            for number in numbers(self._versions)[:-keep]:
                manifest_path(self._versions, number).unlink()
            sync_folder(self._versions)
        needed = {row_files.VERIFIED}
        for number in numbers(self._versions):
            needed |= read_manifest(self._versions, number).files()
        unnamed = [path for path in self._rows.iterdir() if path.name not in needed]
        unnamed += [path for path in self._versions.iterdir() if path.name.startswith(TEMPORARY)]
        freed = 0
        for path in unnamed:
            freed += path.stat().st_size
            path.unlink()
        return freed


def _present_after(block: Block, chosen: Bool[np.ndarray, " rows"] | None) -> Bool[np.ndarray, " rows"] | None:
    """Return a boolean array that is False for the deleted rows of a block, or None if `chosen` deletes no row."""
    if chosen is None:
        return None
    before = np.ones(block.table.num_rows, bool) if block.present is None else block.present
    after = before & ~np.asarray(chosen, bool)
    return None if after.sum() == before.sum() else after
