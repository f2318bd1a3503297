"""Files that belong to a store and to no version of it: written before its first, compared like its rows.

STORE/attached/encoder.npz       their sizes and checksums stand in the metadata, which every version has
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.errors import DamagedStoreError, DataError
from qkv.store import row_files
from qkv.store.base import Damage
from qkv.store.disk import checksum, sync_folder, write_synced
from qkv.store.manifest import Piece

__all__ = ["FOLDER", "attach", "attached_damages", "read_attached"]

FOLDER = "attached"


def attach(path: Path, attached: Mapping[str, bytes]) -> dict[str, Any]:
    """Write files into the folder of a store that is about to be made, synced.

    Returns:
        What its metadata must say of them; nothing where there are none.
    """
    if not attached:
        return {}
    folder = path / FOLDER
    folder.mkdir(parents=True)
    said = []
    for name, data in attached.items():
        write_synced(folder / name, data)
        state = (folder / name).stat()
        said.append(asdict(Piece(name, 0, state.st_size, checksum(data), state.st_mtime_ns)))
    sync_folder(folder)
    return {FOLDER: said}


def attached_damages(path: Path, metadata: Mapping[str, Any], read: bool = False) -> list[Damage]:
    """The files that are not what was written.

    Args:
        path: of the store.
        metadata: of the store.
        read: compare every byte; otherwise only of files that were touched since.
    """
    found = []
    for piece in _pieces(metadata):
        try:
            touched = (path / FOLDER / piece.name).stat().st_mtime_ns != piece.changed
        except FileNotFoundError:
            touched = False
        problem = row_files.problem_of(path / FOLDER, piece, read or touched)
        if problem:
            found.append(Damage(f"{FOLDER}/{piece.name}", problem, 0))
    return found


def read_attached(path: Path, metadata: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a file, every one compared.

    Raises:
        DataError: nothing of that name was attached.
        DamagedStoreError: it is not what was written.
    """
    piece = next((piece for piece in _pieces(metadata) if piece.name == name), None)
    if piece is None:
        raise DataError(f"{path.name!r} has nothing attached that is called {name!r}.")
    file = path / FOLDER / name
    data = file.read_bytes() if file.is_file() else b""
    if len(data) != piece.size or checksum(data) != piece.check:
        problem = row_files.problem_of(path / FOLDER, piece, read=True) or "bytes changed"
        raise DamagedStoreError(f"{path.name!r} is damaged: {FOLDER}/{name}: {problem}. Restore this file from a copy.")
    return data


def _pieces(metadata: Mapping[str, Any]) -> list[Piece]:
    return [Piece(**said) for said in metadata.get(FOLDER, ())]
