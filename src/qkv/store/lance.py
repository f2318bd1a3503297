"""A store as a Lance dataset: what other programs of the Lance family read, and object stores hold.

A commit is Lance's own: files of rows, then a manifest that is linked into place. Lance syncs none of them,
so a loss of power can leave a newest manifest without bytes, which no version of Lance opens. Here the files
of rows are synced before the commit, the manifest and its folder after it; and a newest manifest that cannot
be read is set aside when the store is opened, with a warning.

What a folder of Arrow files does and this does not: bytes are not compared with checksums (`verify` reads
every row, and finds what is missing, cut off or no longer decodes); a reader that was open when old versions
were removed must refresh; rows are decoded, not mapped.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.errors import (
    DamagedStoreError,
    DataError,
    MissingPackageError,
    OptionError,
)
from qkv.store import row_files
from qkv.store.attachments import attached_damages
from qkv.store.base import Block, Choosing, Damage, Store, Version
from qkv.store.disk import sync_folder
from qkv.store.lance_files import (
    FOLDERS,
    HINT,
    file_of,
    first_line,
    in_words,
    listed,
    name_of,
    sync_all,
    width_of,
)
from qkv.store.locking import held

__all__ = ["LanceStore", "is_lance", "lance_package"]

_METADATA = b"qkv"
_NEWEST = 2**64 - 1
_ASIDE = ".damaged"
_OPERATIONS = {"Overwrite": "create", "Append": "append", "Delete": "delete", "Rewrite": "compact"}


def lance_package() -> Any:
    """The package `lance`.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import lance
        import lance.fragment
        import lance.optimize
    except ImportError:
        raise MissingPackageError(
            "a store of Lance needs pylance, which is not installed. "
            'Run: pip install "qkv[lance]", or choose the backend "arrow".'
        ) from None
    return lance


def is_lance(path: Path) -> bool:
    """Whether a path is the folder of a Lance dataset."""
    return (path / "_versions").is_dir()


class LanceStore(Store):
    """A Lance dataset in a folder.

    Args:
        path: the folder.
        version: open it as it was then; None: the newest.
        damaged: `"refuse"` raises where a file of rows is missing or cut off; `"skip"` goes on without its
            rows, which `damages` names.

    Raises:
        DamagedStoreError: no version can be read, or files of rows are missing or cut off.
        DataError: there is no such version.
        MissingPackageError: pylance is not installed.
    """

    def __init__(self, path: Path, version: int | None = None, damaged: str = "refuse") -> None:
        if damaged not in ("refuse", "skip"):
            raise OptionError(f"damaged is {damaged!r}, and 'refuse' or 'skip' is wanted.")
        self.path = Path(path)
        self._lance = lance_package()
        self._pinned = version is not None
        self._skip = damaged == "skip"
        self.damages: list[Damage] = []
        self._before: set[Path] = set()
        self._load(self._newest() if version is None else self._at(version))

    @classmethod
    def create(cls, path: Path, schema: Any, metadata: dict[str, Any]) -> "LanceStore":
        """Make a new store without rows; see `qkv.store.create`."""
        lance = lance_package()
        said = {_METADATA: json.dumps(metadata, ensure_ascii=False).encode()}
        with in_words(path):
            lance.write_dataset(schema.with_metadata(said).empty_table(), str(path), mode="create")
        for name in FOLDERS[:2]:
            sync_all(path / name, set())
        for folder in (path, path.absolute().parent):
            sync_folder(folder)
        return cls(path)

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        names = None if columns is None else list(columns)
        for fragment in self._fragments():
            with in_words(self.path):
                table = fragment.to_table(columns=names).replace_schema_metadata(None)
            yield Block(name_of(fragment), table)

    def block_lengths(self) -> list[int]:
        return [fragment.count_rows() for fragment in self._fragments()]

    def size_of(self, columns: Sequence[str]) -> int:
        fields = [self.schema.field(name).type for name in columns]
        widths = [width_of(type_) for type_ in fields]
        return len(self) * sum(widths)

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> Any:
        names = list(self.schema.names if columns is None else columns)
        if not len(rows):
            return self.empty(names)
        if self.damages:
            return super().take(rows, columns)
        with in_words(self.path):
            return self._dataset.take(rows.tolist(), columns=names).cast(self.empty(names).schema)

    def versions(self) -> list[Version]:
        found = []
        for number in self._numbers():
            try:
                dataset = self._at(number)
            except DamagedStoreError:
                continue
            listed = {each["version"]: each["timestamp"] for each in dataset.versions()}
            written = listed[number].astimezone(UTC)
            found.append(Version(number, self._operation(dataset), dataset.count_rows(), written))
        return found

    def at(self, version: int) -> "LanceStore":
        return LanceStore(self.path, version, "skip" if self._skip else "refuse")

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        fragments, found = self._dataset.get_fragments(), []
        for done, fragment in enumerate(fragments):
            damage = self._damage(fragment)
            if damage is None:
                try:
                    for _ in fragment.to_batches():
                        pass
                except Exception as error:  # whatever its decoders make of changed bytes
                    damage = Damage(file_of(fragment), f"does not decode: {first_line(error)}", fragment.count_rows())
            found += [] if damage is None else [damage]
            if progress is not None:
                progress("verifying", done + 1, len(fragments))
        return found + attached_damages(self.path, self.metadata, read=True)

    def refresh(self) -> bool:
        if self._pinned or max(self._numbers(), default=0) == self.version:
            return False
        self._load(self._newest())
        return True

    def __len__(self) -> int:
        return sum(self.block_lengths())

    # -- writing ----------------------------------------------------------------------------------------

    def append(self, table: Any) -> int:
        tables = self.fitted(table)
        first = next(tables, None)
        if first is None:
            return self.version
        with self._writing():
            fragments: list[Any] = []
            for rows in chain([first], tables):
                for part in row_files.cut(rows):
                    with in_words(self.path):
                        fragments += self._lance.fragment.write_fragments(
                            part, self._dataset, mode="append", max_rows_per_file=max(1, part.num_rows)
                        )
            if fragments:
                self._commit(self._lance.LanceOperation.Append(fragments), "data")
        return self.version

    def delete_chosen(self, choose: Choosing) -> int:
        with self._writing():
            fragments = list(self._fragments())
            left, gone_whole, gone = [], [], 0
            for fragment, chosen in zip(fragments, choose(list(self.blocks())), strict=True):
                if chosen is None or not np.asarray(chosen, bool).any():
                    continue
                address = fragment.scanner(columns=[], with_row_address=True).to_table()
                offsets = address.column("_rowaddr").to_numpy() & 0xFFFFFFFF
                offsets = offsets[np.asarray(chosen, bool)]
                gone += len(offsets)
                with in_words(self.path):
                    thinned = fragment.delete_rows(offsets.tolist())
                if thinned is None:
                    gone_whole.append(fragment.fragment_id)
                else:
                    left.append(thinned)
            if gone:
                operation = self._lance.LanceOperation.Delete(left, gone_whole, "chosen by qkv")
                self._commit(operation, "_deletions")
        return gone

    def compact(self, keep: int | None = None, progress: Progress | None = None) -> int:
        if keep is not None and keep < 1:
            raise OptionError(f"keep is {keep}, and the newest version always stays. Give 1 or more.")
        with self._writing():
            rows = max(1, len(self))
            each = max(1, int(row_files.BYTES / max(1.0, self.size_of(self.schema.names) / rows)))
            compaction = self._lance.optimize.Compaction
            options = {"target_rows_per_fragment": each, "materialize_deletions_threshold": 0.0}
            tasks = compaction.plan(self._dataset, options).tasks
            done = []
            with in_words(self.path):
                for number, task in enumerate(tasks):
                    done.append(task.execute(self._dataset))
                    if progress is not None:
                        progress("compacting", number + 1, len(tasks))
            if done:
                sync_all(self.path / "data", self._before)
                with in_words(self.path):
                    compaction.commit(self._dataset, done, options)
                self._sync_commit()
                self._load(self._newest())
            self.clear_cache()
            if keep is None:
                return 0
            freed = self._dataset.cleanup_old_versions(
                older_than=timedelta(0), retain_versions=keep, delete_unverified=True
            )
            return int(freed.bytes_removed)

    # -- within -----------------------------------------------------------------------------------------

    def _fragments(self) -> Iterator[Any]:
        broken = {damage.file for damage in self.damages}
        return (each for each in self._dataset.get_fragments() if file_of(each) not in broken)

    def _numbers(self) -> list[int]:
        """The versions whose manifests are there, ascending."""
        found = []
        for path in (self.path / "_versions").iterdir():
            stem = path.name.removesuffix(".manifest")
            if path.name.endswith(".manifest") and stem.isdigit():
                # Twenty digits count down, so that the newest comes first in a listing.
                found.append(_NEWEST - int(stem) if len(stem) == 20 else int(stem))
        return sorted(found)

    def _newest(self) -> Any:
        """The newest version that can be read; newer ones are set aside."""
        numbers = self._numbers()
        for back, number in enumerate(reversed(numbers)):
            try:
                dataset = self._at(number)
            except DamagedStoreError:
                continue
            if back:
                self._set_aside(numbers[-back:])
            return dataset
        raise DamagedStoreError(
            f"{self.path.name!r}: no manifest of its {len(numbers)} versions can be read. Restore it from a copy."
        )

    def _at(self, version: int) -> Any:
        try:
            return self._lance.dataset(str(self.path), version=version)
        except (OSError, ValueError) as error:
            numbers = self._numbers()
            if version not in numbers:
                there = ", ".join(map(str, numbers[-5:])) or "none"
                raise DataError(
                    f"{self.path.name!r} has no version {version}; the newest it has are {there}."
                ) from None
            raise DamagedStoreError(
                f"{self.path.name!r}: the manifest of version {version} is damaged ({first_line(error)}). "
                f"Open version {version - 1}, or restore it from a copy."
            ) from None

    def _set_aside(self, numbers: list[int]) -> None:
        said = ", ".join(map(str, numbers))
        warnings.warn(
            f"{self.path.name!r}: version {said} cannot be read, as after a loss of power, and was set "
            "aside; the newest that can is open. What was written then must be written again.",
            UserWarning,
            stacklevel=4,
        )
        folder = self.path / "_versions"
        for number in numbers:
            for name in (f"{_NEWEST - number}.manifest", f"{number}.manifest"):
                if (folder / name).exists():
                    (folder / name).rename(folder / f"{name}{_ASIDE}")
        (folder / HINT).unlink(missing_ok=True)
        sync_folder(folder)

    def _load(self, dataset: Any) -> None:
        metadata = json.loads((dataset.schema.metadata or {}).get(_METADATA, b"{}"))
        damages = [found for each in dataset.get_fragments() if (found := self._damage(each)) is not None]
        damages += attached_damages(self.path, metadata)
        if damages and not self._skip:
            raise DamagedStoreError(
                f"{self.path.name!r} is damaged: {'; '.join(map(str, damages[:5]))}"
                + (f"; and {len(damages) - 5} more" if len(damages) > 5 else "")
                + ". Restore these files from a copy, or open it with damaged='skip' to read the other rows."
            )
        self._dataset, self.damages = dataset, damages
        self.version = dataset.version
        self.metadata = metadata
        self.schema = dataset.schema.remove_metadata()

    def _damage(self, fragment: Any) -> Damage | None:
        """What a look at the files of a fragment tells, without reading them."""
        for each in fragment.metadata.files:
            path = self.path / "data" / each.path
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                return Damage(each.path, "missing", fragment.count_rows())
            wanted = each.file_size_bytes
            if wanted and size != wanted:
                return Damage(each.path, f"cut off at {size:,} of {wanted:,} bytes", fragment.count_rows())
        return None

    def _operation(self, dataset: Any) -> str:
        try:
            kind = type(dataset.read_transaction(dataset.version).operation).__name__
        except Exception:  # the record of it was removed, or is of a kind this pylance does not know
            return "unknown"
        return _OPERATIONS.get(kind, kind.lower())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of the one writer, at the newest version; what fails leaves no file."""
        if self._pinned:
            raise OptionError(
                f"version {self.version} of {self.path.name!r} cannot be written: only the newest can. "
                "Open the store without a version."
            )
        with held(self.path):
            self.refresh()
            before, version = listed(self.path), self.version
            self._before = before
            try:
                yield
            except BaseException:
                if max(self._numbers(), default=0) == version:
                    for unnamed in listed(self.path) - before:
                        unnamed.unlink(missing_ok=True)
                raise

    def _commit(self, operation: Any, folder: str) -> None:
        sync_all(self.path / folder, self._before)
        with in_words(self.path):
            self._lance.LanceDataset.commit(str(self.path), operation, read_version=self.version)
        self._sync_commit()
        self._load(self._newest())

    def _sync_commit(self) -> None:
        for folder in FOLDERS[:2]:
            sync_all(self.path / folder, self._before)
        sync_folder(self.path)
