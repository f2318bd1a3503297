"""Checksums of the files of a Lance store, which Lance itself does not record.

STORE/checksums.jsonl     one line for each version: its CRC-32, then JSON with the CRC-32 of the files it added

Lance never changes a manifest, a file of rows or a file of deletions after it has written them, so the entries of all
lines hold at the same time. A line is appended after the commit of its version, and synced before the write returns.
A process that is killed in between leaves a version without a line, which the next write adds. Versions that other
programs commit have no line, and their files no checksums.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from qkv.core.checksums import checksum, file_checksum
from qkv.core.untrusted_json import Fields, parse_json, read_bounded
from qkv.errors import DamagedError, DataError
from qkv.store.damage import Damage, problem_of
from qkv.store.disk import TEMPORARY, sync_folder, translate_disk_full, write_synced
from qkv.store.lance_files import (
    count_rows,
    file_names,
    fragment_damage,
    manifests,
    open_version,
    operation_of,
    time_of,
)
from qkv.store.row_files import is_verified, remember_verified, size_problem

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment


CHECKSUMS = "checksums.jsonl"
_FORMAT = 1
_NAME = re.compile(r"(_versions|_deletions|data)/[0-9A-Za-z][0-9A-Za-z._-]{0,200}", re.ASCII)
_LONGEST = 2**32


Reading: TypeAlias = Literal["never", "once", "always"]


class FileCheck(NamedTuple):
    """The size in bytes and the CRC-32 of a file."""

    size: int
    check: int


@dataclass(frozen=True)
class VersionRecord:
    """A version that qkv committed, and the files that it added.

    Attributes:
        version: the number.
        operation: as in `Version.operation`.
        rows: number of rows.
        written: time of the commit, in UTC.
        files: the size and checksum of its manifest and of each file that it added, by name within the store.
        lost: number of rows that a repair left out.
    """

    version: int
    operation: str
    rows: int
    written: datetime
    files: Mapping[str, FileCheck] = field(default_factory=dict)
    lost: int = 0

    @property
    def manifest(self) -> str:
        """The name of the manifest within the store."""
        return next((name for name in self.files if name.startswith("_versions/")), "_versions")

    def line(self) -> bytes:
        """Return the line of the record."""
        files = [[name, *check] for name, check in self.files.items()]
        fields = {
            "version": self.version,
            "operation": self.operation,
            "rows": self.rows,
            "written": self.written.isoformat(),
            "files": files,
        }
        return _line(fields | ({"lost": self.lost} if self.lost else {}))

    @classmethod
    def parse(cls, fields: Fields) -> VersionRecord:
        """Return the record in a line, or raise a `DamagedError`."""
        try:
            written = datetime.fromisoformat(fields.text("written")).astimezone(UTC)
        except (ValueError, OverflowError):
            raise fields.damaged("written", "a time") from None
        lost = fields.integer("lost") if "lost" in fields else 0
        number, rows = fields.integer("version", 1), fields.integer("rows")
        return cls(number, fields.text("operation"), rows, written, _parse_files(fields), lost)


class LanceChecksums:
    """The checksums of a Lance store, as far as they are recorded.

    Attributes:
        versions: the recorded versions, by number.
        files: the size and checksum of each recorded file, by name within the store.
        problem: a description of the damage of the record; None if it is intact.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = f"{path}{os.sep}"
        self._file = path / CHECKSUMS
        self.versions: dict[int, VersionRecord] = {}
        self.files: dict[str, FileCheck] = {}
        self.problem: str | None = None
        self._end = 0
        self._identity: tuple[int, int] | None = None
        self.refresh()

    @property
    def newest(self) -> int:
        """The newest recorded version; 0 if there is none."""
        return max(self.versions, default=0)

    def refresh(self) -> None:
        """Read what was recorded since the last call.

        Raises:
            DataError: A newer version of qkv wrote the record.
        """
        try:
            state = self._file.stat()
            if (state.st_dev, state.st_ino) != self._identity or state.st_size < self._end:
                self._clear()
                self._identity = state.st_dev, state.st_ino
            if state.st_size == self._end:
                return
            data = read_bounded(self._file)[self._end :]
        except FileNotFoundError:
            self._clear()
            return
        except (OSError, DamagedError):
            self.problem = "not a file" if self._file.is_dir() else "it cannot be read"
            return
        lines = data.split(b"\n")
        for line in lines[:-1]:  # what follows the last line break was not written completely
            try:
                self._add(line)
            except DamagedError as error:
                self.problem = problem_of(error)
        self._end += len(data) - len(lines[-1])

    def find_problem(self, name: str, read: Reading = "once") -> str | None:
        """Return a text that describes the damage of a file, or None if it is intact or has no checksum.

        Args:
            name: the name of the file within the store.
            read: whether the contents are verified: never, once by each process, or always.
        """
        expected = self.files.get(name)
        if expected is None:
            return None
        try:
            state = os.stat(f"{self._root}{name}")  # joining paths takes longer than this call
            if not stat.S_ISREG(state.st_mode):
                return "not a file"
            if state.st_size != expected.size:
                return size_problem(state.st_size, expected.size)
            if read == "never":
                return None
            path = self._path / name
            if read == "once" and is_verified(path, expected.check):
                return None
            if file_checksum(path) != expected.check:
                return "the checksum does not match"
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return error.strerror or "it cannot be read"
        remember_verified(path, expected.check)
        return None

    def find_damage(self, fragment: LanceFragment, read: Reading = "once", decode: bool = False) -> Damage | None:
        """Return the damage of a fragment, or None if its files have the recorded sizes and checksums.

        Args:
            read: whether the contents of its files are verified: never, once by each process, or always.
            decode: whether its rows are decoded if the checksums match. Lance may crash if they do not.
        """
        names = file_names(fragment)
        for name in names:
            problem = self.find_problem(name, read)
            if problem is not None:
                kind: Literal["rows", "deletions"] = "rows" if name.startswith("data/") else "deletions"
                return Damage(name, problem, count_rows(fragment), kind=kind)
        if decode or names[0] not in self.files:
            return fragment_damage(self._path, fragment, decode)
        return None

    def record(
        self, after: int, dataset: lance.LanceDataset, names: Iterable[str], operation: str | None = None
    ) -> None:
        """Record the checksums of the versions after a version, up to that of a dataset.

        Args:
            after: the number of the version before the first that is recorded.
            dataset: the dataset at the last version that is recorded.
            names: the files that these versions added, other than their manifests, by name within the store.
            operation: the operation that committed them; None: as Lance recorded it.

        Raises:
            StoreFullError: The disk is full. The versions remain without checksums.
        """
        last = dataset.version
        numbers = [number for number in manifests(self._path) if after < number < last]
        records = [self.describe(open_version(self._path, number), (), operation) for number in numbers]
        self.append([*records, self.describe(dataset, names, operation)])

    def describe(
        self, dataset: lance.LanceDataset, names: Iterable[str], operation: str | None = None, lost: int = 0
    ) -> VersionRecord:
        """Return the record of the version of a dataset with the checksums of files, which are read; see `record`.

        `lost` is the number of rows that a repair left out.
        """
        manifest = f"_versions/{manifests(self._path)[dataset.version]}"
        operation, rows = operation or operation_of(dataset), int(dataset.count_rows())
        written = time_of(dataset).astimezone(UTC)
        return VersionRecord(dataset.version, operation, rows, written, self._measure([manifest, *names]), lost)

    def _measure(self, names: Iterable[str]) -> dict[str, FileCheck]:
        return {name: FileCheck((self._path / name).stat().st_size, file_checksum(self._path / name)) for name in names}

    def append(self, records: Iterable[VersionRecord]) -> None:
        """Append the records of versions, and sync them to the disk.

        Raises:
            StoreFullError: The disk is full. The versions remain without records.
        """
        lines = b"".join(record.line() for record in records)
        self.refresh()
        with translate_disk_full(self._path.name):
            absent = not self._file.exists()
            with self._file.open("ab") as file:
                if file.tell() > self._end:  # a process was killed while it wrote a line
                    file.truncate(self._end)
                file.write((_header({}) if absent or not self._end else b"") + lines)
                file.flush()
                os.fsync(file.fileno())
            if absent:
                sync_folder(self._path)
        self.refresh()

    def rewrite(self, numbers: Iterable[int], names: Iterable[str], extra: Iterable[VersionRecord] = ()) -> None:
        """Replace the record by one of some versions and files.

        Args:
            numbers: the versions that remain.
            names: the files that remain.
            extra: records that are added.
        """
        records = [self.versions[number] for number in sorted(numbers) if number in self.versions]
        records += extra
        own = {name for record in records for name in record.files}
        carried = {name: self.files[name] for name in sorted(names) if name in self.files and name not in own}
        for left in self._path.glob(f"{TEMPORARY}*"):  # of a process that was killed
            left.unlink(missing_ok=True)
        write_synced(self._file, _header(carried) + b"".join(record.line() for record in records))
        sync_folder(self._path)
        self._clear()
        self.refresh()

    def _clear(self) -> None:
        self.versions, self.files, self.problem, self._end, self._identity = {}, {}, None, 0, None

    def _add(self, line: bytes) -> None:
        check, _, text = line.partition(b" ")
        if check != b"%08x" % checksum(text):
            raise DamagedError("the checksum of a line does not match")
        fields = Fields(parse_json(text, CHECKSUMS), CHECKSUMS)
        if "format" in fields:
            if fields.integer("format") > _FORMAT:
                raise DataError(
                    f"the format of {CHECKSUMS} in {self._path.name!r} must be at most {_FORMAT}, got "
                    f"{fields.integer('format')}. Install a newer version of qkv."
                )
            self.files.update(_parse_files(fields))
            return
        record = VersionRecord.parse(fields)
        if self.versions.setdefault(record.version, record) != record:
            raise DamagedError(f"version {record.version} is recorded twice")
        self.files.update(record.files)


def _header(files: Mapping[str, FileCheck]) -> bytes:
    return _line({"format": _FORMAT, "files": [[name, *check] for name, check in files.items()]})


def _line(fields: Mapping[str, object]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (checksum(text), text)


def _parse_files(fields: Fields) -> dict[str, FileCheck]:
    found = {}
    for entry in fields.items("files"):
        match entry:
            case [str(name), int(size), int(check)] if (
                _NAME.fullmatch(name) and 0 <= size <= 2**53 and 0 <= check < _LONGEST
            ):
                found[name] = FileCheck(size, check)
            case _:
                raise fields.damaged("files", "a list of names, sizes and checksums")
    return found
