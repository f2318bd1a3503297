"""Functions that name, measure and sync the files of a Lance dataset, and translate the errors of Lance."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qkv.core.extras import import_optional
from qkv.core.files import fsync
from qkv.core.printable import first_line
from qkv.core.untrusted_json import Fields, parse_json
from qkv.errors import DamagedStoreError, QkvError, StoreFullError
from qkv.store.block import missing_version, older_version
from qkv.store.damage import Damage
from qkv.store.disk import sync_folder
from qkv.store.row_files import size_problem

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment


_NEWEST = 2**64 - 1
_OPERATIONS = {
    "Overwrite": "create",
    "Append": "append",
    "Delete": "delete",
    "Rewrite": "compact",
    "BaseOperation": "unknown",
}
FOLDERS = ("_versions", "_transactions", "_deletions", "data")
HINT = "latest_version_hint.json"
METADATA = b"qkv"
"""The key of the metadata of a store in the schema of its dataset."""


def sync_all(path: Path, folder: str, known: set[str]) -> None:
    """Sync the new files of a folder of a store and the folder itself to disk.

    Args:
        folder: the name of the folder within it.
        known: names of files within the store that are already synced.
    """
    if not (path / folder).is_dir():
        return
    for name in os.listdir(path / folder):
        if name == HINT or f"{folder}/{name}" not in known:
            with translate_errors(path):
                fsync(path / folder / name)
    sync_folder(path / folder)


def row_paths(path: Path) -> set[str]:
    """Return the names within a store of all files of its dataset."""
    folders = (name for name in FOLDERS if (path / name).is_dir())
    return {f"{folder}/{name}" for folder in folders for name in os.listdir(path / folder)}


def sync_commit(path: Path, known: set[str]) -> None:
    """Sync the manifests, the transactions and the folder of a store, in which names of files in `known` are synced."""
    for folder in FOLDERS[:2]:
        sync_all(path, folder, known)
    sync_folder(path)


def raise_interrupt(error: BaseException) -> None:
    """Raise a `KeyboardInterrupt` if an error of Lance stands for one, so that Ctrl-C is not taken for damage."""
    if "KeyboardInterrupt" in str(error):
        raise KeyboardInterrupt from None


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise a `StoreFullError` or `DamagedStoreError` in place of errors of Lance for a full disk or a missing file."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise_interrupt(error)
        if "os error 28" in str(error) or "No space left" in str(error) or "os error 27" in str(error):
            raise StoreFullError(
                f"{path.name!r} cannot be written: the disk is full. The store is unchanged; free some space "
                "and try again."
            ) from None
        if "not found" in str(error).lower():
            raise DamagedStoreError(
                f"{path.name!r} cannot be read: {first_line(error)}. "
                "If the store was compacted, call refresh(); otherwise restore it from a copy."
            ) from None
        raise


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Raise a `DamagedStoreError` in place of every error of Lance's decoders, which a damaged file causes."""
    try:
        with translate_errors(path):
            yield
    except (QkvError, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust code is no Exception
        raise_interrupt(error)
        raise DamagedStoreError(
            f"{path.name!r} cannot be read: {first_line(error)}. Restore the store from a copy, or open it with "
            "damaged='skip' to read the other rows."
        ) from None


def file_name(fragment: LanceFragment) -> str:
    """Return the name of the first file of a fragment of a Lance dataset."""
    return str(fragment.metadata.files[0].path)


def file_names(fragment: LanceFragment | FragmentMetadata) -> list[str]:
    """Return the names within the store of the files of a fragment: those of its rows, and of its deleted rows."""
    metadata = getattr(fragment, "metadata", fragment)
    names = [f"data/{each.path}" for each in metadata.files]
    if metadata.deletion_file is not None:
        deleted = metadata.to_json()["deletion_file"]
        suffix = "arrow" if deleted["file_type"] == "array" else "bin"
        names.append(f"_deletions/{metadata.id}-{deleted['read_version']}-{deleted['id']}.{suffix}")
    return names


def fragment_name(fragment: LanceFragment) -> str:
    """Return a name that is unique to a fragment of a Lance dataset and its set of deleted rows."""
    deleted = fragment.metadata.to_json().get("deletion_file") or {}
    return f"{file_name(fragment)}-{deleted.get('id', 0)}"


def cell_bytes(type_: pa.DataType) -> int:
    """Return the approximate size in bytes of a cell of an Arrow type."""
    size = getattr(type_, "list_size", None)
    if size is not None:
        return int(size) * cell_bytes(type_.value_type)
    try:
        return max(1, int(type_.bit_width) // 8)
    except ValueError:
        return 32


def import_lance() -> Any:
    """Import the package pylance, and return its module `lance`.

    Raises:
        MissingPackageError: pylance is not installed.
    """
    return import_optional(
        "a Lance store needs pylance, which is not installed. "
        'Run: pip install "qkv[stores]", or create the store with backend="arrow".',
        "lance",
        "lance.fragment",
        "lance.optimize",
    )


def manifests(path: Path) -> dict[int, str]:
    """Return the file names of the manifests of a dataset by version, in ascending order."""
    names = os.listdir(path / "_versions")
    stems = ((name.removesuffix(".manifest"), name) for name in names if name.endswith(".manifest"))
    # Twenty digits count down, so that the newest comes first in a listing.
    return dict(
        sorted((_NEWEST - int(stem) if len(stem) == 20 else int(stem), name) for stem, name in stems if stem.isdigit())
    )


def open_version(path: Path, version: int) -> lance.LanceDataset:
    """Return a dataset at a version.

    Raises:
        DataError: The version does not exist.
        DamagedStoreError: Its manifest is damaged.
    """
    try:
        dataset: lance.LanceDataset = import_lance().dataset(str(path), version=version)
        return dataset
    except (KeyboardInterrupt, SystemExit, QkvError):
        raise
    except BaseException as error:  # a panic of Rust code is no Exception
        raise_interrupt(error)
        numbers = list(manifests(path))
        if version not in numbers:
            raise missing_version(path.name, version, numbers) from None
        raise damaged_version(path, version, first_line(error)) from None


def damaged_version(path: Path, version: int, problem: str) -> DamagedStoreError:
    """Return the error to raise if the manifest of a version is damaged."""
    return DamagedStoreError(
        f"the manifest of version {version} of {path.name!r} is damaged: {problem}. "
        f"Restore the manifest from a copy{older_version(version, list(manifests(path)))}, or keep what is intact "
        f"with: qkv store repair {path}"
    )


def metadata_of(dataset: lance.LanceDataset, store: str) -> dict[str, object]:
    """Return the metadata of a store, which its dataset holds in its schema, or raise a `DamagedError`."""
    name = f"the metadata of {store!r}"
    return Fields(parse_json((dataset.schema.metadata or {}).get(METADATA, b"{}"), name), name).fields


def time_of(dataset: lance.LanceDataset) -> datetime:
    """Return the time at which the version of a dataset was committed."""
    # `versions` reads the manifests of all versions; earlier versions of pylance have only it.
    every = [dataset.get_version()] if hasattr(dataset, "get_version") else dataset.versions()
    written = next(each["timestamp"] for each in every if each["version"] == dataset.version)
    assert isinstance(written, datetime)
    return written


def operation_of(dataset: lance.LanceDataset) -> str:
    """Return the operation that committed the version of a dataset, as in `Version.operation`, or "unknown"."""
    try:
        transaction = dataset.read_transaction(dataset.version)
        kind = "unknown" if transaction is None else type(transaction.operation).__name__
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its record was removed or is damaged, or is unknown to this version of pylance
        raise_interrupt(error)
        return "unknown"
    return _OPERATIONS.get(kind, kind.lower())


def fragment_damage(path: Path, fragment: LanceFragment, decode: bool = False) -> Damage | None:
    """Return the damage of a fragment if one of its files is missing or has the wrong size, otherwise None.

    Args:
        decode: whether its rows are decoded; if that fails, the fragment is damaged too.
    """
    for each in fragment.metadata.files:
        try:
            size = (path / "data" / each.path).stat().st_size
        except FileNotFoundError:
            return Damage(f"data/{each.path}", "missing", count_rows(fragment))
        expected = each.file_size_bytes
        if expected and size != expected:
            return Damage(f"data/{each.path}", size_problem(size, expected), count_rows(fragment))
    if decode:
        try:
            for _ in fragment.to_batches():
                pass
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # its decoders raise any error for changed bytes, and panics
            raise_interrupt(error)
            return Damage(f"data/{file_name(fragment)}", f"does not decode: {first_line(error)}", count_rows(fragment))
    return None


def count_rows(fragment: LanceFragment) -> int:
    """Return the number of rows of a fragment, or of its files if the file of deleted rows is damaged."""
    try:
        return int(fragment.count_rows())
    except Exception as error:  # as in `fragment_damage`
        raise_interrupt(error)
        return int(fragment.physical_rows)
