"""A manifest says what one version of a store consists of. It is written once and never changed.

A store's newest version is the manifest with the highest number. A manifest carries a checksum of itself,
so that one that was cut off or changed is told from one that is whole.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qkv.errors import DamagedStoreError, DataError
from qkv.store.base import Version
from qkv.store.disk import checksum, sync_folder, write_synced

__all__ = ["FORMAT", "Manifest", "Piece", "latest", "manifest_path", "numbers", "read_manifest"]

FORMAT = 1
_SUFFIX = ".json"


@dataclass(frozen=True)
class Piece:
    """A file of rows, or of the numbers of deleted rows.

    Fields:
        name: of the file.
        rows: how many rows it holds.
        size: in bytes.
        check: its CRC-32.
        changed: the time of its last change when it was committed, in nanoseconds.
        deleted: the file with the row numbers that are deleted in this version.
    """

    name: str
    rows: int
    size: int
    check: int
    changed: int
    deleted: "Piece | None" = None

    @property
    def living(self) -> int:
        """How many rows are not deleted."""
        return self.rows - (self.deleted.rows if self.deleted else 0)


@dataclass(frozen=True)
class Manifest:
    """One version."""

    number: int
    operation: str
    written: str
    schema: str
    metadata: dict[str, Any]
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """Living rows."""
        return sum(piece.living for piece in self.pieces)

    @property
    def version(self) -> Version:
        """As users see it."""
        return Version(self.number, self.operation, self.rows, datetime.fromisoformat(self.written))

    def files(self) -> set[str]:
        """The names of all files it needs."""
        named = {piece.name for piece in self.pieces}
        return named | {piece.deleted.name for piece in self.pieces if piece.deleted}

    def next(self, operation: str, pieces: tuple[Piece, ...]) -> "Manifest":
        """The version after this one."""
        return replace(self, number=self.number + 1, operation=operation, written=_now(), pieces=pieces)

    @classmethod
    def first(cls, schema: str, metadata: dict[str, Any]) -> "Manifest":
        """Version 1, without rows."""
        return cls(1, "create", _now(), schema, metadata, ())

    def write(self, folder: Path) -> None:
        """Commit: from here on this is the newest version."""
        body = {"format": FORMAT, **asdict(self)}
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
    """Where the manifest of a version is."""
    return folder / f"{number:010d}{_SUFFIX}"


def numbers(folder: Path) -> list[int]:
    """The versions whose manifests are there, ascending."""
    return sorted(
        int(path.name.removesuffix(_SUFFIX))
        for path in folder.iterdir()
        if path.name.endswith(_SUFFIX) and path.name.removesuffix(_SUFFIX).isdigit()
    )


def latest(folder: Path) -> int:
    """The number of the newest version.

    Raises:
        DataError: there is none.
    """
    found = numbers(folder)
    if not found:
        raise DataError(f"{folder.parent.name!r} has no version, so it is no store. Make it with `create`.")
    return found[-1]


def read_manifest(folder: Path, number: int) -> Manifest:
    """The manifest of a version.

    Raises:
        DataError: there is no such version, or a newer program wrote it.
        DamagedStoreError: it is not what was written.
    """
    path = manifest_path(folder, number)
    try:
        whole = json.loads(path.read_bytes())
        text = whole["manifest"]
        if checksum(text.encode()) != whole["check"]:
            raise ValueError("bytes changed")
    except FileNotFoundError:
        there = ", ".join(map(str, numbers(folder)[-5:])) or "none"
        raise DataError(f"{folder.parent.name!r} has no version {number}; the newest it has are {there}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(
            f"{folder.parent.name!r}: the manifest of version {number} is damaged ({error}). "
            f"Open version {number - 1}, or restore {folder.name}/{path.name} from a copy."
        ) from None
    body = json.loads(text)
    if body.pop("format") > FORMAT:
        raise DataError(f"{folder.parent.name!r} was written by a newer qkv. Update: pip install -U qkv.")
    body["pieces"] = tuple(_piece(piece) for piece in body["pieces"])
    return Manifest(**body)


def _piece(fields: dict[str, Any]) -> Piece:
    deleted = fields.pop("deleted")
    return Piece(**fields, deleted=_piece(deleted) if deleted else None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
