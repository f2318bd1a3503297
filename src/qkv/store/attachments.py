"""Attached files of a store, which belong to all its versions and are written before the first version.

STORE/attached/encoder.npz       the size and checksum of the file are in the metadata of every version
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from qkv.core.checksums import checksum
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store import row_files
from qkv.store.base import Metadata
from qkv.store.damage import Damage
from qkv.store.disk import sync_folder
from qkv.store.manifest import RowFile
from qkv.store.object_client import Folder

FOLDER = "attached"


def attach(path: Folder, attached: Mapping[str, bytes]) -> Metadata:
    """Write attached files into the folder of a new store, and return their entries for the metadata of the store.

    Returns:
        The entries for the store's metadata, empty if there are no files.
    """
    if not attached:
        return {}
    folder = path / FOLDER
    if isinstance(folder, Path):
        folder.mkdir(parents=True)
    records = [asdict(row_files.write_file(folder / name, 0, data)) for name, data in attached.items()]
    sync_folder(folder)
    return {FOLDER: records}


def attached_damages(
    path: Folder, metadata: Metadata, versions: tuple[int, ...] = (), read: bool = False
) -> list[Damage]:
    """Check the attached files of a store, and return a `Damage` for each damaged file.

    Args:
        versions: the versions to which the files belong.
        read: whether the checksums of all files are verified, rather than only of files that were modified after they
            were written.
    """
    folder, files = path / FOLDER, attached_files(path, metadata)
    modified = row_files.modified_files(folder, files)
    damages = [
        damage
        for file in files
        for damage in row_files.find_damages(folder, file, lambda name: read or name in modified)
    ]
    return [replace(damage, versions=versions, kind="attachment") for damage in damages]


def read_attached(path: Folder, metadata: Metadata, name: str) -> bytes:
    """Return the contents of an attached file of a store as bytes, after verifying the checksum.

    Args:
        path: the store's folder.
        metadata: the store's metadata.
        name: the name of the file.

    Raises:
        DataError: No such file is attached.
        DamagedStoreError: The file is damaged.
    """
    files = attached_files(path, metadata)
    file = next((file for file in files if file.name == name), None)
    if file is None:
        there = ", ".join(file.name for file in files) or "none"
        raise DataError(
            f"name must be an attached file of the store {path.name!r}, got {name!r}. The attached files are: {there}."
        )
    target = path / FOLDER / name
    try:
        data = target.read_bytes() if target.is_file() else b""
    except OSError:
        data = b""
    if len(data) != file.size or checksum(data) != file.check:
        problem = row_files.find_problem(path / FOLDER, file, read=True) or "the checksum does not match"
        raise DamagedStoreError(f"{path.name!r} is damaged: {FOLDER}/{name}: {problem}. Restore this file from a copy.")
    return data


def attached_files(path: Folder, metadata: Metadata) -> list[RowFile]:
    """Return the attached files of a store as recorded in its metadata, or raise a `DamagedError`."""
    records = metadata.get(FOLDER, [])
    if not isinstance(records, list):
        raise DamagedError(
            f"{FOLDER} in the metadata of a store must be a list, got {type(records).__name__}. "
            "Restore the manifest from a copy."
        )
    return [RowFile.parse(record, f"the attached files of {path.name!r}", holds_rows=False) for record in records]
