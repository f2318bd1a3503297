"""Verification of all files of a store of Arrow files, which writes nothing and waits for no writer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa

from qkv.core.container import container_problem
from qkv.core.progress import Progress, track
from qkv.errors import DamagedError
from qkv.store import row_files
from qkv.store.arrow_files import parse_schema
from qkv.store.attachments import attached_damages, attached_files
from qkv.store.damage import Damage, Verification, problem_of, verify_repeatedly
from qkv.store.manifest import Manifest, RowFile, manifest_path
from qkv.store.object_client import Folder
from qkv.store.versions import Chain, read_chain, resolve


def verify_arrow(path: Folder, progress: Progress | None = None) -> Verification:
    """Verify the files of all versions of a store of Arrow files; see `qkv.store.verify`.

    While another process appends or compacts, a file may be removed between the reading of its manifest and its own.
    So damaged files are verified again by newer manifests, until the same damages are found twice.
    """
    intact: set[tuple[str, int]] = set()
    return verify_repeatedly(lambda: _verify_once(path, intact, progress))


@dataclass
class FileUse:
    """The use of a file of rows by the versions of a store.

    Attributes:
        file: the file as recorded.
        kind: `rows`, or `deletions` for a file with the indices of deleted rows.
        rows: number of rows that cannot be read if the file is damaged, in the last version that needs it.
        versions: the versions that need the file, in ascending order.
    """

    file: RowFile
    kind: Literal["rows", "deletions"]
    rows: int = 0
    versions: list[int] = field(default_factory=list)


def file_uses(versions: dict[int, Manifest]) -> dict[str, FileUse]:
    """Return the use of each file of rows and of deleted rows by the versions of a store, by the name of the file."""
    uses: dict[str, FileUse] = {}
    for number, manifest in versions.items():
        for row_file in manifest.row_files:
            for file in row_files.with_deleted([row_file]):
                use = uses.get(file.name)
                if use is None:
                    kind: Literal["rows", "deletions"] = "rows" if file is row_file else "deletions"
                    use = uses[file.name] = FileUse(replace(file, deleted=None), kind)
                use.rows = row_file.present_rows
                use.versions.append(number)
    return uses


def unreadable_versions(chain: Chain, versions: dict[int, Manifest]) -> dict[int, int]:
    """Return the versions whose files are not known, each with the version whose damaged manifest is the cause."""
    broken = {damage.versions[0] for damage in chain.damages if damage.versions}
    found, cause = dict[int, int](), 0
    for number in sorted({*broken, *chain.records}):
        if number in versions:
            continue
        cause = number if number in broken or not cause else cause
        found[number] = cause
    return found


def cache_damages(folder: Path) -> list[Damage]:
    """Return a `Damage` for each damaged file in the cache folder of a store."""
    damages = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        # Names with a dot or of older formats belong to no result that is read.
        if path.suffix in (".examples", ".norms", ".statistics") and not path.name.startswith("."):
            problem = container_problem(path)
            if problem is not None and path.exists():
                damages.append(Damage(f"{folder.name}/{path.name}", problem, 0, (), "cache"))
    return damages


def _verify_once(path: Folder, intact: set[tuple[str, int]], progress: Progress | None) -> Verification:
    chain = read_chain(path / "versions")
    versions = resolve(chain)
    unreadable = unreadable_versions(chain, versions)
    damages = list(_manifest_damages(path / "versions", chain, unreadable))
    newest = versions.get(chain.history.number)
    uses = file_uses(versions)
    schema = _schema(path, versions, damages)
    broken = set()
    for use in track(uses.values(), "verifying", progress):
        key = (use.file.name, use.file.check)
        if key in intact:
            continue
        expected = row_files.deleted_schema() if use.kind == "deletions" else schema
        problem = row_files.find_problem(path / "rows", use.file, True, expected)
        if problem is None:
            intact.add(key)
        else:
            broken.add(use.file.name)
            damages.append(Damage(f"rows/{use.file.name}", problem, use.rows, tuple(use.versions), use.kind))
    files, size = len(uses) + len(chain.records), sum(use.file.size for use in uses.values())
    size += sum(_size(manifest_path(path / "versions", number)) for number in chain.records)
    described = newest if newest is not None else next(iter(versions.values()), None)
    if described is not None:
        try:
            damages += attached_damages(path, described.metadata, tuple(versions), read=True)
            attached = attached_files(path, described.metadata)
            files, size = files + len(attached), size + sum(file.size for file in attached)
        except DamagedError as error:
            name = manifest_path(path / "versions", described.number).name
            damages.append(Damage(f"versions/{name}", str(error), 0, (described.number,), "manifest"))
    if isinstance(path, Path):  # the cache of a store in an object store is on the machine that reads it
        damages += cache_damages(path / "notes")
    lost = 0 if newest is None else sum(_lost(file, broken) for file in newest.row_files)
    known = tuple(sorted({*chain.records, *unreadable}))
    return Verification(known, files, size, tuple(damages), newest.rows if newest else 0, lost)


def _manifest_damages(folder: Folder, chain: Chain, unreadable: dict[int, int]) -> Iterator[Damage]:
    """Yield the damages of manifests, each with all versions that cannot be read because of it."""
    causes = set(unreadable.values())
    for damage in chain.damages:
        causes -= set(damage.versions)
        affected = tuple(number for number, cause in unreadable.items() if cause in damage.versions)
        yield replace(damage, versions=affected or damage.versions, kind="manifest")
    for cause in sorted(causes):
        affected = tuple(number for number, each in unreadable.items() if each == cause)
        problem = "its files do not follow from those of the version before it"
        yield Damage(f"{folder.name}/{manifest_path(folder, cause).name}", problem, 0, affected, "manifest")


def _schema(path: Folder, versions: dict[int, Manifest], damages: list[Damage]) -> pa.Schema | None:
    """Return the schema of the rows, or None if no manifest holds an intact one."""
    for number, manifest in reversed(versions.items()):
        try:
            return parse_schema(manifest.schema_bytes, f"version {number} of {path.name!r}")
        except DamagedError as error:
            name = manifest_path(path / "versions", number).name
            damages.append(Damage(f"versions/{name}", problem_of(error), 0, (number,), "manifest"))
    return None


def _lost(file: RowFile, broken: set[str]) -> int:
    return file.present_rows if any(each.name in broken for each in row_files.with_deleted([file])) else 0


def _size(path: Folder) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
