"""A store as a folder of Arrow IPC files: needs nothing more, and is read at the speed of memory.

    STORE/versions/0000000003.json   what version 3 consists of; written once, renamed into place, synced
    STORE/rows/….arrow               rows, and numbers of deleted rows; never changed after they are written
    STORE/rows/verified.json         when each file was last found right
    STORE/attached/                  files of all versions, see `qkv.store.attachments`
    STORE/notes/                     what readers found out and would find again; may be removed
    STORE/writer.lock                held by the one process that writes

A commit is the renaming of a manifest. What crashes before it leaves files that no version names, which
`compact` sweeps up; what crashes after it has committed.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.errors import DamagedStoreError, OptionError
from qkv.store import row_files
from qkv.store.attachments import attached_damages
from qkv.store.base import Block, Choosing, Damage, Store, Version
from qkv.store.disk import TEMPORARY, sync_folder
from qkv.store.locking import held
from qkv.store.manifest import Manifest, Piece, latest, manifest_path, numbers, read_manifest

__all__ = ["ArrowStore"]

_POOR = row_files.BYTES // 2


class ArrowStore(Store):
    """A folder of Arrow IPC files.

    Args:
        path: the folder, made by `create`.
        version: open it as it was then; None: the newest version.
        damaged: `"refuse"` raises where a file is not what was written; `"skip"` goes on without its rows,
            which `damages` names.

    Raises:
        DamagedStoreError: files are missing, cut off or changed.
        DataError: there is no such store or version.
    """

    def __init__(self, path: Path, version: int | None = None, damaged: str = "refuse") -> None:
        if damaged not in ("refuse", "skip"):
            raise OptionError(f"damaged is {damaged!r}, and 'refuse' or 'skip' is wanted.")
        self.path = Path(path)
        self._pinned = version is not None
        self._skip = damaged == "skip"
        self._blocks: dict[str, Block] = {}
        self.damages: list[Damage] = []
        if version is None:
            self._load_newest()
        else:
            self._load(read_manifest(self._versions, version))

    @classmethod
    def create(cls, path: Path, schema: Any, metadata: dict[str, Any]) -> "ArrowStore":
        """Make a new store without rows; see `qkv.store.create`."""
        for folder in (path / "versions", path / "rows"):
            folder.mkdir(parents=True)
        text = base64.b64encode(schema.serialize().to_pybytes()).decode()
        Manifest.first(text, metadata).write(path / "versions")
        for folder in (path, path.absolute().parent):
            sync_folder(folder)
        return cls(path)

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        for piece in self._manifest.pieces:
            if block := self._blocks.get(piece.name):
                table = block.table if columns is None else block.table.select(list(columns))
                yield Block(block.name, table, block.present)

    def versions(self) -> list[Version]:
        found = []
        for number in numbers(self._versions):
            try:
                found.append(read_manifest(self._versions, number).version)
            except DamagedStoreError:
                continue
        return found

    def at(self, version: int) -> "ArrowStore":
        return ArrowStore(self.path, version, "skip" if self._skip else "refuse")

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        found, right = [], []
        pieces = self._manifest.pieces
        for done, piece in enumerate(pieces):
            problems = self._problems(piece, read=lambda name: True)
            found += problems
            if not problems:
                right += [piece, *([piece.deleted] if piece.deleted else [])]
            if progress is not None:
                progress("verifying", done + 1, len(pieces))
        found += attached_damages(self.path, self.metadata, read=True)
        if not found:
            row_files.remember_verified(self._rows, right)
        return found

    def refresh(self) -> bool:
        if self._pinned or latest(self._versions) == self.version:
            return False
        self._load_newest()
        return True

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks())

    # -- writing ----------------------------------------------------------------------------------------

    def append(self, table: Any) -> int:
        tables = self.fitted(table)
        # A table that does not fit is refused before the lock is taken.
        first = next(tables, None)
        if first is None:
            return self.version
        with self._writing():
            parts = (part for rows in chain([first], tables) for part in row_files.cut(rows))
            if pieces := row_files.write_rows(self._rows, parts):
                self._commit("append", self._manifest.pieces + pieces)
        return self.version

    def delete_chosen(self, choose: Choosing) -> int:
        with self._writing():
            left, gone = [], 0
            blocks = list(self.blocks())
            chosen = {block.name: rows for block, rows in zip(blocks, choose(blocks), strict=True)}
            for piece in self._manifest.pieces:
                block = self._blocks.get(piece.name)
                kept = None if block is None else self._kept_after(block, chosen[piece.name])
                if block is None or kept is None:
                    left.append(piece)
                    continue
                gone += len(block) - int(kept.sum())
                if kept.any():
                    left.append(self._without(piece, kept))
            if gone:
                self._commit("delete", tuple(left))
        return gone

    def compact(self, keep: int | None = None, progress: Progress | None = None) -> int:
        if keep is not None and keep < 1:
            raise OptionError(f"keep is {keep}, and the newest version always stays. Give 1 or more.")
        with self._writing():
            pieces = self._compacted(progress)
            if pieces != self._manifest.pieces:
                self._commit("compact", pieces)
            self.clear_cache()
            return self._sweep(keep)

    # -- within -----------------------------------------------------------------------------------------

    @property
    def _versions(self) -> Path:
        return self.path / "versions"

    @property
    def _rows(self) -> Path:
        return self.path / "rows"

    def _load_newest(self) -> None:
        while True:
            number = latest(self._versions)
            try:
                self._load(read_manifest(self._versions, number))
                return
            except (DamagedStoreError, FileNotFoundError):
                # A compaction may remove files between the reading of a manifest and of what it names.
                if latest(self._versions) == number:
                    raise

    def _load(self, manifest: Manifest) -> None:
        """Map the files of a version; those that are mapped already stay."""
        import pyarrow as pa

        suspects = row_files.suspects(self._rows, _with_deleted(manifest.pieces))
        damages = [damage for piece in manifest.pieces for damage in self._problems(piece, read=suspects.__contains__)]
        damages += attached_damages(self.path, manifest.metadata)
        if damages and not self._skip:
            raise DamagedStoreError(
                f"{self.path.name!r} is damaged: {'; '.join(map(str, damages[:5]))}"
                + (f"; and {len(damages) - 5} more" if len(damages) > 5 else "")
                + ". Restore these files from a copy, or open it with damaged='skip' to read the other rows."
            )
        broken = {damage.file for damage in damages}
        blocks = {}
        for piece in manifest.pieces:
            if piece.name in broken or (piece.deleted and piece.deleted.name in broken):
                continue
            old = self._blocks.get(piece.name)
            table = old.table if old else row_files.load(self._rows, piece)
            blocks[piece.name] = Block(piece.name, table, row_files.kept_rows(self._rows, piece))
        self._manifest, self._blocks, self.damages = manifest, blocks, damages
        self.version, self.metadata = manifest.number, manifest.metadata
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.schema)))

    def _problems(self, piece: Piece, read: Callable[[str], bool]) -> list[Damage]:
        found = []
        for file in _with_deleted((piece,)):
            problem = row_files.problem_of(self._rows, file, read(file.name))
            if problem:
                found.append(Damage(file.name, problem, piece.living))
        return found

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of the one writer, at the newest version."""
        if self._pinned:
            raise OptionError(
                f"version {self.version} of {self.path.name!r} cannot be written: only the newest can. "
                "Open the store without a version."
            )
        with held(self.path):
            self.refresh()
            before, version = set(self._rows.iterdir()), self.version
            try:
                yield
            except BaseException:
                if latest(self._versions) == version:
                    for unnamed in set(self._rows.iterdir()) - before:
                        unnamed.unlink()
                raise

    def _commit(self, operation: str, pieces: tuple[Piece, ...]) -> None:
        manifest = self._manifest.next(operation, pieces)
        manifest.write(self._versions)
        self._load(manifest)

    def _kept_after(self, block: Block, chosen: np.ndarray | None) -> np.ndarray | None:
        """Which rows of a block stay when those that were chosen go; None where none goes."""
        if chosen is None:
            return None
        gone = np.asarray(chosen, bool)
        before = np.ones(block.table.num_rows, bool) if block.present is None else block.present
        after = before & ~gone
        return None if after.sum() == before.sum() else after

    def _without(self, piece: Piece, kept: np.ndarray) -> Piece:
        import pyarrow as pa

        table = pa.table({"row": np.flatnonzero(~kept).astype(np.uint32)})
        (deleted,) = row_files.write_rows(self._rows, [table])
        return Piece(piece.name, piece.rows, piece.size, piece.check, piece.changed, deleted)

    def _compacted(self, progress: Progress | None) -> tuple[Piece, ...]:
        import pyarrow as pa

        done: list[Piece] = []
        waiting: list[Piece] = []
        tables: list[Any] = []

        def flush() -> None:
            if len(waiting) == 1 and waiting[0].deleted is None:
                done.extend(waiting)
            elif waiting:
                done.extend(row_files.write_rows(self._rows, row_files.cut(pa.concat_tables(tables))))
            waiting.clear()
            tables.clear()

        pieces = self._manifest.pieces
        for number, piece in enumerate(pieces):
            block = self._blocks.get(piece.name)
            if block is None or (piece.size >= _POOR and piece.deleted is None):
                flush()
                done.append(piece)
            else:
                waiting.append(piece)
                tables.append(block.living())
                if sum(table.nbytes for table in tables) >= row_files.BYTES:
                    flush()
            if progress is not None:
                progress("compacting", number + 1, len(pieces))
        flush()
        return tuple(done)

    def _sweep(self, keep: int | None) -> int:
        """Remove old versions, and files that no version names; how many bytes that freed."""
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


def _with_deleted(pieces: Sequence[Piece]) -> list[Piece]:
    return [file for piece in pieces for file in (piece, piece.deleted) if file is not None]
