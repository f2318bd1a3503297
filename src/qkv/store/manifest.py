"""Manifests, which record the files of each version of a store.

    versions/0000000003.json    the files of version 3, the checksum of the manifest itself, and its link to version 2
    versions/newest.json        the number and the digest of the newest version, and the number of the oldest

A manifest is a *checkpoint*, which lists all files, or a *delta*, which lists those that differ from the version from
which it was made. Each manifest names that version with the SHA-256 of its manifest. So an older manifest in the place
of a newer one, a missing manifest and a manifest of another store are detected. A delta may later be replaced by a
checkpoint of the same version, which holds the SHA-256 of the delta, so that links to it remain valid.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from qkv.core.checksums import checksum, digest
from qkv.core.untrusted_json import Fields, parse_json, read_bounded
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.base import Metadata
from qkv.store.block import Version, missing_version, older_version
from qkv.store.damage import problem_of
from qkv.store.disk import sync_folder, write_synced
from qkv.store.object_client import Folder, ObjectPath

_FORMAT = 3
_LARGEST = 2**62

MAX_DELTAS = 64
"""Largest number of deltas between two checkpoints."""
_FEW = 16
"""Largest number of files that a delta lists."""


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
        """Return the link that JSON describes, an object or a text such as `"12:9f86…"`, or raise a `DamagedError`."""
        if isinstance(value, str) and value.partition(":")[0].isdecimal():
            number, _, hexadecimal = value.partition(":")
            value = {"number": int(number[:20]), "digest": hexadecimal}
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
        row_files: the files of rows; of a delta that was not resolved, those after the ones that it keeps.
        parent: the version from which this version was made; None for the first version, and in format 1.
        format: the format of the file.
        digest: the SHA-256 of the file that committed the version.
        inherited: the number of leading files of the parent that a delta keeps; None for a checkpoint.
        depth: the number of deltas since the last checkpoint, including this one.
        delta_rows: the number of rows in the version of a delta that was not resolved.
        lost: number of rows of this version that were damaged and that a repair left out.
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
    inherited: int | None = None
    depth: int = 0
    delta_rows: int | None = None
    lost: int = 0

    @property
    def rows(self) -> int:
        """The number of rows in this version that are not deleted."""
        return self.delta_rows if self.delta_rows is not None else sum(file.present_rows for file in self.row_files)

    @property
    def version(self) -> Version:
        """The description of this version, as `Store.versions` returns it."""
        return Version(self.number, self.operation, self.rows, datetime.fromisoformat(self.written), self.lost)

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
        same = (old == new for old, new in zip(self.row_files, row_files, strict=False))
        inherited = next(
            (place for place, equal in enumerate(same) if not equal), min(len(self.row_files), len(row_files))
        )
        is_delta = self.depth < MAX_DELTAS and len(row_files) - inherited <= _FEW
        return Manifest(
            number,
            operation,
            _now(),
            self.schema,
            self.metadata,
            row_files,
            self.link,
            inherited=inherited if is_delta else None,
            depth=self.depth + 1 if is_delta else 0,
        )

    def resolved(self, parent: Manifest) -> Manifest:
        """Return this delta with all its files, which follow from the manifest of its parent.

        Raises:
            DamagedError: The parent has fewer files or other rows than the delta expects.
        """
        assert self.inherited is not None
        files = parent.row_files[: self.inherited] + self.row_files
        if self.inherited > len(parent.row_files) or sum(file.present_rows for file in files) != self.delta_rows:
            raise DamagedError(f"its files do not follow from those of version {parent.number}")
        known = {"schema": parent.schema, "metadata": parent.metadata, "depth": parent.depth + 1}
        return replace(self, row_files=files, delta_rows=None, **known)  # type: ignore[arg-type]

    def checkpoint(self) -> Manifest:
        """Return the checkpoint of this version, which takes the place of its delta."""
        return replace(self, inherited=None, depth=0)

    @classmethod
    def first(cls, schema: pa.Schema, metadata: Metadata, row_files: tuple[RowFile, ...] = ()) -> Manifest:
        """Return the manifest of version 1."""
        text = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return cls(1, "create", _now(), text, metadata, row_files)

    def serialized(self) -> bytes:
        """Return the bytes of the file of a resolved manifest."""
        return seal(self.body())

    def body(self) -> Metadata:
        """Return a resolved manifest as JSON values. The digest is part of it only if it is that of a delta."""
        if self.inherited is not None:
            assert self.parent is not None
            return {
                "format": _FORMAT,
                "number": self.number,
                "operation": self.operation,
                "written": self.written,
                "parent": f"{self.parent.number}:{self.parent.digest}",
                "kept": self.inherited,
                "rows": self.rows,
                "pieces": [_entry(file) for file in self.row_files[self.inherited :]],
            }
        body = asdict(self)
        for name in ("inherited", "depth", "delta_rows", *(name for name in ("digest", "lost") if not body[name])):
            del body[name]
        body["pieces"] = [_entry(file) for file in self.row_files]  # the name in format 1
        del body["row_files"]
        return body

    @classmethod
    def parse(cls, data: bytes, name: str) -> Manifest:
        """Return the manifest in the bytes of a file.

        Args:
            name: names the file in errors.

        Raises:
            DamagedError: The checksum does not match, or a field is missing or impossible.
            DataError: The manifest was written by a newer version of qkv.
        """
        return cls.from_fields(unseal(data, name), digest(data))

    @classmethod
    def from_fields(cls, fields: Fields, committed: str) -> Manifest:
        """Return the manifest that JSON values describe; see `parse`.

        Args:
            committed: the SHA-256 of the file that committed the version, unless the values contain it.
        """
        name = fields.name
        written_format = fields.integer("format", 1)
        if written_format > _FORMAT:
            raise DataError(f"{name} was written by a newer version of qkv. Update: pip install -U qkv.")
        files = tuple(RowFile.parse(value, f"the row files of {name}") for value in fields.items("pieces"))
        if len({file.name for file in files}) < len(files):
            raise fields.damaged("pieces", "distinct files")
        inherited = None if fields.get("kept") is None else fields.integer("kept")
        written, schema = fields.text("written"), "" if inherited is not None else fields.text("schema")
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
        number, operation = fields.integer("number", 1), fields.text("operation")
        if parent is not None and parent.number >= number:
            raise fields.damaged("parent", f"a version before {number}")
        if inherited is not None:
            if parent is None:
                raise fields.damaged("parent", "the version that a delta changes")
            rows = fields.integer("rows")
            made = cls(number, operation, written, "", {}, files, parent, written_format, committed)
            return replace(made, inherited=inherited, depth=1, delta_rows=rows)
        metadata = fields.record("metadata")
        committed = committed if fields.get("digest") is None else fields.text("digest")
        lost = 0 if fields.get("lost") is None else fields.integer("lost")
        made = cls(number, operation, written, schema, metadata, files, parent, written_format, committed)
        return replace(made, lost=lost)


def _entry(file: RowFile) -> dict[str, object]:
    """Return the JSON object of a file, without a field for deleted rows if there are none."""
    body = asdict(file)
    if file.deleted is None:
        del body["deleted"]
    else:
        body["deleted"] = _entry(file.deleted)
    return body


def seal(body: Metadata) -> bytes:
    """Return JSON values as the bytes of a file that contains their checksum; `unseal` reads them."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    whole = {"check": checksum(text.encode("utf-8", "surrogatepass")), "manifest": text}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_SUFFIX = ".json"


def manifest_path(folder: Folder, number: int) -> Folder:
    """Return the path of the manifest of a version in the folder `folder`."""
    return folder / f"{number:010d}{_SUFFIX}"


def exists(folder: Folder, number: int) -> bool:
    """Return whether a version has a manifest in a folder."""
    return manifest_path(folder, number).exists()


def numbers(folder: Folder, least: int = 1) -> list[int]:
    """Return the numbers of the manifests in a folder, from `least` on, in ascending order."""
    first = manifest_path(folder, least).name
    if not isinstance(folder, Path):
        return _remote_numbers(folder, least)
    # Few names are parsed if `least` is the newest of many versions; longer names have more digits.
    names = [name for name in os.listdir(folder) if name >= first or len(name) > len(first)]
    return sorted(number for number in _parse_names(names) if number >= least)


def _parse_names(names: Iterable[str]) -> list[int]:
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return [int(stem) for stem in stems if 10 <= len(stem) <= 18 and stem.isascii() and stem.isdigit()]


def _remote_numbers(folder: ObjectPath, least: int) -> list[int]:
    """Return the numbers of the manifests in an object store, from `least` on; a web server is asked for each."""
    if folder.client.lists:
        after = manifest_path(folder, least - 1).name if least > 1 else ""
        return sorted(number for number in _parse_names(folder.names(after)) if number >= least)
    number = least
    while exists(folder, number):
        number += 1
    return list(range(least, number))


def write(folder: Folder, manifest: Manifest) -> Manifest:
    """Commit a version by writing its manifest to a folder, and return the manifest with its digest."""
    data = manifest.serialized()
    path = manifest_path(folder, manifest.number)
    write_synced(path, data)
    try:
        sync_folder(folder)
    except BaseException:
        path.unlink()
        raise
    return replace(manifest, digest=digest(data))


def replace_by_checkpoint(folder: Folder, number: int) -> None:
    """Write the manifest of a version again as a checkpoint, so that older manifests are not needed to read it."""
    manifest = read_manifest(folder, number)
    if manifest.inherited is not None:
        write_synced(manifest_path(folder, number), manifest.checkpoint().serialized())
        sync_folder(folder)


def read_manifest(folder: Folder, number: int, expected: str | None = None) -> Manifest:
    """Return the manifest of a version with all its files, after verifying its checksum.

    Args:
        expected: the SHA-256 of the manifest; None if it is not known.

    Raises:
        DataError: The version does not exist, or was written by a newer version of qkv.
        DamagedStoreError: The manifest, or one from which its files follow, is damaged or missing, or is that of
            another version or another store.
    """
    deltas = [read_record(folder, number, expected)]
    while deltas[-1].inherited is not None:
        parent = deltas[-1].parent
        assert parent is not None
        if not exists(folder, parent.number):
            if read_record(folder, number, expected) != deltas[0]:  # a compaction replaced it and removed its parents
                return read_manifest(folder, number, expected)
            raise _damaged(folder, parent.number, DamagedError("it is missing"))
        if len(deltas) > MAX_DELTAS:
            raise _damaged(folder, number, DamagedError(f"more than {MAX_DELTAS} deltas follow a checkpoint"))
        deltas.append(read_record(folder, parent.number, parent.digest))
    manifest = deltas.pop()
    for delta in reversed(deltas):
        try:
            manifest = delta.resolved(manifest)
        except DamagedError as error:
            raise _damaged(folder, delta.number, error) from None
    return manifest


def read_record(folder: Folder, number: int, expected: str | None = None) -> Manifest:
    """Return the manifest of a version as it was written, a checkpoint or a delta; see `read_manifest`."""
    path = manifest_path(folder, number)
    try:
        manifest = Manifest.parse(read_bounded(path), f"{folder.name}/{path.name}")
        if manifest.number != number:
            raise DamagedError(f"it is the manifest of version {manifest.number}")
        if expected is not None and manifest.digest != expected:
            raise DamagedError("it is not the manifest that was written, but that of another version or store")
    except FileNotFoundError:
        raise missing_version(folder.parent.name, number, numbers(folder)) from None
    except (DamagedError, OSError) as error:
        raise _damaged(folder, number, error) from None
    return manifest


def _damaged(folder: Folder, number: int, error: Exception) -> DamagedStoreError:
    return DamagedStoreError(
        f"the manifest of version {number} of {folder.parent.name!r} is damaged: {problem_of(error)}. "
        f"Restore {folder.name}/{manifest_path(folder, number).name} from a copy"
        f"{older_version(number, numbers(folder))}."
    )
