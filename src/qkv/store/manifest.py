"""Manifests, which list the files of each version of a store and are never changed.

    versions/0000000003.json    the files of version 3, the checksum of the manifest itself, and its link to version 2
    versions/newest.json        the number and the digest of the newest version, and the number of the oldest

Each manifest names the version from which it was made with the SHA-256 of its manifest. So an older manifest in the
place of a newer one, a missing manifest and a manifest of another store are detected.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from qkv.core.checksums import checksum, digest
from qkv.core.untrusted_json import Fields, parse_json, read_bounded
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.base import Metadata
from qkv.store.disk import sync_folder, write_synced
from qkv.store.versions import Version, missing_version, older_version

__all__ = [
    "Link",
    "Manifest",
    "RowFile",
    "manifest_path",
    "numbers",
    "read_manifest",
    "seal",
    "unseal",
]

_FORMAT = 2
_SUFFIX = ".json"
_LARGEST = 2**62


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

    @classmethod
    def parse(cls, value: object, name: str, holds_rows: bool = True) -> RowFile:
        """Return the entry that JSON describes.

        Args:
            value: the JSON object.
            name: names the object in errors.
            holds_rows: whether the file holds rows, so that its size limits their number.

        Raises:
            DamagedError: A field is missing or impossible.
        """
        fields = Fields(value, name)
        size = fields.integer("size")
        file = cls(
            fields.file_name("name"),
            fields.integer("rows", most=8 * size if holds_rows else 0),  # a row takes at least a bit
            size,
            fields.integer("check", most=2**32 - 1),
            fields.integer("changed", -_LARGEST, _LARGEST),
        )
        if fields.get("deleted") is None:
            return file
        deleted = cls.parse(fields.get("deleted"), f"deleted in {name}")
        if deleted.deleted is not None or deleted.rows > file.rows:
            raise fields.damaged("deleted", f"a file with at most {file.rows:,} rows")
        return replace(file, deleted=deleted)


@dataclass(frozen=True)
class Link:
    """The number of a version, and the SHA-256 of its manifest."""

    number: int
    digest: str

    @classmethod
    def parse(cls, value: object, name: str) -> Link:
        """Return the link that JSON describes, or raise a `DamagedError`."""
        fields = Fields(value, name)
        return cls(fields.integer("number", 1), fields.text("digest"))


@dataclass(frozen=True)
class Manifest:
    """The manifest of one version of a store, with the files and the metadata of the version.

    Attributes:
        number: the number of the version.
        operation: the operation that made it.
        written: the time of the commit as text.
        schema: the serialized schema of the rows, in base64.
        metadata: the metadata of the store.
        row_files: the files of rows.
        parent: the version from which this version was made; None for the first version, and in format 1.
        format: the format of the file.
        digest: the SHA-256 of the file.
    """

    number: int
    operation: str
    written: str
    schema: str
    metadata: Metadata
    row_files: tuple[RowFile, ...]
    parent: Link | None = None
    format: int = _FORMAT
    digest: str = field(default="", compare=False)

    @property
    def rows(self) -> int:
        """The number of rows in this version that are not deleted."""
        return sum(file.present_rows for file in self.row_files)

    @property
    def version(self) -> Version:
        """The description of this version, as `Store.versions` returns it."""
        return Version(self.number, self.operation, self.rows, datetime.fromisoformat(self.written))

    @property
    def link(self) -> Link:
        """The number and the digest of this version."""
        return Link(self.number, self.digest)

    @property
    def schema_bytes(self) -> bytes:
        """The serialized schema of the rows."""
        return base64.b64decode(self.schema)

    def files(self) -> set[str]:
        """Return the names of all files of rows and of deleted rows that belong to this version."""
        named = {file.name for file in self.row_files}
        return named | {file.deleted.name for file in self.row_files if file.deleted}

    def next(self, number: int, operation: str, row_files: tuple[RowFile, ...]) -> Manifest:
        """Return the manifest of a new version, which an operation makes from this version."""
        changes = {"number": number, "operation": operation, "written": _now(), "row_files": row_files}
        return replace(self, **changes, parent=self.link, format=_FORMAT, digest="")  # type: ignore[arg-type]

    @classmethod
    def first(cls, schema: str, metadata: Metadata, row_files: tuple[RowFile, ...] = ()) -> Manifest:
        """Return the manifest of version 1."""
        return cls(1, "create", _now(), schema, metadata, row_files)

    def write(self, folder: Path) -> Manifest:
        """Commit this version by writing the manifest to a folder, and return it with its digest."""
        body = asdict(self)
        del body["digest"]
        body["pieces"] = body.pop("row_files")  # the name in format 1
        data = seal(body)
        path = manifest_path(folder, self.number)
        write_synced(path, data)
        try:
            sync_folder(folder)
        except BaseException:
            path.unlink()
            raise
        return replace(self, digest=digest(data))

    @classmethod
    def parse(cls, data: bytes, name: str) -> Manifest:
        """Return the manifest in the bytes of a file.

        Args:
            data: the bytes.
            name: names the file in errors.

        Raises:
            DamagedError: The checksum does not match, or a field is missing or impossible.
            DataError: The manifest was written by a newer version of qkv.
        """
        fields = unseal(data, name)
        written_format = fields.integer("format", 1)
        if written_format > _FORMAT:
            raise DataError(f"{name} was written by a newer version of qkv. Update: pip install -U qkv.")
        files = tuple(RowFile.parse(value, f"the row files of {name}") for value in fields.items("pieces"))
        if len({file.name for file in files}) < len(files):
            raise fields.damaged("pieces", "distinct files")
        written, schema = fields.text("written"), fields.text("schema")
        try:
            aware = datetime.fromisoformat(written).tzinfo is not None
            base64.b64decode(schema, validate=True)
        except (ValueError, binascii.Error):
            aware = False
        if not aware:
            raise DamagedError(
                f"written and schema in {name} must be a time with its zone and base64, got other texts. "
                "Restore the file from a copy."
            )
        parent = None if fields.get("parent") is None else Link.parse(fields.get("parent"), f"parent in {name}")
        number = fields.integer("number", 1)
        if parent is not None and parent.number >= number:
            raise fields.damaged("parent", f"a version before {number}")
        operation, metadata = fields.text("operation"), fields.record("metadata")
        return cls(number, operation, written, schema, metadata, files, parent, written_format, digest(data))


def seal(body: Metadata) -> bytes:
    """Return JSON values as the bytes of a file that contains their checksum; `unseal` reads them."""
    text = json.dumps(body, ensure_ascii=False, indent=0, sort_keys=True)
    whole = {"check": checksum(text.encode("utf-8", "surrogatepass")), "manifest": text}
    return json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")


def unseal(data: bytes, name: str) -> Fields:
    """Return the fields in the bytes that `seal` returned.

    Raises:
        DamagedError: The checksum does not match.
    """
    whole = Fields(parse_json(data, name), name)
    text = whole.text("manifest")
    if whole.integer("check") != checksum(text.encode("utf-8", "surrogatepass")):
        raise DamagedError("the checksum does not match")
    return Fields(parse_json(text, name), name)


def manifest_path(folder: Path, number: int) -> Path:
    """Return the path of the manifest of a version in the folder `folder`."""
    return folder / f"{number:010d}{_SUFFIX}"


def numbers(folder: Path) -> list[int]:
    """Return the numbers of all versions that have a manifest in a folder, in ascending order."""
    stems = (path.name.removesuffix(_SUFFIX) for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    found = (int(stem) for stem in stems if 10 <= len(stem) <= 18 and stem.isascii() and stem.isdigit())
    return sorted(number for number in found if number)


def read_manifest(folder: Path, number: int, expected: str | None = None) -> Manifest:
    """Return the manifest of a version from a folder, after verifying its checksum.

    Args:
        folder: the folder of the manifests.
        number: the version.
        expected: the SHA-256 of the manifest; None if it is not known.

    Raises:
        DataError: The version does not exist, or was written by a newer version of qkv.
        DamagedStoreError: The manifest is damaged, or is that of another version or another store.
    """
    path = manifest_path(folder, number)
    name = f"{folder.name}/{path.name}"
    try:
        manifest = Manifest.parse(read_bounded(path), name)
        if manifest.number != number:
            raise DamagedError(f"it is the manifest of version {manifest.number}")
        if expected is not None and manifest.digest != expected:
            raise DamagedError("it is not the manifest that was written, but that of another version or store")
    except FileNotFoundError:
        raise missing_version(folder.parent.name, number, numbers(folder)) from None
    except (DamagedError, OSError) as error:
        problem = str(error).removesuffix(" Restore the file from a copy.").rstrip(".")
        raise DamagedStoreError(
            f"the manifest of version {number} of {folder.parent.name!r} is damaged: {problem}. "
            f"Restore {name} from a copy{older_version(number, numbers(folder))}."
        ) from None
    return manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
