"""Repair of a Lance store: the rows of intact files become a new version, and what is lost is listed.

    1. manifests        damaged ones are moved aside; the newest intact version is the one that is repaired
    2. a new version    holds its fragments whose files are intact; committing it commits the repair
    3. older versions   that need a damaged file are left out, and their manifests moved aside
    4. checksums        are recorded for all files that remain, also for those of other programs, after decoding them
    5. damaged files    are moved to the folder `damaged`

Unlike those of Arrow stores, manifests of Lance cannot be written again, so that an older version is kept as a whole or
left out. A process that is killed leaves a store that can be repaired again. Nothing is deleted.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.progress import Progress, track
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.attachments import FOLDER, attached_damages, attached_files
from qkv.store.damage import Damage, Verification, problem_of, verify_repeatedly
from qkv.store.disk import sync_folder
from qkv.store.lance_checksums import CHECKSUMS, LanceChecksums
from qkv.store.lance_files import (
    FOLDERS,
    HINT,
    METADATA,
    count_rows,
    file_names,
    fragment_name,
    import_lance,
    manifests,
    metadata_of,
    open_version,
    row_paths,
    sync_commit,
    translate_errors,
)
from qkv.store.locking import writer_lock
from qkv.store.repairing import Aside, Repair, without_attached

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment


@dataclass
class LanceVersions:
    """The versions of a Lance store whose manifests are intact.

    Attributes:
        datasets: the versions, in ascending order.
        fragments: their fragments, by a name that is unique to the rows and the deleted rows of a fragment.
        uses: the versions of each fragment.
        damages: the damages of manifests, and of the record of checksums.
    """

    datasets: dict[int, lance.LanceDataset] = field(default_factory=dict)
    fragments: dict[str, LanceFragment] = field(default_factory=dict)
    uses: dict[str, list[int]] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)


def verify_lance(path: Path, progress: Progress | None = None) -> Verification:
    """Compare the files of all versions of a Lance store with their checksums, and decode them; see `qkv.store.verify`.

    While another process compacts, files may be removed between the reading of a manifest and their own. So damaged
    files are verified again by newer manifests, until the same damages are found twice.
    """
    intact: set[str] = set()
    return verify_repeatedly(lambda: _verify_once(path, intact, progress))


def read_versions(path: Path, recorded: LanceChecksums) -> LanceVersions:
    """Open all versions of a Lance store whose manifests are intact."""
    found = LanceVersions()
    if recorded.problem is not None:
        found.damages.append(Damage(CHECKSUMS, recorded.problem, 0, kind="checksums"))
    there = manifests(path)
    for number in sorted({*there, *recorded.versions}):
        record = recorded.versions.get(number)
        name = f"_versions/{there[number]}" if number in there else "" if record is None else record.manifest
        problem = None if record is None else recorded.find_problem(name, "always")
        if problem is None:
            try:
                found.datasets[number] = dataset = open_version(path, number)
            except DataError as error:
                if not (path / name).exists():
                    continue
                problem = problem_of(error)
        if problem is not None:
            found.damages.append(Damage(name, problem, 0, (number,), "manifest"))
            continue
        for fragment in dataset.get_fragments():
            found.uses.setdefault(fragment_name(fragment), []).append(number)
            found.fragments[fragment_name(fragment)] = fragment
    return found


def _verify_once(path: Path, intact: set[str], progress: Progress | None) -> Verification:
    recorded = LanceChecksums(path)
    found = read_versions(path, recorded)
    damages, newest, lost, unchecked = found.damages, max(found.datasets, default=0), 0, set[str]()
    for name, fragment in track(found.fragments.items(), "verifying", progress):
        unchecked.update(each for each in file_names(fragment) if each not in recorded.files)
        damage = None if name in intact else recorded.find_damage(fragment, "always", decode=True)
        if damage is None:
            intact.add(name)
        else:
            damages.append(replace(damage, versions=tuple(found.uses[name])))
            lost += damage.rows if newest in found.uses[name] else 0
    attached = rows = 0
    if newest:
        rows = sum(count_rows(each) for name, each in found.fragments.items() if newest in found.uses[name])
        try:
            saved = metadata_of(found.datasets[newest], path.name)
            attached = len(attached_files(path, saved))
            damages += attached_damages(path, saved, tuple(found.datasets), read=True)
        except DamagedError as error:
            damages.append(Damage(f"_versions/{manifests(path)[newest]}", str(error), 0, (newest,), "manifest"))
    paths = {name for fragment in found.fragments.values() for name in file_names(fragment)}
    size = sum((path / each).stat().st_size for each in paths if (path / each).exists())
    numbers = tuple(sorted({*found.datasets, *(number for each in damages for number in each.versions)}))
    unchecked |= {str(number) for number in numbers if number not in recorded.versions}
    return Verification(numbers, len(paths) + len(numbers) + attached, size, tuple(damages), rows, lost, len(unchecked))


def repair_lance(path: Path, dry_run: bool = False, progress: Progress | None = None) -> Repair:
    """Repair a Lance store; see `qkv.store.repair`."""
    with contextlib.nullcontext() if dry_run else writer_lock(path):
        return _Repairer(path, progress).run(dry_run)


class _Repairer:
    """One repair of a Lance store, whose methods are its steps."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path = path
        self.recorded = LanceChecksums(path)
        self.found: LanceVersions = read_versions(path, self.recorded)
        if not self.found.datasets:
            raise DamagedStoreError(
                f"{path.name!r} must have a manifest that can be read, got none. Restore the store from a copy."
            )
        self.head = max(self.found.datasets)
        self.broken: dict[str, Damage] = {}
        for name, fragment in track(self.found.fragments.items(), "verifying", progress):
            damage = self.recorded.find_damage(fragment, "always", decode=True)
            if damage is not None:
                self.broken[name] = replace(damage, versions=tuple(self.found.uses[name]))
        self.attached = self._damaged_attachments()
        self.damages = (*self.found.damages, *self.broken.values(), *self.attached)
        self.fragments = {fragment_name(each): each for each in self.found.datasets[self.head].get_fragments()}
        self.replaced = {name: self._undeleted(name) for name in self.fragments if name in self.broken}
        self.appended, self.restored, self.undeleted, self.lost = self._later_rows()

    def run(self, dry_run: bool) -> Repair:
        """Return the result of the repair, after writing it unless `dry_run` is True."""
        unreadable = {number for damage in self.found.damages for number in damage.versions}
        spoiled = {number for damage in self.broken.values() for number in damage.versions}
        rows = sum(count_rows(each) for name, each in self.fragments.items() if name not in self.replaced)
        rows += sum(int(each.physical_rows) for each in self.appended)
        for name, other in self.replaced.items():
            present = 0 if other is None else int(other.physical_rows) - _deleted(other)
            rows += present
            self.undeleted += max(0, present - self.broken[name].rows)
            self.lost += max(0, self.broken[name].rows - present)
        result = Repair(
            self.damages,
            self.head + bool(self.replaced) + bool(self.appended) + bool(self.attached),
            rows,
            {max(self.head, *unreadable, 0): self.lost} if self.lost else {},
            tuple(sorted((unreadable | spoiled) - set(self.restored))),
            tuple(f"version {number}" for number in self.restored),
            self.undeleted,
            recorded=self._count_unchecked(),
        )
        if dry_run or not (self.damages or result.recorded):
            return result
        return replace(result, folder=self._write(spoiled))

    def _later_rows(self) -> tuple[list[FragmentMetadata], list[int], int, int]:
        """Return the rows of the versions after the newest intact one, whose manifests are lost.

        Returns:
            The fragments that they appended, as far as their files are intact; the versions of which nothing is lost;
            the number of their deleted rows, which are present again; and the number of rows that are lost.
        """
        fragments, restored, undeleted, lost = list["FragmentMetadata"](), list[int](), 0, 0
        rows = self.found.datasets[self.head].count_rows()
        for number, record in sorted(self.recorded.versions.items()):
            if number <= self.head:
                continue
            names = [name for name in record.files if name.startswith("data/")]
            if record.operation == "append" and all(self._is_intact(name) for name in names):
                fragments += [self._fragment(name) for name in names]
                restored.append(number)
            elif record.operation == "compact" and record.rows == rows:
                restored.append(number)
            elif record.rows < rows:
                undeleted += rows - record.rows
            else:
                lost += record.rows - rows
            rows = record.rows
        return fragments, restored, undeleted, lost

    def _fragment(self, name: str) -> FragmentMetadata:
        """Return a new fragment with the rows of a file."""
        from lance.fragment import LanceFragment

        made: FragmentMetadata = LanceFragment.create_from_file(
            name.removeprefix("data/"), self.found.datasets[self.head], 0
        )
        return made

    def _is_intact(self, name: str) -> bool:
        return (self.path / name).is_file() and self.recorded.find_problem(name, "always") is None

    def _count_unchecked(self) -> int:
        names = {name for each in self.found.fragments.values() for name in file_names(each)}
        versions = self.found.datasets.keys() - self.recorded.versions.keys()
        return len(names - self.recorded.files.keys()) + len(versions)

    def _damaged_attachments(self) -> list[Damage]:
        metadata = metadata_of(self.found.datasets[self.head], self.path.name)
        try:
            return attached_damages(self.path, metadata, tuple(self.found.datasets), read=True)
        except DamagedError as error:
            return [Damage(FOLDER, str(error), 0, tuple(self.found.datasets), "attachment")]

    def _undeleted(self, name: str) -> FragmentMetadata | None:
        """Return a fragment with the latest intact set of its deleted rows, or None if its rows are damaged."""
        fragment = self.found.fragments[name]
        if self.broken[name].kind != "deletions":
            return None
        files = [each.path for each in fragment.metadata.files]
        same = [
            each.metadata
            for other, each in self.found.fragments.items()
            if other not in self.broken and [file.path for file in each.metadata.files] == files
        ]
        if same:
            return max(same, key=_deleted)
        # No earlier version is intact: all rows of the fragment are present again.
        plain: FragmentMetadata = type(fragment.metadata).from_json(
            json.dumps({**fragment.metadata.to_json(), "deletion_file": None})
        )
        return plain if all(self._is_intact(each) for each in file_names(plain)) else None

    # -- writing ----------------------------------------------------------------------------------------

    def _write(self, spoiled: set[int]) -> Path | None:
        aside, there = Aside(self.path), manifests(self.path)
        for damage in self.found.damages:  # first, as Lance cannot commit after an unreadable newest manifest
            if damage.kind == "manifest":
                aside.move(damage.file)
        (self.path / "_versions" / HINT).unlink(missing_ok=True)
        sync_folder(self.path / "_versions")
        shutil.rmtree(self.path / "notes", ignore_errors=True)  # their versions may get the numbers of lost ones
        before = row_paths(self.path)
        self._commit(self.found.datasets[self.head])
        sync_commit(self.path, before)
        if self.recorded.problem is not None:
            aside.copy(CHECKSUMS)
        intact = {number: each for number, each in self.found.datasets.items() if number not in spoiled}
        self._rewrite_checksums(intact)
        for number in sorted(spoiled):
            if number in there:
                aside.move(f"_versions/{there[number]}")
        for damage in self.damages:
            if damage.kind not in ("manifest", "checksums"):
                aside.move(damage.file)
        for folder in FOLDERS:
            if (self.path / folder).is_dir():
                sync_folder(self.path / folder)
        return aside.finish()

    def _commit(self, dataset: lance.LanceDataset) -> None:
        """Commit the rows that remain as new versions."""
        lance_ = import_lance()
        operations = []
        if self.replaced:
            removed = [self.fragments[name].fragment_id for name, other in self.replaced.items() if other is None]
            changed = [other for other in self.replaced.values() if other is not None]
            operations.append(lance_.LanceOperation.Delete(changed, removed, "damaged"))
        if self.appended:
            operations.append(lance_.LanceOperation.Append(self.appended))
        with translate_errors(self.path):
            for operation in operations:
                dataset = lance_.LanceDataset.commit(str(self.path), operation, read_version=dataset.version)
            if self.attached:
                dropped = {damage.file.partition("/")[2] for damage in self.attached}
                metadata = json.dumps(
                    without_attached(metadata_of(dataset, self.path.name), dropped), ensure_ascii=False
                )
                whole = {key.decode(): value.decode() for key, value in (dataset.schema.metadata or {}).items()}
                dataset.replace_schema_metadata({**whole, METADATA.decode(): metadata})

    def _rewrite_checksums(self, remaining: dict[int, lance.LanceDataset]) -> None:
        """Record the checksums of all files that remain, which were verified or decoded before."""
        named, records = {*self.recorded.files}, []
        made = {number: open_version(self.path, number) for number in manifests(self.path) if number > self.head}
        for number, dataset in {**remaining, **made}.items():
            if number in made or number not in self.recorded.versions:
                names = {name for each in dataset.get_fragments() for name in file_names(each)} - named
                named |= names
                operation, lost = ("repair", self.lost) if number in made else (None, 0)
                records.append(self.recorded.describe(dataset, sorted(names), operation, lost))
        # Records of damaged files remain, so that the versions that need them are found if this process is killed.
        self.recorded.rewrite(self.found.datasets.keys() & remaining.keys(), self.recorded.files, records)


def _deleted(fragment: FragmentMetadata) -> int:
    return 0 if fragment.deletion_file is None else int(fragment.deletion_file.num_deleted_rows)
