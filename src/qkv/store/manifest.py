"""Manifests, which list the files of each version of a store and are never changed.

The manifest with the highest number is the newest version. A manifest contains its own checksum, so that damage is
detected.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from qkv.errors import DamagedStoreError, DataError
from qkv.store.base import Metadata
from qkv.store.disk import checksum, sync_folder, write_synced
from qkv.store.versions import Version, missing_version, older_version

__all__ = ["Manifest", "RowFile", "latest", "manifest_path", "numbers", "read_manifest"]

_FORMAT = 1
_SUFFIX = ".json"


@dataclass(frozen=True)
class RowFile:
    """The entry of a manifest for a file that holds rows or the indices of deleted rows.

    Attributes:
        name: the name of the file.
        rows: number of rows in the file.
        size: size in bytes.
        check: the CRC-32 checksum.
        changed: the modification time at the commit, in nanoseconds.
        deleted: the file with the indices of the rows that are deleted in this version.
    """

    name: str
    rows: int
    size: int
    check: int
    changed: int
    deleted: RowFile | None = None

    @property
    def present_rows(self) -> int:
        """The number of rows in the file that are not deleted."""
        return self.rows - (self.deleted.rows if self.deleted else 0)


@dataclass(frozen=True)
class Manifest:
    """The manifest of one version of a store, with the files and the metadata of the version."""

    number: int
    operation: str
    written: str
    schema: str
    metadata: Metadata
    row_files: tuple[RowFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows in this version that are not deleted."""
        return sum(file.present_rows for file in self.row_files)

    @property
    def version(self) -> Version:
        """The description of this version, as `Store.versions` returns it."""
        return Version(self.number, self.operation, self.rows, datetime.fromisoformat(self.written))

    def files(self) -> set[str]:
        """Return the names of all files of rows and of deleted rows that belong to this version."""
        named = {file.name for file in self.row_files}
        return named | {file.deleted.name for file in self.row_files if file.deleted}

    def next(self, operation: str, row_files: tuple[RowFile, ...]) -> Manifest:
        """Return the manifest of the next version, which an operation makes from this version."""
        return replace(self, number=self.number + 1, operation=operation, written=_now(), row_files=row_files)

    @classmethod
    def first(cls, schema: str, metadata: Metadata) -> Manifest:
        """Return the manifest of version 1, which has no rows."""
        return cls(1, "create", _now(), schema, metadata, ())

    def write(self, folder: Path) -> None:
        """Commit this version by writing the manifest to a folder."""
        body = {"format": _FORMAT, **asdict(self)}
        body["pieces"] = body.pop("row_files")  # the name in format 1
        text = json.dumps(body, ensure_ascii=False, indent=0, sort_keys=True)
        whole = json.dumps({"check": checksum(text.encode()), "manifest": text}, ensure_ascii=False)
        path = manifest_path(folder, self.number)
        write_synced(path, whole.encode())
        try:
            sync_folder(folder)
        except BaseException:
            path.unlink()
            raise


def manifest_path(folder: Path, number: int) -> Path:
    """Return the path of the manifest of a version in the folder `folder`."""
    return folder / f"{number:010d}{_SUFFIX}"


def numbers(folder: Path) -> list[int]:
    """Return the numbers of all versions that have a manifest in a folder, in ascending order."""
    return sorted(
        int(path.name.removesuffix(_SUFFIX))
        for path in folder.iterdir()
        if path.name.endswith(_SUFFIX) and path.name.removesuffix(_SUFFIX).isdigit()
    )


def latest(folder: Path) -> int:
    """Return the number of the newest version that has a manifest in a folder.

    Raises:
        DataError: There is no manifest.
    """
    found = numbers(folder)
    if not found:
        raise DataError(
            f"path must be a store with at least one version, got {folder.parent.name!r} without versions. "
            "Create a store with Database.create."
        )
    return found[-1]


def read_manifest(folder: Path, number: int) -> Manifest:
    """Return the manifest of a version from a folder, after verifying its checksum.

    Raises:
        DataError: The version does not exist, or was written by a newer version of qkv.
        DamagedStoreError: The manifest is damaged.
    """
    path = manifest_path(folder, number)
    try:
        whole = json.loads(path.read_bytes())
        text = whole["manifest"]
        if checksum(text.encode()) != whole["check"]:
            raise ValueError("the checksum does not match")
    except FileNotFoundError:
        raise missing_version(folder.parent.name, number, numbers(folder)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(
            f"the manifest of version {number} of {folder.parent.name!r} is damaged: {error}. "
            f"Restore {folder.name}/{path.name} from a copy{older_version(number, numbers(folder))}."
        ) from None
    body = json.loads(text)
    if body.pop("format") > _FORMAT:
        raise DataError(f"{folder.parent.name!r} was written by a newer version of qkv. Update: pip install -U qkv.")
    body["row_files"] = tuple(_row_file(fields) for fields in body.pop("pieces"))
    return Manifest(**body)


def _row_file(fields: Metadata) -> RowFile:
    deleted = fields.pop("deleted")
    return RowFile(**fields, deleted=_row_file(deleted) if deleted else None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
