"""Functions that write, read and list the manifests of a store in their folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from qkv.core.checksums import digest
from qkv.core.untrusted_json import read_bounded
from qkv.errors import DamagedError, DamagedStoreError
from qkv.store.disk import sync_folder, write_synced
from qkv.store.manifest import MAX_DELTAS, Manifest
from qkv.store.object_path import Folder, ObjectPath
from qkv.store.versions import missing_version, older_version

__all__ = ["exists", "manifest_path", "numbers", "read_manifest", "read_record", "replace_by_checkpoint", "write"]

_SUFFIX = ".json"


def manifest_path(folder: Folder, number: int) -> Folder:
    """Return the path of the manifest of a version in the folder `folder`."""
    return folder / f"{number:010d}{_SUFFIX}"


def exists(folder: Folder, number: int) -> bool:
    """Return whether a version has a manifest in a folder."""
    return manifest_path(folder, number).exists()


def numbers(folder: Folder, least: int = 1) -> list[int]:
    """Return the numbers of the manifests in a folder, from `least` on, in ascending order."""
    first = manifest_path(folder, least).name
    if not isinstance(folder, Path):
        return _remote_numbers(folder, least)
    # Few names are parsed if `least` is the newest of many versions; longer names have more digits.
    names = [name for name in os.listdir(folder) if name >= first or len(name) > len(first)]
    return sorted(number for number in _parse_names(names) if number >= least)


def _parse_names(names: Iterable[str]) -> list[int]:
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return [int(stem) for stem in stems if 10 <= len(stem) <= 18 and stem.isascii() and stem.isdigit()]


def _remote_numbers(folder: ObjectPath, least: int) -> list[int]:
    """Return the numbers of the manifests in an object store, from `least` on; a web server is asked for each."""
    if folder.client.lists:
        after = manifest_path(folder, least - 1).name if least > 1 else ""
        return sorted(number for number in _parse_names(folder.names(after)) if number >= least)
    number = least
    while exists(folder, number):
        number += 1
    return list(range(least, number))


def write(folder: Folder, manifest: Manifest) -> Manifest:
    """Commit a version by writing its manifest to a folder, and return the manifest with its digest."""
    data = manifest.serialized()
    path = manifest_path(folder, manifest.number)
    write_synced(path, data)
    try:
        sync_folder(folder)
    except BaseException:
        path.unlink()
        raise
    return replace(manifest, digest=digest(data))


def replace_by_checkpoint(folder: Folder, number: int) -> None:
    """Write the manifest of a version again as a checkpoint, so that older manifests are not needed to read it."""
    manifest = read_manifest(folder, number)
    if manifest.kept is not None:
        write_synced(manifest_path(folder, number), manifest.checkpoint().serialized())
        sync_folder(folder)


def read_manifest(folder: Folder, number: int, expected: str | None = None) -> Manifest:
    """Return the manifest of a version with all its files, after verifying its checksum.

    Args:
        folder: the folder of the manifests.
        number: the version.
        expected: the SHA-256 of the manifest; None if it is not known.

    Raises:
        DataError: The version does not exist, or was written by a newer version of qkv.
        DamagedStoreError: The manifest, or one from which its files follow, is damaged or missing, or is that of
            another version or another store.
    """
    deltas = [read_record(folder, number, expected)]
    while deltas[-1].kept is not None:
        parent = deltas[-1].parent
        assert parent is not None
        if not exists(folder, parent.number):
            if read_record(folder, number, expected) != deltas[0]:  # a compaction replaced it and removed its parents
                return read_manifest(folder, number, expected)
            raise _damaged(folder, parent.number, DamagedError("it is missing"))
        if len(deltas) > MAX_DELTAS:
            raise _damaged(folder, number, DamagedError(f"more than {MAX_DELTAS} deltas follow a checkpoint"))
        deltas.append(read_record(folder, parent.number, parent.digest))
    manifest = deltas.pop()
    for delta in reversed(deltas):
        try:
            manifest = delta.resolved(manifest)
        except DamagedError as error:
            raise _damaged(folder, delta.number, error) from None
    return manifest


def read_record(folder: Folder, number: int, expected: str | None = None) -> Manifest:
    """Return the manifest of a version as it was written, a checkpoint or a delta; see `read_manifest`."""
    path = manifest_path(folder, number)
    try:
        manifest = Manifest.parse(read_bounded(path), f"{folder.name}/{path.name}")
        if manifest.number != number:
            raise DamagedError(f"it is the manifest of version {manifest.number}")
        if expected is not None and manifest.digest != expected:
            raise DamagedError("it is not the manifest that was written, but that of another version or store")
    except FileNotFoundError:
        raise missing_version(folder.parent.name, number, numbers(folder)) from None
    except (DamagedError, OSError) as error:
        raise _damaged(folder, number, error) from None
    return manifest


def _damaged(folder: Folder, number: int, error: Exception) -> DamagedStoreError:
    problem = str(error).removesuffix(" Restore the file from a copy.").rstrip(".")
    return DamagedStoreError(
        f"the manifest of version {number} of {folder.parent.name!r} is damaged: {problem}. "
        f"Restore {folder.name}/{manifest_path(folder, number).name} from a copy"
        f"{older_version(number, numbers(folder))}."
    )
