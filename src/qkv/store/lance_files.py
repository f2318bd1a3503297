"""The files of a Lance dataset: which they are, their syncing, and what Lance says of them in our words."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.core.files import fsync
from qkv.errors import DamagedStoreError, StoreFullError
from qkv.store.disk import sync_folder

__all__ = [
    "FOLDERS",
    "HINT",
    "file_of",
    "first_line",
    "in_words",
    "listed",
    "name_of",
    "sync_all",
    "width_of",
]

FOLDERS = ("_versions", "_transactions", "_deletions", "data")
HINT = "latest_version_hint.json"


def sync_all(folder: Path, known: set[Path]) -> None:
    """Sync the files of a folder that were not known, and its names."""
    if not folder.is_dir():
        return
    for path in {*folder.iterdir()} - known | {folder / HINT} & {*folder.iterdir()}:
        with in_words(folder):
            fsync(path)
    sync_folder(folder)


def listed(path: Path) -> set[Path]:
    return {file for name in FOLDERS if (path / name).is_dir() for file in (path / name).iterdir()}


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Lance's errors as ours."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        if "os error 28" in str(error) or "No space left" in str(error) or "os error 27" in str(error):
            raise StoreFullError(
                f"{path.name!r} cannot be written: the disk is full. The store is as it was; free some space "
                "and repeat."
            ) from None
        if "not found" in str(error).lower():
            raise DamagedStoreError(
                f"{path.name!r}: {first_line(error)}. If it was compacted, refresh; else restore it from a copy."
            ) from None
        raise


def first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200].rstrip(". ")


def file_of(fragment: Any) -> str:
    return str(fragment.metadata.files[0].path)


def name_of(fragment: Any) -> str:
    """Tells apart the same file with other rows deleted."""
    deleted = fragment.metadata.to_json().get("deletion_file") or {}
    return f"{file_of(fragment)}-{deleted.get('id', 0)}"


def width_of(type_: Any) -> int:
    """About how many bytes a cell takes."""
    size = getattr(type_, "list_size", None)
    if size is not None:
        return int(size) * width_of(type_.value_type)
    try:
        return max(1, int(type_.bit_width) // 8)
    except ValueError:
        return 32
