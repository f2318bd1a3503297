"""Creation, opening and removal of stores on disk."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from qkv.core.checks import check_choice
from qkv.core.files import check_creatable, exchange_folders, make_folders
from qkv.core.progress import Progress
from qkv.errors import DataError, OptionError
from qkv.store.arrow import ArrowStore
from qkv.store.arrow_verification import verify_arrow
from qkv.store.attachments import FOLDER, attach
from qkv.store.base import Metadata, Store, fit_table
from qkv.store.damage import Verification
from qkv.store.disk import sync_folder, translate_disk_full
from qkv.store.lance import LanceStore, is_lance
from qkv.store.lance_checksums import CHECKSUMS
from qkv.store.lance_files import import_lance
from qkv.store.lance_repairing import repair_lance, verify_lance
from qkv.store.locations import Location, StorageOptions, is_url, locate
from qkv.store.locking import LOCK, file_lock, is_acquired, remove_lock, writer_lock
from qkv.store.manifest import numbers
from qkv.store.object_client import ObjectPath
from qkv.store.remote import RemoteStore
from qkv.store.remote_rows import PAGES
from qkv.store.repairing import DAMAGED, Repair, repair_arrow
from qkv.store.versions import NEWEST

if TYPE_CHECKING:
    import filelock

_PART = ".part"


def is_store(path: Location, storage_options: StorageOptions = None) -> bool:
    """Return whether a path or URL is the folder of a store."""
    folder = locate(path, storage_options)
    if isinstance(folder, ObjectPath):
        return (folder / "versions" / NEWEST).exists() or bool(numbers(folder / "versions"))
    return _is_arrow(folder) or is_lance(folder)


def _is_arrow(folder: Path) -> bool:
    return (folder / "versions").is_dir() and (folder / "rows").is_dir()


def create(
    path: Location,
    schema: pa.Schema,
    *,
    metadata: Metadata | None = None,
    backend: str = "arrow",
    attached: Mapping[str, bytes] | None = None,
    tables: Iterable[pa.Table] = (),
    overwrite: bool = False,
    storage_options: StorageOptions = None,
) -> Store:
    """Create a store in a folder, and return it. If it is interrupted or killed, there is no store.

    Args:
        path: a folder that does not exist or is empty, or a store if `overwrite` is True; or a URL such as
            `s3://bucket/people`, at which there is no object.
        schema: a pyarrow schema.
        metadata: values of JSON types to save with the store.
        backend: `"arrow"`, a folder of Arrow IPC files, or `"lance"`, a Lance dataset.
        attached: contents of files that belong to all versions, by name; see `read_attached`.
        tables: the rows of version 1, as pyarrow tables with the columns of the schema.
        overwrite: whether a store at the path is replaced when the new one is complete; not for a URL.
        storage_options: settings of the object store of a URL, such as `region`, `endpoint` or `profile`.

    Raises:
        DataError: The path is not empty, or rows do not fit the schema.
        StorageError: The object store cannot be reached or refuses a request.
        StoreFullError: The disk is full. Nothing remains.
        MissingPackageError: pylance is not installed.

    Example:
        >>> import pyarrow as pa, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     people = create(folder, pa.schema({"name": pa.string(), "income": pa.float64()}))
        ...     _ = people.append(pa.table({"name": ["Li"], "income": [2000.0]}))
        ...     open(folder).to_table().to_pylist()
        [{'name': 'Li', 'income': 2000.0}]
    """
    folder = locate(path, storage_options)
    require_free(folder, backend, overwrite)
    rows = (fit_table(table, schema, folder.name) for table in tables)
    if isinstance(folder, ObjectPath):
        RemoteStore.create(folder, schema, {**(metadata or {}), **attach(folder, attached or {})}, rows)
        return RemoteStore(folder)
    kind = LanceStore if backend == "lance" else ArrowStore
    with _new_folder(folder, overwrite) as temporary:
        kind.create(temporary, schema, {**(metadata or {}), **attach(temporary, attached or {})}, rows)
    return kind(folder)


@contextmanager
def _new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder next to a folder, and rename it to the folder when the `with` block ends.

    If `overwrite` is True, a store in the folder is replaced. If the block raises an exception, nothing remains, or the
    store that was there. A process that is killed leaves the temporary folder, which the next call for the same folder
    removes.

    Raises:
        DataError: A folder cannot be created, or another process has created the folder in the meantime.
        StoreFullError: The disk is full.
    """
    final = folder.resolve()
    absent = [each for each in final.parents if not each.exists()]
    temporary = final.parent / f".{final.name}.{secrets.token_hex(8)}{_PART}"
    lock = file_lock(temporary / LOCK)
    try:
        with translate_disk_full(folder.name):
            make_folders(final.parent)
            _remove_unfinished(final)
            _make_locked(temporary, lock)
            yield temporary
            sync_folder(temporary)
            if overwrite and is_store(final):
                with writer_lock(final):
                    exchange_folders(temporary, final)
                    sync_folder(final.parent)
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                if os.name == "nt" and final.is_dir():
                    final.rmdir()  # only POSIX renames a folder to an existing empty one
                temporary.rename(final)
                sync_folder(final.parent)
    except BaseException as error:
        lock.release()
        shutil.rmtree(temporary, ignore_errors=True)
        for each in absent:
            with suppress(OSError):
                each.rmdir()
        if isinstance(error, OSError):
            raise DataError(
                f"path must be a new or empty folder that can be created, got {str(folder)!r}: "
                f"{error.strerror or error}. Choose another path."
            ) from None
        raise
    lock.release()


def _make_locked(folder: Path, lock: filelock.BaseFileLock) -> None:
    """Create a folder and lock a file in it, again if another process removes the folder before it is locked."""
    while True:
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            if is_acquired(lock):
                return


def _remove_unfinished(final: Path) -> None:
    """Remove the temporary folders of processes that were killed while they created the same store."""
    for left in final.parent.glob(f".{glob.escape(final.name)}.*{_PART}"):
        with suppress(OSError):
            left.rmdir()  # killed before it was locked
        lock = file_lock(left / LOCK)
        with suppress(OSError):
            if (left / LOCK).exists() and is_acquired(lock):
                shutil.rmtree(left, ignore_errors=True)
                lock.release()


def require_free(
    path: Location, backend: str = "arrow", overwrite: bool = False, storage_options: StorageOptions = None
) -> None:
    """Raise an error if a store cannot be created at a path. Nothing is written.

    Args:
        path: the path.
        backend: the storage format.
        overwrite: whether the path may be that of a store.
        storage_options: as in `create`.

    Raises:
        DataError: The path is not empty.
        OptionError: The backend is unknown.
        MissingPackageError: pylance is not installed.
    """
    folder = locate(path, storage_options)
    check_choice("backend", backend, ("arrow", "lance"))
    if isinstance(folder, ObjectPath):
        _require_free_url(folder, backend, overwrite)
        return
    if backend == "lance":
        import_lance()
    if folder.exists() and not (overwrite and is_store(folder)) and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"path must be new or an empty folder, got {str(path)!r}. Choose another path, or open the existing store."
        )
    check_creatable(folder, "the store")


def _require_free_url(folder: ObjectPath, backend: str, overwrite: bool) -> None:
    """Raise an error if a store cannot be created in an object store; see `require_free`.

    Objects that a creation left which was stopped before its commit are no store, and stay in the way of none.
    """
    if backend != "arrow":
        raise OptionError(f"backend must be 'arrow' for a URL, got {backend!r}. Omit it.")
    if overwrite:
        raise OptionError(f"overwrite must be False for a URL, got True for {str(folder)!r}. Choose another URL.")
    entries = folder.writer.entries(folder.key)
    start = len(folder.key) + 1 if folder.key else 0
    if any(entry.key[start:].partition("/")[0] not in ("rows", PAGES, FOLDER) for entry in entries):
        raise DataError(
            f"path must be new or an empty folder, got {str(folder)!r}. Choose another URL, or open the existing store."
        )


def remove(path: Location, storage_options: StorageOptions = None) -> None:
    """Remove the files of all versions of a store, and its folder if the folder is then empty."""
    folder = locate(path, storage_options)
    if isinstance(folder, ObjectPath):
        # Without its manifests it is no store, whenever this is interrupted.
        for part in ("versions", "rows", PAGES, FOLDER):
            folder.writer.delete([entry.key for entry in folder.client.entries((folder / part).key)])
        return
    for part in (
        "versions",
        "rows",
        PAGES,
        "notes",
        "_versions",
        "_transactions",
        "_deletions",
        "data",
        FOLDER,
        DAMAGED,
    ):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / CHECKSUMS).unlink(missing_ok=True)
    remove_lock(folder)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def open(
    path: Location,
    *,
    version: int | None = None,
    damaged: str = "refuse",
    checksums: bool | None = None,
    storage_options: StorageOptions = None,
) -> Store:
    """Open the store in a folder, at the newest version or at an older one.

    Args:
        path: the folder of the store, or a URL: `s3://bucket/people`, `gs://`, `az://`, `https://` (only for reading),
            or one of a file system of fsspec (only for reading).
        version: an older version; None: the newest.
        damaged: `"refuse"` raises if a file is damaged; `"skip"` continues without its rows.
        checksums: whether the contents of each file are verified when the process first reads it; None: unless the
            environment has `QKV_CHECKSUMS=0`. What is read from an object store is always verified.
        storage_options: settings of the object store of a URL, such as `region`, `endpoint` or `profile`.

    Raises:
        DataError: The path is not a store, or the version does not exist.
        DamagedStoreError: Files are missing, cut off or changed.
        StorageError: The object store cannot be reached or refuses a request.
    """
    folder = locate(path, storage_options)
    if isinstance(folder, ObjectPath):
        return RemoteStore(folder, version, damaged, checksums)
    return _kind(folder)(folder, version, damaged, checksums)


def verify(path: Location, progress: Progress | None = None, storage_options: StorageOptions = None) -> Verification:
    """Verify the files of all versions of a store, its attached files and its cache, without writing anything.

    Every byte of a store of Arrow files is compared with its checksum, every offset, length and index with the size of
    its column, and every version with its link to the one before it. The files of a Lance store are compared with their
    checksums, as far as qkv wrote them, and decoded. The store may be on a read-only disk, its newest version may be
    damaged, and other processes may write and compact meanwhile.

    Args:
        path: the folder of the store.
        progress: called as `progress("verifying", done, total)`, in files of rows.
        storage_options: as in `open`. All files of a store in an object store are read, one after another.

    Raises:
        DataError: The path is not a store.

    Example:
        >>> import pyarrow as pa, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = create(folder, pa.schema({"name": pa.string()}), tables=[pa.table({"name": ["Li", "Ada"]})])
        ...     found = verify(folder)
        >>> found.versions, found.rows, found.damages
        ((1,), 2, ())
    """
    folder = locate(path, storage_options)
    if isinstance(folder, ObjectPath):
        return verify_arrow(folder, progress)
    return (verify_arrow if _kind(folder) is ArrowStore else verify_lance)(folder, progress)


def repair(path: str | PathLike[str], *, dry_run: bool = False, progress: Progress | None = None) -> Repair:
    """Repair a store: keep every row of an intact file, and return what is lost.

    A damaged or missing newest manifest is restored from `newest.json`, and damaged rows from the files with which a
    compaction merged them. The other rows of the newest version become a new version, whose manifest is written
    atomically. Older versions are written again without the lost rows, those whose manifests are lost are left out,
    and damaged attached files and results in the cache are removed. All damaged files, and copies of the manifests that
    are replaced, are moved to the folder `damaged` of the store. Afterwards `verify` finds no damage.

    Manifests of Lance cannot be written again. So an older version of a Lance store that needs a damaged file is left
    out, and rows of a lost newest manifest are appended again from their files. Files without checksums, such as those
    that other programs wrote, get checksums if they can be decoded.

    Args:
        path: the folder of the store.
        dry_run: return what would be kept and lost, and write nothing.
        progress: called as `progress("verifying", done, total)`, in files of rows.

    Raises:
        DataError: The path is not a store.
        DamagedStoreError: No manifest can be read.
        StoreBusyError: Another process is writing.
        StoreFullError: The disk is full. The command can be repeated.

    Example:
        >>> import pyarrow as pa, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     names = create(folder, pa.schema({"name": pa.string()}), tables=[pa.table({"name": ["Li", "Ada"]})])
        ...     _ = names.append(pa.table({"name": ["Max"]}))
        ...     _ = min((Path(folder) / "rows").iterdir(), key=os.path.getmtime).write_bytes(b"damaged")
        ...     done = repair(folder)
        ...     done.version, done.lost, verify(folder).damages, open(folder).to_table().to_pylist()
        (3, {1: 2, 2: 2}, (), [{'name': 'Max'}])
    """
    if is_url(path):
        raise OptionError(f"path must be a folder, got {str(path)!r}. Copy the store to a folder, and repair the copy.")
    return (repair_arrow if _kind(path) is ArrowStore else repair_lance)(Path(path), dry_run, progress)


def _kind(path: str | PathLike[str]) -> type[ArrowStore] | type[LanceStore]:
    if not is_store(path):
        raise DataError(
            f"path must be a store, got {str(path)!r}. Create a store with Database.create or qkv store create."
        )
    return ArrowStore if _is_arrow(Path(path)) else LanceStore
