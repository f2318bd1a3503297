"""Repair of a store of Arrow files: every row of an intact file is kept, and what is lost is listed.

    1. manifests        a damaged newest one is restored from `newest.json`; older ones are left out
    2. rows             a damaged file is restored from the files with which a compaction merged it, as far as they go
    3. a new version    holds the rows of the newest version that remain; writing its manifest commits the repair
    4. older versions   are written again without the lost rows, under their numbers and digests
    5. damaged files    are moved to the folder `damaged`, with copies of the manifests that were replaced

A process that is killed leaves a store that can be repaired again. Nothing is deleted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv.core.checksums import checksum
from qkv.core.progress import Progress, track
from qkv.core.typing import Bool, Int
from qkv.errors import DamagedError, DamagedStoreError
from qkv.store import row_files
from qkv.store.arrow_files import map_file, parse_schema, parse_table
from qkv.store.arrow_verification import FileUse, file_uses, verify_arrow
from qkv.store.attachments import FOLDER as ATTACHED
from qkv.store.base import Metadata
from qkv.store.damage import Damage
from qkv.store.disk import sync_folder, write_synced
from qkv.store.locking import writer_lock
from qkv.store.manifest import Link, Manifest, RowFile, manifest_path, numbers, write
from qkv.store.versions import NEWEST, Chain, find_linked_history, read_chain, resolve, write_newest


class Recovery:
    """The rows of damaged files that other files of a store contain.

    Args:
        versions: the manifests of all versions with all their files, by number in ascending order.
        uses: the use of each file by the versions.
        broken: the names of the damaged files.
        schema: the schema of the rows.
    """

    def __init__(
        self,
        folder: Path,
        versions: Mapping[int, Manifest],
        uses: Mapping[str, FileUse],
        broken: Collection[str],
        schema: pa.Schema,
    ) -> None:
        self._folder, self._versions, self._uses, self._broken = folder, versions, uses, broken
        self._schema = schema
        self._children = {
            manifest.parent.number: manifest for manifest in versions.values() if manifest.parent is not None
        }
        self._visited: set[str] = set()

    def rows(self, name: str) -> tuple[Int[np.ndarray, " n"], pa.Table]:
        """Return the rows of a damaged file that other files contain.

        Returns:
            The indices of these rows in the file, in ascending order, and the rows.
        """
        use = self._uses[name]
        indices, tables = [np.zeros(0, np.int64)], [self._schema.empty_table()]
        if name not in self._visited:  # a file whose recovery led here does not help
            self._visited.add(name)
            for number, find in ((use.versions[0], self._before), (use.versions[-1], self._after)):
                entry = next(file for file in self._versions[number].row_files if file.name == name)
                positions = self._positions(entry)
                other = find(number)
                if positions is not None and other is not None:
                    first = _first_row(self._versions[number], name)
                    found, table = self._slice(other, first, first + len(positions))
                    indices.append(positions[found])
                    tables.append(table)
            self._visited.discard(name)
        distinct, where = np.unique(np.concatenate(indices), return_index=True)
        return distinct, pa.concat_tables(tables).take(pa.array(where))

    def present(self, file: RowFile) -> Bool[np.ndarray, " rows"] | None:
        """Return a boolean array that is False for the deleted rows of a file, or None if it is damaged."""
        if file.deleted is not None and file.deleted.name in self._broken:
            return None
        loaded = row_files.load_present(self._folder, file)
        return np.ones(file.rows, bool) if loaded is None else loaded

    def table(self, file: RowFile) -> pa.Table:
        """Return the rows of an intact file, including deleted ones."""
        return row_files.MappedRows(self._folder, replace(file, deleted=None), self._schema).table()

    def _positions(self, file: RowFile) -> Int[np.ndarray, " n"] | None:
        present = self.present(file)
        return None if present is None else np.flatnonzero(present)

    def _before(self, number: int) -> Manifest | None:
        """Return the version from which a compaction made a version, or None if no compaction made it."""
        made = self._versions[number]
        parent = None if made.parent is None else self._versions.get(made.parent.number)
        return parent if parent is not None and _same_rows(parent, made) else None

    def _after(self, number: int) -> Manifest | None:
        """Return the version that a compaction made from a version, or None if the next version is no compaction."""
        child = self._children.get(number)
        return child if child is not None and _same_rows(self._versions[number], child) else None

    def _slice(self, manifest: Manifest, start: int, stop: int) -> tuple[Int[np.ndarray, " n"], pa.Table]:
        """Return the known rows of a version from `start` to `stop`, and their indices relative to `start`."""
        indices, tables, first = [np.zeros(0, np.int64)], [self._schema.empty_table()], 0
        for file in manifest.row_files:
            low, high = max(start - first, 0), min(stop - first, file.present_rows)
            if low < high and (present := self.present(file)) is not None:
                if file.name in self._broken:
                    rows, table = self.rows(file.name)
                else:
                    rows, table = np.arange(file.rows), self.table(file)
                # The place of each row among those that are not deleted.
                place = np.cumsum(present)[rows] - 1
                selected = present[rows] & (place >= low) & (place < high)
                indices.append(place[selected] + first - start)
                tables.append(table.filter(pa.array(selected)))
            first += file.present_rows
        return np.concatenate(indices), pa.concat_tables(tables)


def _same_rows(before: Manifest, after: Manifest) -> bool:
    return after.operation == "compact" and before.rows == after.rows


def _first_row(manifest: Manifest, name: str) -> int:
    """Return the index of the first row of a file in a version, without deleted rows."""
    first = 0
    for file in manifest.row_files:
        if file.name == name:
            break
        first += file.present_rows
    return first


DAMAGED = "damaged"
"""Name of the folder of a store to which repairs move damaged files."""


@dataclass(frozen=True)
class Repair:
    """The result of a repair, or of a dry run of one.

    Attributes:
        damages: the damages that were found.
        version: the number of the newest version after the repair.
        rows: number of rows of the newest version after the repair.
        lost: number of rows that are lost, by version; versions without loss are left out.
        lost_versions: the versions that cannot be read any more.
        restored: the files that were restored from others.
        undeleted: number of deleted rows of the newest version that are present again, because the file with their
            indices is damaged.
        unclaimed: intact files of rows that belong to no version that can be read, with their numbers of rows.
        folder: the folder with the damaged files; None if there are none, or nothing was written.
        recorded: number of files of a Lance store that had no checksum, and have one now.
    """

    damages: tuple[Damage, ...]
    version: int
    rows: int
    lost: dict[int, int] = field(default_factory=dict)
    lost_versions: tuple[int, ...] = ()
    restored: tuple[str, ...] = ()
    undeleted: int = 0
    unclaimed: tuple[tuple[str, int], ...] = ()
    folder: Path | None = None
    recorded: int = 0


def repair_arrow(path: Path, dry_run: bool = False, progress: Progress | None = None) -> Repair:
    """Repair a store of Arrow files; see `qkv.store.repair`."""
    with contextlib.nullcontext() if dry_run else writer_lock(path):
        found = verify_arrow(path, progress)
        if not found.damages:
            return Repair((), found.versions[-1], found.rows)
        return _Repairer(path, found.damages, progress).run(dry_run)


class _Repairer:
    """One repair of a store, whose methods are its steps."""

    def __init__(self, path: Path, damages: tuple[Damage, ...], progress: Progress | None) -> None:
        self.path, self.damages, self.progress = path, damages, progress
        self.folder, self.rows = path / "versions", path / "rows"
        self.chain, self.before = self._read()
        self.uses = file_uses(self.before)
        self.head = max(self.before)
        self.schema = parse_schema(self.before[self.head].schema_bytes, f"version {self.head} of {path.name!r}")
        self.broken = self._find_broken()
        self.recovery = Recovery(self.rows, self.before, self.uses, self.broken, self.schema)
        self.restored: list[str] = []
        self.contents: dict[str, tuple[RowFile, pa.Buffer]] = {}
        self.replaced: dict[RowFile, RowFile | None] = {}
        self.whole: dict[str, RowFile] = {}

    def run(self, dry_run: bool) -> Repair:
        """Return the result of the repair, after writing it unless `dry_run` is True."""
        versions, lost, undeleted = self._repaired_versions()
        manifests = [damage for damage in self.damages if damage.kind == "manifest"]
        known = {*self.chain.records, *(number for damage in manifests for number in damage.versions)}
        lost_versions = tuple(sorted(number for number in known if number not in versions))
        if self.head not in self.chain.records:
            self.restored.insert(0, f"versions/{manifest_path(self.folder, self.head).name}")
        newest = versions[self.head]
        changed = newest.row_files != self.before[self.head].row_files
        changed |= newest.metadata != self.before[self.head].metadata
        # The number of a lost version is not given to another one.
        changed |= max((self.head, *lost_versions)) > self.head
        # Without `newest.json`, it is not known whether there was a later version.
        unclaimed = self._unclaimed() if lost_versions or self.chain.history.newest is None else {}
        version = max((self.head, *lost_versions, *numbers(self.folder))) + 1 if changed else self.head
        result = Repair(
            self.damages,
            version,
            newest.rows,
            {number: rows for number, rows in lost.items() if rows},
            lost_versions,
            tuple(dict.fromkeys(self.restored)),
            undeleted,
            tuple((f"rows/{name}", rows) for name, rows in unclaimed.items()),
        )
        if dry_run:
            return result
        return replace(result, folder=self._write(versions, version if changed else None, unclaimed))

    # -- what is there ----------------------------------------------------------------------------------

    def _read(self) -> tuple[Chain, dict[int, Manifest]]:
        chain = read_chain(self.folder, find_linked_history(self.folder))
        versions = resolve(chain)
        newest = chain.history.newest
        recorded = None if newest is None else newest.manifest()
        if recorded is not None and recorded.number >= chain.history.number:
            versions.setdefault(recorded.number, recorded)
        schemas = [manifest.schema for _, manifest in sorted(versions.items())]
        # A manifest of another store has another schema, or files that do not exist.
        found = {number: each for number, each in sorted(versions.items()) if each.schema == schemas[-1]}
        if not found:
            raise DamagedStoreError(
                f"{self.path.name!r} must have a manifest that can be read, got none. Restore the store from a copy."
            )
        return chain, found

    def _find_broken(self) -> set[str]:
        broken = set()
        for use in track(self.uses.values(), "reading", self.progress):
            schema = row_files.deleted_schema() if use.kind == "deletions" else self.schema
            if row_files.find_problem(self.rows, use.file, True, schema) is not None:
                broken.add(use.file.name)
        return broken

    def _unclaimed(self) -> dict[str, int]:
        """Return the number of rows of each intact file of rows that belongs to no version that can be read."""
        found = {}
        for path in sorted(self.rows.glob("*.arrow")):
            if path.name not in self.uses:
                with contextlib.suppress(DamagedError, OSError):
                    table = parse_table(map_file(path), path.name)
                    if table.schema.equals(self.schema):
                        found[path.name] = table.num_rows
        return found

    # -- what remains -----------------------------------------------------------------------------------

    def _repaired_versions(self) -> tuple[dict[int, Manifest], dict[int, int], int]:
        """Return each version without what is lost, the number of its lost rows, and the rows that are present again.

        The last number is that of the newest version.
        """
        dropped = {damage.file.partition("/")[2] for damage in self.damages if damage.kind == "attachment"}
        versions, lost, undeleted = dict[int, Manifest](), dict[int, int](), 0
        parent: Link | None = None
        for number, manifest in self.before.items():
            undeleted, files = 0, []
            for file in manifest.row_files:
                repaired = self._repaired_file(file)
                if repaired is not None:
                    files.append(repaired)
                    undeleted += max(0, repaired.present_rows - file.present_rows)
            lost[number] = max(0, manifest.rows + undeleted - sum(file.present_rows for file in files))
            metadata = without_attached(manifest.metadata, dropped)
            versions[number] = replace(
                manifest,
                row_files=tuple(files),
                metadata=metadata,
                parent=manifest.parent if parent is None or _follows(manifest, parent) else parent,
                lost=manifest.lost + lost[number],
                inherited=None,
                depth=0,
            )
            parent = manifest.link
        return versions, lost, undeleted

    def _repaired_file(self, file: RowFile) -> RowFile | None:
        """Return a file of rows without its damages, or None if nothing of it remains."""
        if file not in self.replaced:
            described = file
            if file.deleted is not None and file.deleted.name in self.broken:
                described = replace(file, deleted=self._earlier_deletions(file.name, file.deleted))
            self.replaced[file] = self._recovered(described) if file.name in self.broken else described
        return self.replaced[file]

    def _earlier_deletions(self, name: str, deleted: RowFile) -> RowFile | None:
        """Return the latest intact file with the indices of rows that were deleted before, or None."""
        files = (each for manifest in self.before.values() for each in manifest.row_files if each.name == name)
        others = (each.deleted for each in files if each.deleted is not None)
        intact = [each for each in others if each.name not in self.broken and each.rows <= deleted.rows]
        return max(intact, key=lambda each: each.rows, default=None)

    def _recovered(self, file: RowFile) -> RowFile | None:
        """Return a file of the rows of a damaged file that other files contain, or None if there are none."""
        if file.name in self.whole:
            return replace(self.whole[file.name], deleted=file.deleted)
        indices, table = self.recovery.rows(file.name)
        if not len(indices):
            return None
        self.restored.append(f"rows/{file.name}")
        if len(indices) == file.rows:
            self.whole[file.name] = self._planned(table, replace(file, deleted=None))
            return replace(self.whole[file.name], deleted=file.deleted)
        present = self.recovery.present(file)
        assert present is not None
        table = table.filter(present[indices])
        return self._planned(table) if table.num_rows else None

    def _planned(self, table: pa.Table, original: RowFile | None = None) -> RowFile:
        """Return the entry of a file that is to be written: that of the original, if it gets the same bytes."""
        data = row_files.serialize(table)
        file = RowFile(f"{uuid.uuid4().hex}.arrow", table.num_rows, data.size, checksum(data), 0)
        if original is not None and (file.size, file.check) == (original.size, original.check):
            file = original
        self.contents[file.name] = file, data
        return file

    # -- writing ----------------------------------------------------------------------------------------

    def _write(self, versions: dict[int, Manifest], version: int | None, unclaimed: Iterable[str]) -> Path | None:
        aside = Aside(self.path)
        written = dict[str, RowFile]()
        for name, (file, data) in self.contents.items():
            aside.copy(f"rows/{name}")
            written[name] = row_files.write_file(self.rows / name, file.rows, data)
            if file.changed:  # the manifests record the time of the file that it replaces
                os.utime(self.rows / name, ns=(file.changed, file.changed))
                del written[name]
        sync_folder(self.rows)
        versions = {number: _with_times(manifest, written) for number, manifest in versions.items()}
        order = sorted(versions)
        oldest = order[0]
        newest = versions[self.head]
        if self.head not in self.chain.records:  # restored from `newest.json`, which is written below
            aside.copy(f"versions/{manifest_path(self.folder, self.head).name}")
            self._replace(self.before[self.head])
        elif self.chain.history.expected is None or self.chain.history.problems:
            aside.copy(f"versions/{NEWEST}")
        if version is not None:
            repaired = newest.next(version, "repair", newest.row_files).checkpoint()
            newest = write(self.folder, replace(repaired, lost=newest.lost))
        write_newest(self.folder, newest, min(oldest, self.chain.history.oldest))
        # From the newest to the oldest, so that each delta follows from the version before it at any time.
        for number in reversed(order):
            if self._is_changed(versions[number]):
                aside.copy(f"versions/{manifest_path(self.folder, number).name}")
                self._replace(versions[number])
        write_newest(self.folder, newest, oldest)
        foreign = [number for number in numbers(self.folder) if number not in versions and number != newest.number]
        for number in foreign:
            aside.move(f"versions/{manifest_path(self.folder, number).name}")
        used = {file.name for each in versions.values() for file in row_files.with_deleted(each.row_files)}
        for name in (*self.broken, *unclaimed):
            if name not in used:
                aside.move(f"rows/{name}")
        for damage in self.damages:
            if damage.kind in ("attachment", "cache"):
                aside.move(damage.file)
        for folder in (self.folder, self.rows):
            sync_folder(folder)
        return aside.finish()

    def _is_changed(self, manifest: Manifest) -> bool:
        """Return whether a version must be written again, because its files or its link differ."""
        old, record = self.before[manifest.number], self.chain.records.get(manifest.number)
        if record is None or old.parent != manifest.parent or old.metadata != manifest.metadata:
            return True
        if old.row_files != manifest.row_files:
            return True
        # A delta whose parent is lost or changes does not follow from it any more.
        parent = None if record.parent is None else self.before.get(record.parent.number)
        if record.inherited is None:
            return False
        return parent is None or any(self._repaired_file(file) != file for file in parent.row_files[: record.inherited])

    def _replace(self, manifest: Manifest) -> None:
        """Write a manifest as a checkpoint in the place of that of its version, with the same digest."""
        path = manifest_path(self.folder, manifest.number)
        write_synced(path, replace(manifest.checkpoint(), format=Manifest.format).serialized())
        sync_folder(self.folder)


class Aside:
    """The folder to which a repair moves damaged files, which is made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path / DAMAGED / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._used = False

    def move(self, name: str) -> None:
        """Move a file of the store to the folder, if it exists."""
        if (self._path / name).exists():
            (self._path / name).rename(self._target(name))

    def copy(self, name: str) -> None:
        """Copy a file of the store to the folder, if it exists; move anything else."""
        if (self._path / name).is_file():
            shutil.copy2(self._path / name, self._target(name))
        else:
            self.move(name)

    def finish(self) -> Path | None:
        """Sync the folder, and return it, or None if no file came."""
        if not self._used:
            return None
        for folder in (self._folder, *(each for each in self._folder.iterdir() if each.is_dir())):
            sync_folder(folder)
        return self._folder

    def _target(self, name: str) -> Path:
        if not self._used:
            count = 1
            stem = self._folder.name
            while self._folder.exists():
                count += 1
                self._folder = self._folder.with_name(f"{stem}-{count}")
            self._used = True
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def _follows(manifest: Manifest, parent: Link) -> bool:
    """Return whether the link of a version leads to the version before it."""
    if manifest.parent is None:  # format 1
        return parent.number == manifest.number - 1
    return manifest.parent == parent


def without_attached(metadata: Metadata, dropped: set[str]) -> Metadata:
    """Return the metadata of a store without the entries of some attached files."""
    if not dropped:
        return metadata
    records = [record for record in metadata.get(ATTACHED, []) if record["name"] not in dropped]
    return {**metadata, ATTACHED: records}


def _with_times(manifest: Manifest, written: dict[str, RowFile]) -> Manifest:
    """Return a manifest with the times of modification of the files that were written."""
    files = (
        replace(file, changed=written[file.name].changed) if file.name in written else file
        for file in manifest.row_files
    )
    return replace(manifest, row_files=tuple(files))
