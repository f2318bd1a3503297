"""Functions that record the checksums of versions of a Lance store, and compare fragments with them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qkv.store.block import Damage
from qkv.store.lance_checksums import LanceChecksums, Reading, VersionRecord
from qkv.store.lance_files import (
    count_rows,
    file_names,
    fragment_damage,
    manifests,
    open_version,
    operation_of,
    time_of,
)

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

__all__ = ["describe_version", "find_damage", "record_versions"]


def find_damage(
    recorded: LanceChecksums, path: Path, fragment: LanceFragment, read: Reading = "once", decode: bool = False
) -> Damage | None:
    """Return the damage of a fragment, or None if its files have the recorded sizes and checksums.

    Args:
        read: whether the contents of its files are verified: never, once by each process, or always.
        decode: whether its rows are decoded if the checksums match. Lance may crash if they do not.
    """
    names = file_names(fragment)
    for name in names:
        problem = recorded.find_problem(name, read)
        if problem is not None:
            kind: Literal["rows", "deletions"] = "rows" if name.startswith("data/") else "deletions"
            return Damage(name, problem, count_rows(fragment), kind=kind)
    if decode or names[0] not in recorded.files:
        return fragment_damage(path, fragment, decode)
    return None


def record_versions(
    recorded: LanceChecksums,
    path: Path,
    after: int,
    dataset: lance.LanceDataset,
    names: Iterable[str],
    operation: str | None = None,
) -> None:
    """Record the checksums of the versions after a version, up to that of a dataset.

    Args:
        after: the number of the version before the first that is recorded.
        dataset: the dataset at the last version that is recorded.
        names: the files that these versions added, other than their manifests, by name within the store.
        operation: the operation that committed them; None: as Lance recorded it.

    Raises:
        StoreFullError: The disk is full. The versions remain without checksums.
    """
    numbers = [number for number in manifests(path) if after < number <= dataset.version]
    records = []
    for number in numbers:
        at = dataset if number == dataset.version else open_version(path, number)
        added = names if number == dataset.version else ()
        records.append(describe_version(recorded, path, at, added, operation))
    recorded.append(records)


def describe_version(
    recorded: LanceChecksums,
    path: Path,
    dataset: lance.LanceDataset,
    names: Iterable[str],
    operation: str | None = None,
    lost: int = 0,
) -> VersionRecord:
    """Return the record of the version of a dataset with the checksums of files, which are read; see `record_versions`.

    Args:
        names: the files that the version added, other than its manifest.
        operation: the operation that committed it; None: as Lance recorded it.
        lost: number of rows that a repair left out.
    """
    manifest = f"_versions/{manifests(path)[dataset.version]}"
    return VersionRecord(
        dataset.version,
        operation or operation_of(dataset),
        int(dataset.count_rows()),
        time_of(dataset).astimezone(UTC),
        recorded.measure([manifest, *names]),
        lost,
    )
