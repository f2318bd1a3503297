"""Creation, opening and removal of stores on disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.checks import check_choice
from qkv.core.files import check_creatable
from qkv.errors import DataError
from qkv.store.arrow import ArrowStore
from qkv.store.attachments import FOLDER, attach
from qkv.store.base import Metadata, Store
from qkv.store.lance import LanceStore, import_lance, is_lance

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["create", "is_store", "open", "remove", "require_free"]


def is_store(path: str | PathLike[str]) -> bool:
    """Return whether a path is the folder of a store."""
    folder = Path(path)
    return _is_arrow(folder) or is_lance(folder)


def _is_arrow(folder: Path) -> bool:
    return (folder / "versions").is_dir() and (folder / "rows").is_dir()


def create(
    path: str | PathLike[str],
    schema: pa.Schema,
    *,
    metadata: Metadata | None = None,
    backend: str = "arrow",
    attached: Mapping[str, bytes] | None = None,
) -> Store:
    """Create a store without rows in a folder, and return it.

    Args:
        path: a folder that does not exist or is empty.
        schema: a pyarrow schema.
        metadata: values of JSON types to save with the store.
        backend: `"arrow"`, a folder of Arrow IPC files, or `"lance"`, a Lance dataset.
        attached: contents of files that belong to all versions, by name; see `read_attached`.

    Raises:
        DataError: The path is not empty.
        MissingPackageError: pylance is not installed.

    Example:
        >>> import pyarrow as pa, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     people = create(folder, pa.schema({"name": pa.string(), "income": pa.float64()}))
        ...     _ = people.append(pa.table({"name": ["Li"], "income": [2000.0]}))
        ...     open(folder).to_table().to_pylist()
        [{'name': 'Li', 'income': 2000.0}]
    """
    folder = Path(path)
    require_free(path, backend)
    try:
        kind = LanceStore if backend == "lance" else ArrowStore
        records = attach(folder, attached or {})
        return kind.create(folder, schema, {**(metadata or {}), **records})
    except BaseException:
        remove(folder)
        raise


def require_free(path: str | PathLike[str], backend: str = "arrow") -> None:
    """Raise an error if a store cannot be created at a path. Nothing is written.

    Raises:
        DataError: The path is not empty.
        OptionError: The backend is unknown.
        MissingPackageError: pylance is not installed.
    """
    folder = Path(path)
    check_choice("backend", backend, ("arrow", "lance"))
    if backend == "lance":
        import_lance()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"path must be new or an empty folder, got {str(path)!r}. Choose another path, or open the existing store."
        )
    check_creatable(folder, "the store")


def remove(path: str | PathLike[str]) -> None:
    """Remove the files of all versions of a store, and its folder if the folder is then empty."""
    folder = Path(path)
    for part in ("versions", "rows", "notes", "_versions", "_transactions", "_deletions", "data", FOLDER):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / "writer.lock").unlink(missing_ok=True)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def open(
    path: str | PathLike[str], *, version: int | None = None, damaged: str = "refuse", checksums: bool | None = None
) -> Store:
    """Open the store in a folder, at the newest version or at an older one.

    Args:
        path: the folder of the store.
        version: an older version; None: the newest.
        damaged: `"refuse"` raises if a file is damaged; `"skip"` continues without its rows.
        checksums: whether the contents of each file are verified when the process first reads it; None: unless the
            environment has `QKV_CHECKSUMS=0`.

    Raises:
        DataError: The path is not a store, or the version does not exist.
        DamagedStoreError: Files are missing, cut off or changed.
    """
    if not is_store(path):
        raise DataError(
            f"path must be a store, got {str(path)!r}. Create a store with Database.create or qkv store create."
        )
    kind = ArrowStore if _is_arrow(Path(path)) else LanceStore
    return kind(Path(path), version, damaged, checksums)
