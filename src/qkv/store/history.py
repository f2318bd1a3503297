"""The history of a store: which version is the newest, and whether each version is linked to the one before it.

`versions/newest.json` holds the number and the SHA-256 of the newest manifest, the number of the oldest, and the files
of the newest version if its manifest is a delta. It is written after the manifest. After a crash between the two, the
newest manifest links to the version in `newest.json`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from qkv.core.untrusted_json import Fields, read_bounded
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.block import Damage
from qkv.store.disk import write_synced
from qkv.store.manifest import Link, Manifest, seal, unseal
from qkv.store.manifest_files import exists, manifest_path, numbers, read_manifest, read_record

__all__ = [
    "History",
    "find_history",
    "find_newest",
    "history_damages",
    "is_newest",
    "oldest_version",
    "read_newest",
    "read_version",
    "write_newest",
]

NEWEST = "newest.json"
_TRIALS = 100
_MOST_FILES = 256
"""Largest number of files of rows that `newest.json` lists, which is written with each commit."""


@dataclass(frozen=True)
class _Newest:
    """The content of `newest.json`: the newest version, the number of the oldest, and the files of the newest."""

    number: int
    digest: str
    oldest: int
    files: Fields | None = field(default=None, compare=False)
    depth: int = field(default=0, compare=False)


@dataclass(frozen=True)
class History:
    """What is known of the newest version of a store.

    Attributes:
        number: the number of the newest version.
        expected: the SHA-256 of its manifest; None if `newest.json` does not hold it.
        oldest: the number of the oldest version that was not removed.
        problems: files that are missing, damaged or of another store.
    """

    number: int
    expected: str | None
    oldest: int
    problems: tuple[Damage, ...] = ()


def find_newest(folder: Path) -> int:
    """Return the number of the newest version, or 0 if there is none."""
    try:
        return find_history(folder).number
    except DataError:
        return 0


def is_newest(folder: Path, link: Link) -> bool:
    """Return whether a version is the newest, without listing all versions. False: it is not known."""
    newest = _read(folder)
    same = isinstance(newest, _Newest) and (newest.number, newest.digest) == (link.number, link.digest)
    return same and exists(folder, link.number) and not exists(folder, link.number + 1)


def oldest_version(folder: Path) -> int:
    """Return the number of the oldest version that was not removed."""
    newest = _read(folder)
    return newest.oldest if isinstance(newest, _Newest) else find_history(folder).oldest


def find_history(folder: Path) -> History:
    """Find the newest version of a store, and check that it follows the version in `newest.json`.

    Args:
        folder: the folder of the manifests.

    Raises:
        DataError: There is no version.
    """
    before = None
    for _ in range(_TRIALS):
        newest = _read(folder)
        found = numbers(folder)
        history = _judge(folder, newest, found)
        # A writer may commit between the two readings; what remains unchanged is no race.
        if not history.problems or (newest, found) == before:
            return history
        before = (newest, found)
    return history


def _judge(folder: Path, newest: _Newest | Damage | None, found: list[int]) -> History:
    if not isinstance(newest, _Newest):
        if not found:
            raise DataError(
                f"path must be a store with at least one version, got {folder.parent.name!r} without versions. "
                "Create a store with Database.create."
            )
        last, oldest = found[-1], found[0]
        if newest is None and _is_linked(folder, last):
            newest = Damage(_name(NEWEST), "missing", 0)
        return History(last, None, oldest, () if newest is None else (newest,))
    later = [number for number in found if number > newest.number]
    if newest.number not in found:
        earlier = [number for number in found if number < newest.number]
        problem = Damage(_name(manifest_path(folder, newest.number).name), "missing", 0)
        if not earlier:
            raise DamagedStoreError(f"{folder.parent.name!r} is damaged: {problem}. Restore the store from a copy.")
        return History(earlier[-1], None, newest.oldest, (problem,))
    known = History(newest.number, newest.digest, newest.oldest)
    if not later:
        return known
    if len(later) == 1 and _parent(folder, later[0]) == Link(newest.number, newest.digest):
        return History(later[0], None, newest.oldest)
    foreign = (Damage(_name(manifest_path(folder, number).name), "not a version of this store", 0) for number in later)
    return History(known.number, known.expected, known.oldest, tuple(foreign))


def read_version(folder: Path, number: int) -> Manifest:
    """Return the manifest of a version, after comparing its SHA-256 with the link of the version after it.

    Raises:
        DataError: The version does not exist.
        DamagedStoreError: The manifest is damaged, or is that of another version or another store.
    """
    newest = _read(folder)
    if isinstance(newest, _Newest) and newest.number == number:
        return read_manifest(folder, number, newest.digest)
    child = next((other for other in numbers(folder) if other > number), None)
    link = None if child is None else _parent(folder, child)
    if child is None or link is None or link.number != number:
        return read_manifest(folder, number)
    try:
        return read_manifest(folder, number, link.digest)
    except DamagedStoreError:
        if _is_intact(folder, child):
            raise
    return read_manifest(folder, number)  # the next manifest is not that of this store, so neither is its link


def history_damages(folder: Path) -> Iterator[Damage]:
    """Yield a `Damage` for each manifest that is missing, damaged, or not the one that the next version links to."""
    history = find_history(folder)
    yield from history.problems
    number, expected = history.number, history.expected
    while number >= history.oldest:
        try:
            manifest = read_record(folder, number, expected)
        except DataError as error:
            if number < find_history(folder).oldest:  # removed by a compaction in the meantime
                return
            damaged = isinstance(error, DamagedStoreError)
            problem = str(error).split("is damaged: ")[-1].split(". Restore")[0] if damaged else "missing"
            yield Damage(_name(manifest_path(folder, number).name), problem, 0)
            earlier = [other for other in numbers(folder) if other < number]
            if not earlier:
                return
            number, expected = earlier[-1], None
            continue
        if manifest.parent is not None:
            number, expected = manifest.parent.number, manifest.parent.digest
        else:  # the first version, or a version of format 1, which has no link
            number, expected = number - 1, None


def read_newest(folder: Path, number: int, expected: str | None) -> Manifest:
    """Return the manifest of the newest version. Its files are in `newest.json`, so that no older deltas are read.

    Raises:
        DataError: The version does not exist, or was written by a newer version of qkv.
        DamagedStoreError: The manifest, or one from which its files follow, is damaged or missing.
    """
    newest = _read(folder)
    if (
        isinstance(newest, _Newest)
        and newest.files is not None
        and (newest.number, newest.digest) == (number, expected)
    ):
        read_record(folder, number, expected)
        with contextlib.suppress(DamagedError):
            manifest = Manifest.from_fields(newest.files, newest.digest)
            if (manifest.number, manifest.digest) == (number, expected):
                return replace(manifest, depth=newest.depth)
    return read_manifest(folder, number, expected)


def write_newest(folder: Path, manifest: Manifest, oldest: int) -> None:
    """Write `newest.json`, which is complete after a power loss; the manifest must be synced before."""
    body: dict[str, object] = {"number": manifest.number, "digest": manifest.digest, "oldest": oldest}
    if manifest.depth and len(manifest.row_files) <= _MOST_FILES:
        body |= {"depth": manifest.depth, "files": manifest.checkpoint().body()}
    write_synced(folder / NEWEST, seal(body))


def _read(folder: Path) -> _Newest | Damage | None:
    """Return the content of `newest.json`, its damage, or None if it does not exist."""
    try:
        fields = unseal(read_bounded(folder / NEWEST, 2**24), _name(NEWEST))
        number = fields.integer("number", 1)
        newest = _Newest(number, fields.text("digest"), fields.integer("oldest", 1, number))
        if fields.get("files") is None:
            return newest
        return replace(newest, files=Fields(fields.get("files"), _name(NEWEST)), depth=fields.integer("depth"))
    except FileNotFoundError:
        return None
    except (DamagedError, OSError) as error:
        return Damage(_name(NEWEST), str(error).removesuffix(" Restore the file from a copy.").rstrip("."), 0)


def _parent(folder: Path, number: int) -> Link | None:
    """Return the link of a version to the one before it, or None if it has none or its manifest is damaged."""
    try:
        return read_record(folder, number).parent
    except DataError:
        return None


def _is_intact(folder: Path, number: int) -> bool:
    try:
        read_version(folder, number)
    except DataError:
        return False
    return True


def _is_linked(folder: Path, number: int) -> bool:
    """Return whether a manifest is of a format in which `newest.json` exists."""
    try:
        return read_record(folder, number).format > 1
    except DataError:
        return False


def _name(file: str) -> str:
    return f"versions/{file}"
