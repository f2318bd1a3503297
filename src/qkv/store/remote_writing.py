"""Functions that write the objects of a store: files of rows, version 1, and `newest.json`."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from qkv.core.checksums import checksum, digest
from qkv.core.threads import prefetched
from qkv.errors import DamagedError, DataError
from qkv.store import row_files
from qkv.store.attachments import FOLDER
from qkv.store.base import Metadata
from qkv.store.history import NEWEST, newest_bytes, parse_newest
from qkv.store.manifest import Manifest, RowFile, manifest_path
from qkv.store.object_client import ObjectPath
from qkv.store.page_checksums import PAGE, PageChecksums
from qkv.store.remote_rows import PAGES, pages_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FILES_AHEAD", "create_remote", "update_newest", "upload"]

FILES_AHEAD = 4
"""Number of files that are read or written at the same time."""


def create_remote(
    path: ObjectPath,
    schema: pa.Schema,
    metadata: Metadata,
    tables: Iterable[pa.Table],
    attached: Mapping[str, bytes],
) -> None:
    """Write version 1 of a store with the rows of tables; see `qkv.store.create`.

    Raises:
        DataError: Another process has created a store there in the meantime.
    """
    records = []
    for name, data in attached.items():
        (path / FOLDER / name).write_bytes(data)
        records.append(asdict(RowFile(name, 0, len(data), checksum(data), time.time_ns())))
    metadata = {**metadata, FOLDER: records} if records else metadata
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    parts = (part for rows in tables for part in row_files.split_table(rows))
    written: list[ObjectPath] = []
    files = tuple(prefetched(lambda table: upload(path, table, written), parts, FILES_AHEAD))
    manifest = Manifest.first(text, metadata, files)
    data = manifest.serialized()
    target = manifest_path(path / "versions", 1)
    assert isinstance(target, ObjectPath)
    if not target.writer.create(target.key, data) and target.read_bytes() != data:
        raise DataError(f"path must be new, got {str(path)!r}, where another process has created a store. Open it.")
    update_newest(path / "versions", replace(manifest, digest=digest(data)), 1)


def upload(folder: ObjectPath, table: pa.Table, written: list[ObjectPath]) -> RowFile:
    """Write a file of rows and the checksums of its pages, and return its entry in the manifest.

    Args:
        table: the rows.
        written: a list to which the path of each object is appended before it is written.
    """
    data = row_files.serialize(table)
    file = RowFile(f"{uuid.uuid4().hex}.arrow", table.num_rows, data.size, checksum(data), time.time_ns())
    if data.size > PAGE:
        pages = folder / PAGES / pages_name(file)
        written.append(pages)
        pages.write_bytes(PageChecksums.of(data, len(table.schema)).serialized(file))
    written.append(folder / "rows" / file.name)
    written[-1].write_bytes(data)
    return file


def update_newest(folder: ObjectPath, manifest: Manifest, oldest: int) -> bool:
    """Write `newest.json` unless it names a newer version, and return whether it names `oldest` or a later version.

    Args:
        folder: the folder of the manifests.
        manifest: the version.
        oldest: the number of the oldest version that is not removed.
    """
    path = folder / NEWEST
    while True:
        try:
            found, tag = path.writer.get_with_tag(path.key)
        except FileNotFoundError:
            if path.writer.create(path.key, newest_bytes(manifest, oldest)):
                return True
            continue
        with suppress(DamagedError):
            newest = parse_newest(found)
            if newest.number > manifest.number or newest == parse_newest(newest_bytes(manifest, oldest)):
                return newest.oldest >= oldest
            oldest = max(oldest, newest.oldest)
        data = newest_bytes(manifest, oldest)
        if tag is None:
            path.write_bytes(data)
            return True
        if path.writer.replace(path.key, data, tag):
            return True
