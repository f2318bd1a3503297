"""The class `LanceStore`, a store in the folder of a Lance dataset, which other programs can read with Lance.

Lance commits a version by writing files of rows and then linking a manifest into place. Lance syncs neither, so a
power loss can leave an empty newest manifest, with which Lance cannot open the dataset. This module syncs the files of
rows before the commit, and the manifest and its folder after it. If the newest manifest cannot be read, opening the
store renames the manifest with a warning.

Lance has no checksums, and its decoders end the process for some damaged files. So the store records the checksum of
each file that it commits (`lance_checksums`), and verifies a manifest before Lance opens it and the other files before
Lance first reads them. Files of other programs have no checksums; `unchecked` is their number.

Differences from a folder of Arrow files: a reader that was open when old versions were removed must refresh; rows are
decoded, not memory-mapped.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from qkv.core.progress import Progress, track
from qkv.core.typing import Int
from qkv.errors import DamagedStoreError, StoreFullError
from qkv.store import row_files
from qkv.store.attachments import attached_damages
from qkv.store.base import BlockSelector, Metadata, Store
from qkv.store.block import Block, Version
from qkv.store.damage import Damage
from qkv.store.disk import sync_folder
from qkv.store.lance_checksums import CHECKSUMS, LanceChecksums, Reading
from qkv.store.lance_files import (
    HINT,
    METADATA,
    cell_bytes,
    damaged_version,
    file_names,
    fragment_name,
    import_lance,
    manifests,
    metadata_of,
    open_version,
    operation_of,
    row_paths,
    sync_all,
    sync_commit,
    time_of,
    translate_errors,
    translate_read_errors,
)
from qkv.store.lance_repairing import verify_lance

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment


_ASIDE = ".damaged"


def is_lance(path: Path) -> bool:
    """Return whether a path is the folder of a Lance dataset."""
    return (path / "_versions").is_dir()


class LanceStore(Store):
    """A store in the folder of a Lance dataset, which other programs can read with Lance.

    Args:
        path: the folder.
        version: an older version; None: the newest.
        damaged: `"refuse"` raises if a file of rows is damaged; `"skip"` reads all files at opening, continues
            without the rows of the damaged ones, and lists them in `damages`.
        checksums: whether a file is verified when a process first reads it.

    Raises:
        DamagedStoreError: No version can be read, or files are missing, cut off or changed.
        DataError: The version does not exist.
        MissingPackageError: pylance is not installed.

    Example:
        >>> import tempfile
        >>> from qkv import Database
        >>> folder, row = tempfile.mkdtemp() + "/people", {"name": ["Li Mu"], "pay": [1]}
        >>> people = Database.create(folder, row, key="name", value="pay", backend="lance")
        >>> people.append(row)
        2
        >>> people.store, people.store.to_table()["pay"].to_pylist()
        (LanceStore(people: 2 rows, version 2), [1, 1])
    """

    def __init__(
        self, path: Path, version: int | None = None, damaged: str = "refuse", checksums: bool | None = None
    ) -> None:
        super().__init__(path, version, damaged, checksums)
        self._lance, self._before = import_lance(), set[str]()
        self._recorded = LanceChecksums(self.path)
        self._load(self._newest() if version is None else self._at(version))

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, metadata: Metadata, tables: Iterable[pa.Table] = ()) -> None:
        """Write version 1 of a store with the rows of tables into a folder; see `qkv.store.create`."""
        lance = import_lance()
        encoded = {METADATA: json.dumps(metadata, ensure_ascii=False).encode()}
        whole = schema.with_metadata(encoded)
        rows = (table.replace_schema_metadata(encoded) for table in tables)
        fragments = _write_fragments(path, rows, str(path), mode="create", schema=whole)
        with translate_errors(path):
            sync_all(path, "data", set())
            lance.LanceDataset.commit(str(path), lance.LanceOperation.Overwrite(whole, fragments))
        sync_commit(path, set())
        names = [name for fragment in fragments for name in file_names(fragment)]
        LanceChecksums(path).record(0, open_version(path, 1), names, "create")

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        return (self._block(fragment, columns) for fragment in self._fragments())

    def block_names(self) -> list[str]:
        return [fragment_name(fragment) for fragment in self._fragments()]

    def block(self, name: str, columns: Sequence[str] | None = None) -> Block:
        for fragment in self._fragments():
            if fragment_name(fragment) == name:
                return self._block(fragment, columns)
        raise self._missing_block(name)

    def block_lengths(self) -> list[int]:
        with translate_read_errors(self.path):
            return [fragment.count_rows() for fragment in self._fragments()]

    def size_of(self, columns: Sequence[str]) -> int:
        """Return the approximate total size in bytes of the columns that `columns` names."""
        return len(self) * sum(cell_bytes(self.schema.field(name).type) for name in columns)

    def take(self, rows: Int[np.ndarray, " n"], columns: Sequence[str] | None = None) -> pa.Table:
        names = list(self.schema.names if columns is None else columns)
        if not len(rows):
            return self.empty(names)
        if self.damages:
            return super().take(rows, columns)
        fragments = list(self._fragments())
        for place in np.unique(np.searchsorted(np.cumsum(self.block_lengths()), rows, side="right")):
            if place < len(fragments):
                self._require(fragments[place])
        with translate_read_errors(self.path):
            return self._dataset.take(rows.tolist(), columns=names).cast(self.empty(names).schema)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        return list(verify_lance(self.path, progress).damages)

    # -- writing ----------------------------------------------------------------------------------------

    def delete_chosen(self, choose: BlockSelector, columns: Sequence[str] | None = None) -> int:
        with self._writing():
            fragments = list(self._fragments())
            remaining, removed, deleted = list["FragmentMetadata"](), [], 0
            for fragment, chosen in zip(fragments, choose(list(self.blocks(columns))), strict=True):
                if chosen is None or not np.asarray(chosen, bool).any():
                    continue
                address = fragment.scanner(columns=[], with_row_address=True).to_table()
                offsets = address.column("_rowaddr").to_numpy() & 0xFFFFFFFF
                offsets = offsets[np.asarray(chosen, bool)]
                deleted += len(offsets)
                with translate_errors(self.path):
                    thinned = fragment.delete_rows(offsets.tolist())
                if thinned is None:
                    removed.append(fragment.fragment_id)
                else:
                    remaining.append(thinned)
            if deleted:
                operation = self._lance.LanceOperation.Delete(remaining, removed, "chosen by qkv")
                self._commit(operation, "_deletions", remaining, "delete")
        return deleted

    # -- private ----------------------------------------------------------------------------------------

    def _block(self, fragment: LanceFragment, columns: Sequence[str] | None) -> Block:
        self._require(fragment)
        with translate_read_errors(self.path):
            table = fragment.to_table(columns=None if columns is None else list(columns))
        return Block(fragment_name(fragment), table.replace_schema_metadata(None))

    def _prepare_commit(self) -> None:
        """Record the versions that a killed process or another program committed after the newest recorded one."""
        newest = self._recorded.newest
        if 0 < newest < self.version:
            before = {name for each in self._at(newest).get_fragments() for name in file_names(each)}
            names = [name for each in self._fragments() for name in file_names(each) if name not in before]
            self._record(newest, self._dataset, names)

    def _start_writing(self) -> None:
        self._before = row_paths(self.path)

    def _uncommitted(self) -> Iterable[Path]:
        return [self.path / name for name in row_paths(self.path) - self._before]

    def _append(self, tables: Iterator[pa.Table]) -> None:
        fragments = _write_fragments(self.path, tables, self._dataset, mode="append")
        if fragments:
            self._commit(self._lance.LanceOperation.Append(fragments), "data", fragments, "append")

    def _compact(self, progress: Progress | None) -> None:
        for fragment in self._fragments():
            self._require(fragment)
        rows = max(1, len(self))
        each = max(1, int(row_files.BYTES / max(1.0, self.size_of(self.schema.names) / rows)))
        compaction = self._lance.optimize.Compaction
        options = {"target_rows_per_fragment": each, "materialize_deletions_threshold": 0.0}
        tasks = compaction.plan(self._dataset, options).tasks
        with translate_errors(self.path):
            done = [task.execute(self._dataset) for task in track(tasks, "compacting", progress)]
        if done:
            sync_all(self.path, "data", self._before)
            with translate_errors(self.path):
                compaction.commit(self._dataset, done, options)
            self._finish_commit([fragment for result in done for fragment in result.new_fragments], "compact")

    def _remove_unneeded(self, keep: int | None) -> int:
        if keep is None:
            return 0
        there = manifests(self.path)
        with translate_read_errors(self.path):
            tagged = {int(tag["version"]) for tag in self._dataset.tags.list().values()}
        remaining = {*sorted(there)[-keep:], *tagged}
        for number in remaining:
            self._require_manifest(number)  # Lance reads all of them
        if self._recorded.versions:
            # A version without a record is readable, and a record without its version is reported as damage.
            self._recorded.rewrite(remaining, row_paths(self.path))
        # Manifests first: Lance may be killed after it removed the files of a version, and before its manifest.
        freed = 0
        for number in sorted(there.keys() - remaining):
            manifest = self.path / "_versions" / there[number]
            freed += manifest.stat().st_size
            manifest.unlink()
        sync_folder(self.path / "_versions")
        with translate_read_errors(self.path):
            removed = self._dataset.cleanup_old_versions(
                older_than=timedelta(0),
                retain_versions=keep,
                delete_unverified=True,
                error_if_tagged_old_versions=False,
            )
        if self._recorded.versions:
            self._recorded.rewrite(remaining, row_paths(self.path))
        return freed + int(removed.bytes_removed)

    def _describe(self, number: int) -> Version:
        record = self._recorded.versions.get(number)
        if record is not None:
            self._require_manifest(number)
            return Version(number, record.operation, record.rows, record.written, record.lost)
        dataset = self._at(number)
        with translate_read_errors(self.path):
            return Version(number, operation_of(dataset), dataset.count_rows(), time_of(dataset).astimezone(UTC))

    def _fragments(self) -> Iterator[LanceFragment]:
        broken = {damage.file for damage in self.damages}
        if not broken:
            return iter(self._all_fragments)
        return (each for each in self._all_fragments if broken.isdisjoint(file_names(each)))

    def _require(self, fragment: LanceFragment) -> None:
        """Raise a `DamagedStoreError` if a file of a fragment does not have its checksum, before Lance reads it."""
        damage = self._recorded.find_damage(fragment) if self._checksums else None
        if damage is not None and damage.problem == "missing" and self.version not in manifests(self.path):
            raise DamagedStoreError(
                f"{self.path.name!r} cannot be read: {damage}, because another process compacted the store. "
                "Call refresh()."
            )
        if damage is not None:
            raise DamagedStoreError(
                f"{self.path.name!r} is damaged: {damage}. Restore this file from a copy, or open the store with "
                "damaged='skip' to read the other rows."
            )

    def _require_manifest(self, number: int) -> None:
        """Raise a `DamagedStoreError` if a manifest does not have its checksum, before Lance opens it."""
        record = self._recorded.versions.get(number)
        if record is not None and self._checksums:
            problem = self._recorded.find_problem(record.manifest)
            if problem is not None:
                raise damaged_version(self.path, number, problem)

    def _numbers(self) -> list[int]:
        self._recorded.refresh()
        return sorted({*manifests(self.path), *self._recorded.versions})

    def _load_newest(self) -> None:
        self._load(self._newest())

    def _newest(self) -> lance.LanceDataset:
        """Return the dataset at the newest version that can be read, and rename the manifests of newer versions.

        The manifest of a version that was acknowledged is never renamed.
        """
        self._recorded.refresh()
        numbers = list(manifests(self.path))
        recorded = self._recorded.newest
        if recorded > max(numbers, default=0):
            raise damaged_version(self.path, recorded, "missing")
        for back, number in enumerate(reversed(numbers)):
            try:
                dataset = self._at(number)
            except DamagedStoreError:
                if number <= recorded:
                    raise
                continue
            if back:
                self._set_aside(numbers[-back:])
            return dataset
        raise DamagedStoreError(
            f"{self.path.name!r} is damaged: no manifest of its {len(numbers)} versions can be read. "
            "Restore the store from a copy."
        )

    def _at(self, version: int) -> lance.LanceDataset:
        self._require_manifest(version)
        return open_version(self.path, version)

    def _set_aside(self, numbers: list[int]) -> None:
        names = ", ".join(map(str, numbers))
        subject, verb = ("versions", "were") if len(numbers) > 1 else ("version", "was")
        warnings.warn(
            f"{self.path.name!r}: {subject} {names} cannot be read, probably because of a power loss, and {verb} set "
            "aside. The newest readable version is open. Repeat the last write.",
            UserWarning,
            stacklevel=4,
        )
        folder = self.path / "_versions"
        for number, name in manifests(self.path).items():
            if number in numbers:
                (folder / name).rename(folder / f"{name}{_ASIDE}")
        (folder / HINT).unlink(missing_ok=True)
        sync_folder(folder)

    def _load(self, dataset: lance.LanceDataset) -> None:
        problem = self._recorded.problem
        damages = [] if problem is None else [Damage(CHECKSUMS, problem, 0, kind="checksums")]
        self._report(damages)
        with translate_read_errors(self.path):
            metadata = metadata_of(dataset, self.path.name)
            fragments = list(dataset.get_fragments())
            read: Reading = "once" if self._skip and self._checksums else "never"
            checked = (self._recorded.find_damage(each, read) for each in fragments)
            damages += [damage for damage in checked if damage is not None]
        damages += attached_damages(self.path, metadata)
        self._report(damages)
        names = [name for each in fragments for name in file_names(each)]
        self.unchecked = sum(name not in self._recorded.files for name in names)
        self.unchecked += dataset.version not in self._recorded.versions
        self._dataset, self.damages, self._all_fragments = dataset, damages, fragments
        self.version = dataset.version
        self.metadata = metadata
        self.schema = dataset.schema.remove_metadata()

    def _commit(
        self,
        operation: lance.LanceOperation.BaseOperation,
        folder: str,
        fragments: Iterable[FragmentMetadata],
        name: str,
    ) -> None:
        sync_all(self.path, folder, self._before)
        with translate_errors(self.path):
            self._lance.LanceDataset.commit(str(self.path), operation, read_version=self.version)
        self._finish_commit(fragments, name)

    def _finish_commit(self, fragments: Iterable[FragmentMetadata], operation: str) -> None:
        sync_commit(self.path, self._before)
        dataset = open_version(self.path, max(manifests(self.path)))
        self._record(self.version, dataset, [name for each in fragments for name in file_names(each)], operation)
        self._load(dataset)

    def _record(
        self, after: int, dataset: lance.LanceDataset, names: Iterable[str], operation: str | None = None
    ) -> None:
        """Record the checksums of the versions after a version, up to that of a dataset."""
        with suppress(StoreFullError):  # the rows are committed; the next write records them
            self._recorded.record(after, dataset, names, operation)


def _write_fragments(
    path: Path, tables: Iterable[pa.Table], target: str | lance.LanceDataset, mode: str, schema: pa.Schema | None = None
) -> list[FragmentMetadata]:
    """Write the rows of tables to files, and return their fragments, which belong to no version yet."""
    fragments: list[FragmentMetadata] = []
    for part in row_files.split_tables(tables):
        with translate_errors(path):
            rows = max(1, part.num_rows)
            fragments += import_lance().fragment.write_fragments(
                part, target, max_rows_per_file=rows, mode=mode, schema=schema
            )
    return fragments
