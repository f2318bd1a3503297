"""The chain of manifests of a store, in which each version links to the one before it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.block import Damage
from qkv.store.history import History, find_history
from qkv.store.manifest import Manifest
from qkv.store.manifest_files import manifest_path, numbers, read_record
from qkv.store.object_path import Folder

__all__ = ["Chain", "read_chain", "resolve"]


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
        folder: the folder of the manifests.
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
            damaged = isinstance(error, DamagedStoreError)
            problem = str(error).split("is damaged: ")[-1].split(". Restore")[0] if damaged else "missing"
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
        if record.kept is None:
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
