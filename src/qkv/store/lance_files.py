"""Functions that name, measure and sync the files of a Lance dataset, and translate the errors of Lance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.files import fsync
from qkv.errors import DamagedStoreError, QkvError, StoreFullError
from qkv.store.disk import sync_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import LanceFragment

__all__ = [
    "FOLDERS",
    "HINT",
    "cell_bytes",
    "file_name",
    "first_line",
    "fragment_name",
    "sync_all",
    "translate_errors",
    "translate_read_errors",
]

FOLDERS = ("_versions", "_transactions", "_deletions", "data")
HINT = "latest_version_hint.json"


def sync_all(folder: Path, known: set[Path]) -> None:
    """Sync the new files of a folder and the folder itself to disk.

    Args:
        folder: the folder.
        known: files that are already synced.
    """
    if not folder.is_dir():
        return
    for path in {*folder.iterdir()} - known | {folder / HINT} & {*folder.iterdir()}:
        with translate_errors(folder):
            fsync(path)
    sync_folder(folder)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise a `StoreFullError` or `DamagedStoreError` in place of errors of Lance for a full disk or a missing file."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
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
        raise DamagedStoreError(
            f"{path.name!r} cannot be read: {first_line(error)}. Restore the store from a copy, or open it with "
            "damaged='skip' to read the other rows."
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, shortened to 200 characters."""
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200].rstrip(". ")


def file_name(fragment: LanceFragment) -> str:
    """Return the name of the first file of a fragment of a Lance dataset."""
    return str(fragment.metadata.files[0].path)


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
