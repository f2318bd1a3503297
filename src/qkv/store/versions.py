"""The history of a store: which version is the newest, and whether each version is linked to the one before it.

`versions/newest.json` holds the number and the SHA-256 of the newest manifest, the number of the oldest, and the files
of the newest version, from which its manifest can be repaired. It is written after the manifest. After a crash between
the two, the newest manifest links to the version in `newest.json`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from qkv.core.untrusted_json import Fields, read_bounded
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.block import missing_version
from qkv.store.damage import Damage, problem_of
from qkv.store.disk import write_synced
from qkv.store.manifest import Link, Manifest, exists, manifest_path, numbers, read_manifest, read_record, seal, unseal
from qkv.store.object_client import Folder

NEWEST = "newest.json"
"""Name of the file that describes the newest version."""

_TRIALS = 100
_MOST_FILES = 256
"""Largest number of files of rows that `newest.json` lists, which is written with each commit."""


@dataclass(frozen=True)
class Newest:
    """The content of `newest.json`.

    Attributes:
        number: the number of the newest version.
        digest: the SHA-256 of its manifest.
        oldest: the number of the oldest version that was not removed.
        files: the fields of its manifest as a checkpoint; None if they are not recorded.
        depth: the number of deltas since the last checkpoint.
    """

    number: int
    digest: str
    oldest: int
    files: Fields | None = field(default=None, compare=False, repr=False)
    depth: int = field(default=0, compare=False)

    @property
    def link(self) -> Link:
        """The number and the digest of the newest version."""
        return Link(self.number, self.digest)

    def manifest(self) -> Manifest | None:
        """Return the manifest of the newest version with all its files, or None if it is not recorded."""
        with contextlib.suppress(DamagedError):
            if self.files is not None:
                manifest = Manifest.from_fields(self.files, self.digest)
                if manifest.link == self.link:
                    return replace(manifest, depth=self.depth)
        return None


@dataclass(frozen=True)
class History:
    """The newest version of a store, as far as its files state it.

    Attributes:
        number: the number of the newest version.
        expected: the SHA-256 of its manifest; None if `newest.json` does not hold it.
        oldest: the number of the oldest version that was not removed.
        problems: files that are missing, damaged or of another store.
        newest: the content of `newest.json`; None if it is missing or damaged.
    """

    number: int
    expected: str | None
    oldest: int
    problems: tuple[Damage, ...] = ()
    newest: Newest | None = field(default=None, repr=False)


def find_newest(folder: Folder) -> int:
    """Return the number of the newest version, or 0 if there is none."""
    try:
        return find_history(folder).number
    except DataError:
        return 0


def find_history(folder: Folder, known: Link | None = None) -> History:
    """Find the newest version of a store, and check that it follows the version in `newest.json`.

    Args:
        known: a version; if it is the newest, the versions are not listed.

    Raises:
        DataError: There is no version.
    """
    if known is not None:
        newest = _read(folder)
        same = isinstance(newest, Newest) and newest.link == known
        if same and exists(folder, known.number) and not exists(folder, known.number + 1):
            assert isinstance(newest, Newest)
            return History(newest.number, newest.digest, newest.oldest, newest=newest)
    before = None
    for _ in range(_TRIALS):
        newest = _read(folder)
        found = numbers(folder, newest.number if isinstance(newest, Newest) else 1)
        # A writer may commit and compact between the two readings; what remains unchanged is no race.
        if (newest, found) == before:
            break
        before = (newest, found)
        with contextlib.suppress(DamagedStoreError):
            history = _judge(folder, newest, found)
            if not history.problems:
                return history
    return _judge(folder, newest, found)


def _judge(folder: Folder, newest: Newest | Damage | None, found: list[int]) -> History:
    """Return the history of a store with the content of `newest.json`, and the numbers of the manifests from it on."""
    if not isinstance(newest, Newest):
        if not found:
            raise DataError(
                f"path must be a store with at least one version, got {folder.parent.name!r} without versions. "
                "Create a store with Database.create."
            )
        last, oldest = found[-1], found[0]
        # In an object store, a creation that is stopped after its commit leaves version 1 alone.
        created = last == 1 and not isinstance(folder, Path)
        if newest is None and not created and _is_linked(folder, last):
            newest = Damage(_name(NEWEST), "missing", 0)
        return History(last, None, oldest, () if newest is None else (newest,))
    later = [number for number in found if number > newest.number]
    if newest.number not in found:
        earlier = [number for number in numbers(folder) if number < newest.number]
        problem = Damage(_name(manifest_path(folder, newest.number).name), "missing", 0, (newest.number,), "manifest")
        if not earlier:
            raise DamagedStoreError(f"{folder.parent.name!r} is damaged: {problem}. Restore the store from a copy.")
        return History(earlier[-1], None, newest.oldest, (problem,), newest)
    known = History(newest.number, newest.digest, newest.oldest, newest=newest)
    if not later:
        return known
    if len(later) == 1 and _parent(folder, later[0]) == newest.link:
        return History(later[0], None, newest.oldest, newest=newest)
    foreign = (Damage(_name(manifest_path(folder, number).name), "not a version of this store", 0) for number in later)
    return replace(known, problems=tuple(foreign))


def find_linked_history(folder: Folder) -> History:
    """Find the newest version of a store, also if `newest.json` is older, provided that links lead to its version."""
    history = find_history(folder)
    newest = history.newest
    if newest is None or not history.problems:
        return history
    base = newest.link
    for number in reversed([number for number in numbers(folder) if number > base.number]):
        try:
            record = head = read_record(folder, number)
            while record.parent is not None and record.parent.number > base.number:
                record = read_record(folder, record.parent.number, record.parent.digest)
        except DataError:
            continue
        if record.parent == base:
            return replace(history, number=number, expected=head.digest, problems=())
    return history


def read_version(folder: Folder, number: int) -> Manifest:
    """Return the manifest of a version, after comparing its SHA-256 with the link of the version after it.

    Raises:
        DataError: The version does not exist.
        DamagedStoreError: The manifest is damaged, or is that of another version or another store.
    """
    newest = _read(folder)
    if isinstance(newest, Newest) and number < newest.oldest:  # its removal was interrupted
        raise missing_version(folder.parent.name, number, [each for each in numbers(folder) if each >= newest.oldest])
    if isinstance(newest, Newest) and newest.number == number:
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


def read_newest(folder: Folder, history: History) -> Manifest:
    """Return the manifest of the newest version. Its files are in `newest.json`, so that no older deltas are read.

    Raises:
        DataError: The version does not exist, or was written by a newer version of qkv.
        DamagedStoreError: The manifest, or one from which its files follow, is damaged or missing.
    """
    newest = history.newest
    if newest is not None and (newest.number, newest.digest) == (history.number, history.expected):
        recorded = newest.manifest()
        if recorded is not None:
            read_record(folder, history.number, history.expected)
            return recorded
    return read_manifest(folder, history.number, history.expected)


def write_newest(folder: Folder, manifest: Manifest, oldest: int) -> None:
    """Write `newest.json`, which is complete after a power loss; the manifest must be synced before."""
    write_synced(folder / NEWEST, newest_bytes(manifest, oldest))


def newest_bytes(manifest: Manifest, oldest: int) -> bytes:
    """Return the bytes of `newest.json` for the newest version and the number of the oldest."""
    body: dict[str, object] = {"number": manifest.number, "digest": manifest.digest, "oldest": oldest}
    if len(manifest.row_files) <= _MOST_FILES:
        body |= {"depth": manifest.depth, "files": manifest.checkpoint().body()}
    return seal(body)


def parse_newest(data: bytes) -> Newest:
    """Return the content of `newest.json`, or raise a `DamagedError`."""
    fields = unseal(data, _name(NEWEST))
    number = fields.integer("number", 1)
    newest = Newest(number, fields.text("digest"), fields.integer("oldest", 1, number))
    if fields.get("files") is None:
        return newest
    return replace(newest, files=Fields(fields.get("files"), _name(NEWEST)), depth=fields.integer("depth"))


def _read(folder: Folder) -> Newest | Damage | None:
    """Return the content of `newest.json`, its damage, or None if it does not exist."""
    try:
        return parse_newest(read_bounded(folder / NEWEST, 2**24))
    except FileNotFoundError:
        return None
    except (DamagedError, OSError) as error:
        return Damage(_name(NEWEST), problem_of(error), 0)


def _parent(folder: Folder, number: int) -> Link | None:
    """Return the link of a version to the one before it, or None if it has none or its manifest is damaged."""
    record = _record(folder, number)
    return None if record is None else record.parent


def _is_intact(folder: Folder, number: int) -> bool:
    try:
        read_version(folder, number)
    except DataError:
        return False
    return True


def _is_linked(folder: Folder, number: int) -> bool:
    """Return whether a manifest is of a format in which `newest.json` exists."""
    record = _record(folder, number)
    return record is not None and record.format > 1


def _record(folder: Folder, number: int) -> Manifest | None:
    with contextlib.suppress(DataError):
        return read_record(folder, number)
    return None


def _name(file: str) -> str:
    return f"versions/{file}"


@dataclass(frozen=True)
class Chain:
    """The manifests of all versions of a store.

    Attributes:
        history: the newest version.
        records: the manifests as they were written, checkpoints and deltas, by version in ascending order. Each is the
            one to which the next version links.
        damages: a `Damage` for each file that is missing, damaged, or not the one to which the next version links.
    """

    history: History
    records: dict[int, Manifest]
    damages: tuple[Damage, ...]


def read_chain(folder: Folder, history: History | None = None) -> Chain:
    """Read the manifests of all versions, from the newest to the oldest.

    Args:
        history: the newest version; None: as `find_history` finds it.

    Raises:
        DataError: There is no version.
    """
    history = find_history(folder) if history is None else history
    damages, records = list(history.problems), dict[int, Manifest]()
    number, expected = history.number, history.expected
    recorded = None if history.newest is None else history.newest.manifest()
    before_newest = None if recorded is None else recorded.parent
    while number >= history.oldest:
        if expected is None and before_newest is not None and before_newest.number == number:
            expected = before_newest.digest
        try:
            records[number] = manifest = read_record(folder, number, expected)
        except DataError as error:
            if number < find_history(folder).oldest:  # removed by a compaction in the meantime
                break
            problem = problem_of(error) if isinstance(error, DamagedStoreError) else "missing"
            path = manifest_path(folder, number)
            damages.append(Damage(f"{folder.name}/{path.name}", problem, 0, (number,), "manifest"))
            earlier = [other for other in numbers(folder) if other < number]
            if not earlier:
                break
            # The damaged manifest would tell which one is before it; versions are numbered one after another.
            for gap in range(number - 1, max(earlier[-1], history.oldest - 1), -1):
                name = manifest_path(folder, gap).name
                damages.append(Damage(f"{folder.name}/{name}", "missing", 0, (gap,), "manifest"))
            number, expected = earlier[-1], None
            continue
        if manifest.parent is not None:
            number, expected = manifest.parent.number, manifest.parent.digest
        else:  # the first version, or a version of format 1, which has no link
            number, expected = number - 1, None
    return Chain(history, dict(sorted(records.items())), tuple(damages))


def resolve(chain: Chain) -> dict[int, Manifest]:
    """Return the manifests with all their files, by version. Those whose files are not known are left out.

    The files of a version follow from those of the version before it. If that is not known, they follow from those of
    the next version, if this gives the number of rows that the manifest records.
    """
    found = dict[int, Manifest]()
    for number, record in chain.records.items():
        if record.inherited is None:
            found[number] = record
        elif record.parent is not None and record.parent.number in found:
            with contextlib.suppress(DamagedError):
                found[number] = record.resolved(found[record.parent.number])
    newest = chain.history.newest
    recorded = None if newest is None else newest.manifest()
    if recorded is not None and chain.history.expected == recorded.digest:
        found.setdefault(recorded.number, recorded)
    later: Manifest | None = None
    for number, record in reversed(chain.records.items()):
        if number not in found and later is not None and later.parent == record.link:
            # The next version has the same leading files, unless it rewrote them, or has deleted rows of them.
            undeleted = replace(later, row_files=tuple(replace(file, deleted=None) for file in later.row_files))
            for full in (later, undeleted):
                with contextlib.suppress(DamagedError):
                    found.setdefault(number, record.resolved(full))
        later = found.get(number)
    return dict(sorted(found.items()))
