"""Copies of one version of a store: another store, or a Parquet or Arrow file.

Both are consistent while other processes append, delete and compact, and are complete or absent at their destination.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, TypeVar

import pyarrow as pa

from qkv.core.checks import check_choice
from qkv.core.files import check_writable, write_atomic
from qkv.core.printable import first_line
from qkv.core.progress import Progress, track
from qkv.errors import DamagedStoreError, DataError
from qkv.store import row_files
from qkv.store.attachments import attached_files, read_attached
from qkv.store.base import Store
from qkv.store.locations import Location, StorageOptions, locate
from qkv.store.object_client import Folder
from qkv.store.opening import create

Result = TypeVar("Result")

_SUFFIXES = (".parquet", ".arrow")
_ROWS_PER_GROUP = 2**20


def copy(
    store: Store,
    path: Location,
    *,
    backend: str = "arrow",
    overwrite: bool = False,
    progress: Progress | None = None,
    storage_options: StorageOptions = None,
) -> Store:
    """Copy the open version of a store to a folder, where it is version 1, and return the copy.

    Small blocks are merged, and deleted rows and the cache are left out. The copy appears at its path when it is
    complete. If another process removes the open version meanwhile, the newest version is copied; this can happen only
    to a Lance store, because files of Arrow stay readable while they are mapped.

    Args:
        store: the store.
        path: a folder that does not exist or is empty, or a store if `overwrite` is True; or a URL as in `create`.
        backend: the format of the copy, `"arrow"` or `"lance"`.
        overwrite: whether a store at the path is replaced, as a whole, when the copy is complete.
        progress: called as `progress("copying", done, total)`, in blocks.
        storage_options: settings of the object store of a URL, as in `create`.

    Raises:
        DataError: The path is not empty, or is inside of the store or around it.
        DamagedStoreError: Files of the open version are damaged.
        StoreFullError: The disk is full. Nothing remains.

    Example:
        >>> import pyarrow as pa, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     names = create(f"{folder}/a", pa.schema({"name": pa.string()}))
        ...     _ = names.append(pa.table({"name": ["Li", "Ada"]}))
        ...     copied = copy(names, f"{folder}/b")
        ...     copied.version, copied.to_table().to_pylist()
        (1, [{'name': 'Li'}, {'name': 'Ada'}])
    """
    check_choice("backend", backend, ("arrow", "lance"))
    folder = locate(path, storage_options)
    source, target = _place(store.path), _place(folder)
    if source == target or source in target.parents or target in source.parents:
        raise DataError(
            f"path must be a folder apart from the store {store.path.name!r}, got {str(path)!r}. Choose another folder."
        )

    def write(opened: Store) -> Store:
        attached = {
            file.name: read_attached(opened.path, opened.metadata, file.name)
            for file in attached_files(opened.path, opened.metadata)
        }
        return create(
            folder,
            opened.schema,
            metadata=opened.metadata,
            backend=backend,
            attached=attached,
            tables=_merged(opened, None, progress),
            overwrite=overwrite,
        )

    return _with_open_version(store, write)


def export(
    store: Store,
    path: str | PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write the open version of a store to a Parquet or Arrow file, which appears when it is complete.

    pyarrow reads the same rows from the file, with the same types. The version that is written is as in `copy`.

    Args:
        store: the store.
        path: a file whose name ends in `.parquet` or `.arrow`.
        columns: the columns to write; None: all.
        overwrite: whether an existing file is replaced.
        progress: called as `progress("exporting", done, total)`, in blocks.

    Raises:
        DataError: The file exists, cannot be written, or its format does not support the type of a column.
        DamagedStoreError: Files of the open version are damaged.
    """
    target = Path(path)
    check_exportable(target, overwrite)

    def write(opened: Store) -> None:
        schema = opened.empty(columns).schema
        if target.suffix.lower() == ".parquet":
            _require_parquet(schema, target)

        def fill(stream: IO[bytes]) -> None:
            with _writer(target, schema, stream) as write_table:
                if _has_dictionaries(schema) and target.suffix.lower() == ".arrow":
                    # The dictionaries of all blocks become one, which an Arrow file requires.
                    write_table(opened.to_table(columns))
                else:
                    for table in _merged(opened, columns, progress, "exporting"):
                        if target.suffix.lower() == ".parquet":
                            _require_vectors(table, target)
                        write_table(table)

        write_atomic(target, fill, "the export", sync=True)

    _with_open_version(store, write)


def check_exportable(target: Path, overwrite: bool = False) -> None:
    """Raise a `DataError` if a store cannot be exported to a file. Nothing is written."""
    check_writable(target, "the export", _SUFFIXES)
    if target.is_dir() or (target.exists() and not overwrite):
        remedy = "Choose another name." if target.is_dir() else "Choose another name, or pass overwrite (--overwrite)."
        raise DataError(f"path must be a file that does not exist, got {str(target)!r}. {remedy}")


def _place(folder: Folder) -> PurePath:
    """Return the absolute path of a folder, or the URL of one in an object store as a path."""
    return folder.resolve() if isinstance(folder, Path) else PurePosixPath(f"{id(folder.client)}:") / str(folder)


def _with_open_version(store: Store, write: Callable[[Store], Result]) -> Result:
    """Call a function with a snapshot of a store, and again with the newest version if the open one was removed."""
    opened = store.snapshot()
    while True:
        try:
            return write(opened)
        except DamagedStoreError:
            if opened.version in [version.number for version in opened.versions()] or not opened.refresh():
                raise


def _merged(
    store: Store, columns: Sequence[str] | None, progress: Progress | None, task: str = "copying"
) -> Iterator[pa.Table]:
    """Yield the rows of a store without deleted rows, with small blocks merged to tables of about 32 MiB."""
    pending: list[pa.Table] = []
    source = store.blocks(columns)
    for _ in track(range(len(store.block_lengths())), task, progress):
        table = next(source).present_rows()
        pending += [table] if table.num_rows else []
        if sum(each.nbytes for each in pending) >= row_files.BYTES:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)


@contextmanager
def _writer(target: Path, schema: pa.Schema, stream: IO[bytes]) -> Iterator[Callable[[pa.Table], object]]:
    """Yield a function that writes a table to a stream in the format of a file's suffix."""
    try:
        if target.suffix.lower() == ".parquet":
            from pyarrow import parquet

            with parquet.ParquetWriter(stream, schema) as writer:
                yield lambda table: writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        else:
            options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
            with pa.ipc.new_file(stream, schema, options=options) as arrow_writer:
                yield arrow_writer.write_table
    except pa.ArrowException as error:
        raise DataError(
            f"path must have a format that can hold the columns, got {target.suffix}, but writing it failed: "
            f"{first_line(error)}. Choose the other of .arrow and .parquet."
        ) from None


def _require_parquet(schema: pa.Schema, target: Path) -> None:
    """Raise a `DataError` if Parquet changes the type of a column."""
    from pyarrow import parquet

    for column in schema:
        single = pa.schema([column])
        try:
            stream = io.BytesIO()
            parquet.write_table(single.empty_table(), stream)
            read = parquet.read_schema(io.BytesIO(stream.getvalue())).field(0).type
        except (pa.ArrowException, OSError):  # a decimal with a negative scale
            read = None
        if read != column.type:
            become = "cannot be stored" if read is None else f"becomes {read}"
            raise DataError(
                f"path must have a format that can hold the column {column.name!r}, got {target.name!r}: "
                f"{column.type} {become} in Parquet. Name a file that ends in .arrow."
            )


def _require_vectors(table: pa.Table, target: Path) -> None:
    """Raise a `DataError` if a fixed-size list is missing that pyarrow before version 26 cannot read from Parquet."""
    if int(pa.__version__.split(".")[0]) >= 26:
        return
    for column in table.schema:
        if pa.types.is_fixed_size_list(column.type) and table.column(column.name).null_count:
            raise DataError(
                f"path must have a format that can hold the column {column.name!r}, got {target.name!r}: pyarrow "
                f"{pa.__version__} cannot read missing vectors from Parquet. Name a file that ends in .arrow, or "
                "update: pip install -U pyarrow."
            )


def _has_dictionaries(schema: pa.Schema) -> bool:
    return any("dictionary<" in str(column.type) for column in schema)
