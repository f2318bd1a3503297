"""Verification of all files of a Lance store, which writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.progress import Progress, track
from qkv.core.untrusted_json import Fields, parse_json
from qkv.errors import DamagedError, DataError
from qkv.store.attachments import attached_damages, attached_files
from qkv.store.block import Damage, Verification, verify_repeatedly
from qkv.store.lance_checksums import CHECKSUMS, LanceChecksums
from qkv.store.lance_files import (
    METADATA,
    count_rows,
    file_names,
    fragment_name,
    manifests,
    open_version,
)
from qkv.store.lance_recording import find_damage

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

__all__ = ["LanceVersions", "read_versions", "verify_lance"]


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
                problem = str(error).split("is damaged: ")[-1].split(". Restore")[0]
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
        damage = None if name in intact else find_damage(recorded, path, fragment, "always", decode=True)
        if damage is None:
            intact.add(name)
        else:
            damages.append(replace(damage, versions=tuple(found.uses[name])))
            lost += damage.rows if newest in found.uses[name] else 0
    attached = rows = 0
    if newest:
        metadata = (found.datasets[newest].schema.metadata or {}).get(METADATA, b"{}")
        rows = sum(count_rows(each) for name, each in found.fragments.items() if newest in found.uses[name])
        try:
            saved = Fields(parse_json(metadata, "its metadata"), "its metadata").fields
            attached = len(attached_files(path, saved))
            damages += attached_damages(path, saved, tuple(found.datasets), read=True)
        except DamagedError as error:
            damages.append(Damage(f"_versions/{manifests(path)[newest]}", str(error), 0, (newest,), "manifest"))
    paths = {name for fragment in found.fragments.values() for name in file_names(fragment)}
    size = sum((path / each).stat().st_size for each in paths if (path / each).exists())
    numbers = tuple(sorted({*found.datasets, *(number for each in damages for number in each.versions)}))
    unchecked |= {str(number) for number in numbers if number not in recorded.versions}
    return Verification(numbers, len(paths) + len(numbers) + attached, size, tuple(damages), rows, lost, len(unchecked))
