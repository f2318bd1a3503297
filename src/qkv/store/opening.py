"""Which kind of store a path holds, and how one is made."""

import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from qkv.core.files import check_creatable
from qkv.errors import DataError, OptionError
from qkv.store.arrow import ArrowStore
from qkv.store.attachments import FOLDER, attach
from qkv.store.base import Store
from qkv.store.lance import LanceStore, is_lance, lance_package

__all__ = ["create", "is_store", "open", "remove", "require_free"]


def is_store(path: str | PathLike[str]) -> bool:
    """Whether a path is the folder of a store."""
    folder = Path(path)
    return _is_arrow(folder) or is_lance(folder)


def _is_arrow(folder: Path) -> bool:
    return (folder / "versions").is_dir() and (folder / "rows").is_dir()


def create(
    path: str | PathLike[str],
    schema: Any,
    *,
    metadata: dict[str, Any] | None = None,
    backend: str = "arrow",
    attached: Mapping[str, bytes] | None = None,
) -> Store:
    """Make a new store, without rows.

    Args:
        path: a folder that is not there yet, or is empty.
        schema: a pyarrow schema.
        metadata: what else is kept with it, of JSON's kinds.
        backend: `"arrow"`, a folder of Arrow IPC files, or `"lance"`, a Lance dataset.
        attached: files that are kept with all its versions, by name; see `read_attached`.

    Raises:
        DataError: something is there already.
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
        said = attach(folder, attached or {})
        return kind.create(folder, schema, {**(metadata or {}), **said})
    except BaseException:
        remove(folder)
        raise


def require_free(path: str | PathLike[str], backend: str = "arrow") -> None:
    """Look whether a store can be made here, before anything is written.

    Raises:
        DataError: something is there already.
        OptionError: there is no such backend.
        MissingPackageError: pylance is not installed.
    """
    folder = Path(path)
    if backend not in ("arrow", "lance"):
        raise OptionError(f"the backend is {backend!r}, and it is 'arrow' or 'lance'.")
    if backend == "lance":
        lance_package()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{str(path)!r} is there already. Open it, remove it, or give the store another place.")
    check_creatable(folder, "the store")


def remove(path: str | PathLike[str]) -> None:
    """Remove a store: every version of it, and its folder where nothing else is in it."""
    folder = Path(path)
    for part in ("versions", "rows", "notes", "_versions", "_transactions", "_deletions", "data", FOLDER):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / "writer.lock").unlink(missing_ok=True)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def open(path: str | PathLike[str], *, version: int | None = None, damaged: str = "refuse") -> Store:
    """Open a store.

    Args:
        path: its folder.
        version: as it was then; None: the newest.
        damaged: `"refuse"` raises where a file is not what was written; `"skip"` goes on without its rows.

    Raises:
        DataError: it is no store, or has no such version.
        DamagedStoreError: files are missing, cut off or changed.
    """
    if not is_store(path):
        raise DataError(f"{str(path)!r} is no store. Make one: Database.create, or qkv store create.")
    kind = ArrowStore if _is_arrow(Path(path)) else LanceStore
    return kind(Path(path), version, damaged)
