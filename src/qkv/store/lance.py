"""The class `LanceStore`, a store in the folder of a Lance dataset, which other programs can read with Lance.

Lance commits a version by writing files of rows and then linking a manifest into place. Lance syncs neither, so a
power loss can leave an empty newest manifest, with which Lance cannot open the dataset. This module syncs the files of
rows before the commit, and the manifest and its folder after it. If the newest manifest cannot be read, opening the
store renames the manifest with a warning.

Differences from a folder of Arrow files: there are no checksums, so a changed bit that can still be decoded is not
detected (`verify` decodes every row, and detects files that are missing, cut off or cannot be decoded); a reader that
was open when old versions were removed must refresh; rows are decoded, not memory-mapped.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.progress import Progress, track
from qkv.core.typing import Int
from qkv.core.untrusted_json import Fields, parse_json
from qkv.errors import DamagedStoreError
from qkv.store import row_files
from qkv.store.attachments import attached_damages
from qkv.store.base import BlockSelector, Metadata, Store
from qkv.store.block import Block, Damage
from qkv.store.disk import sync_folder
from qkv.store.lance_files import (
    FOLDERS,
    HINT,
    METADATA,
    cell_bytes,
    file_name,
    fragment_damage,
    fragment_name,
    import_lance,
    manifests,
    open_version,
    sync_all,
    translate_errors,
    translate_read_errors,
)
from qkv.store.lance_verification import verify_lance
from qkv.store.versions import Version

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata, LanceFragment

__all__ = ["LanceStore", "is_lance", "import_lance"]

_ASIDE = ".damaged"
_OPERATIONS = {"Overwrite": "create", "Append": "append", "Delete": "delete", "Rewrite": "compact"}


def is_lance(path: Path) -> bool:
    """Return whether a path is the folder of a Lance dataset."""
    return (path / "_versions").is_dir()


class LanceStore(Store):
    """A store in the folder of a Lance dataset, which other programs can read with Lance.

    Args:
        path: the folder.
        version: an older version; None: the newest.
        damaged: `"refuse"` raises if a file of rows is missing or cut off; `"skip"` continues without its rows,
            and lists the file in `damages`.

    Raises:
        DamagedStoreError: No version can be read, or files of rows are missing or cut off.
        DataError: The version does not exist.
        MissingPackageError: pylance is not installed.
    """

    has_checksums = False
    _row_folders = FOLDERS

    def __init__(
        self, path: Path, version: int | None = None, damaged: str = "refuse", checksums: bool | None = None
    ) -> None:
        super().__init__(path, version, damaged, checksums)
        self._lance = import_lance()
        self._load(self._newest() if version is None else self._at(version))

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, metadata: Metadata, tables: Iterable[pa.Table] = ()) -> None:
        """Write version 1 of a store with the rows of tables into a folder; see `qkv.store.create`."""
        lance = import_lance()
        encoded = {METADATA: json.dumps(metadata, ensure_ascii=False).encode()}
        whole = schema.with_metadata(encoded)
        fragments: list[FragmentMetadata] = []
        with translate_errors(path):
            for rows in tables:
                for part in row_files.split_table(rows.replace_schema_metadata(encoded)):
                    fragments += lance.fragment.write_fragments(
                        part, str(path), schema=whole, mode="create", max_rows_per_file=max(1, part.num_rows)
                    )
            sync_all(path / "data", set())
            lance.LanceDataset.commit(str(path), lance.LanceOperation.Overwrite(whole, fragments))
        for name in FOLDERS[:2]:
            sync_all(path / name, set())
        sync_folder(path)

    # -- reading ----------------------------------------------------------------------------------------

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """Yield the fragments of the open version as blocks; see `Store.blocks`."""
        names = None if columns is None else list(columns)
        for fragment in self._fragments():
            with translate_read_errors(self.path):
                table = fragment.to_table(columns=names).replace_schema_metadata(None)
            yield Block(fragment_name(fragment), table)

    def block_lengths(self) -> list[int]:
        """Return the number of rows of each fragment of the open version, without deleted rows."""
        with translate_read_errors(self.path):
            return [fragment.count_rows() for fragment in self._fragments()]

    def size_of(self, columns: Sequence[str]) -> int:
        """Return the approximate total size in bytes of the columns that `columns` names."""
        return len(self) * sum(cell_bytes(self.schema.field(name).type) for name in columns)

    def take(self, rows: Int[np.ndarray, " n"], columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table of the rows whose indices are in `rows`; see `Store.take`."""
        names = list(self.schema.names if columns is None else columns)
        if not len(rows):
            return self.empty(names)
        if self.damages:
            return super().take(rows, columns)
        with translate_read_errors(self.path):
            return self._dataset.take(rows.tolist(), columns=names).cast(self.empty(names).schema)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Decode all rows of all versions, and return a `Damage` for each damaged file; see `qkv.store.verify`."""
        return list(verify_lance(self.path, progress).damages)

    # -- writing ----------------------------------------------------------------------------------------

    def delete_chosen(self, choose: BlockSelector) -> int:
        """Delete the rows that a function of all fragments selects, and return their number."""
        with self._writing():
            fragments = list(self._fragments())
            remaining, removed, deleted = [], [], 0
            for fragment, chosen in zip(fragments, choose(list(self.blocks())), strict=True):
                if chosen is None or not np.asarray(chosen, bool).any():
                    continue
                address = fragment.scanner(columns=[], with_row_address=True).to_table()
                offsets = address.column("_rowaddr").to_numpy() & 0xFFFFFFFF
                offsets = offsets[np.asarray(chosen, bool)]
                deleted += len(offsets)
                with translate_errors(self.path):
                    thinned = fragment.delete_rows(offsets.tolist())
                if thinned is None:
                    removed.append(fragment.fragment_id)
                else:
                    remaining.append(thinned)
            if deleted:
                operation = self._lance.LanceOperation.Delete(remaining, removed, "chosen by qkv")
                self._commit(operation, "_deletions")
        return deleted

    # -- private ----------------------------------------------------------------------------------------

    def _prepare_commit(self) -> None:
        pass

    def _append(self, tables: Iterator[pa.Table]) -> None:
        fragments: list[FragmentMetadata] = []
        for rows in tables:
            for part in row_files.split_table(rows):
                with translate_errors(self.path):
                    fragments += self._lance.fragment.write_fragments(
                        part, self._dataset, mode="append", max_rows_per_file=max(1, part.num_rows)
                    )
        if fragments:
            self._commit(self._lance.LanceOperation.Append(fragments), "data")

    def _compact(self, progress: Progress | None) -> None:
        rows = max(1, len(self))
        each = max(1, int(row_files.BYTES / max(1.0, self.size_of(self.schema.names) / rows)))
        compaction = self._lance.optimize.Compaction
        options = {"target_rows_per_fragment": each, "materialize_deletions_threshold": 0.0}
        tasks = compaction.plan(self._dataset, options).tasks
        with translate_errors(self.path):
            done = [task.execute(self._dataset) for task in track(tasks, "compacting", progress)]
        if done:
            sync_all(self.path / "data", self._before)
            with translate_errors(self.path):
                compaction.commit(self._dataset, done, options)
            self._finish_commit()

    def _remove_unneeded(self, keep: int | None) -> int:
        if keep is None:
            return 0
        freed = self._dataset.cleanup_old_versions(
            older_than=timedelta(0), retain_versions=keep, delete_unverified=True
        )
        return int(freed.bytes_removed)

    def _describe(self, number: int) -> Version:
        dataset = self._at(number)
        with translate_read_errors(self.path):
            (written,) = (each["timestamp"] for each in dataset.versions() if each["version"] == number)
            assert isinstance(written, datetime)
            return Version(number, self._operation(dataset), dataset.count_rows(), written.astimezone(UTC))

    def _fragments(self) -> Iterator[LanceFragment]:
        broken = {damage.file for damage in self.damages}
        return (each for each in self._dataset.get_fragments() if f"data/{file_name(each)}" not in broken)

    def _numbers(self) -> list[int]:
        return list(manifests(self.path))

    def _load_newest(self) -> None:
        self._load(self._newest())

    def _newest(self) -> lance.LanceDataset:
        """Return the dataset at the newest version that can be read, and rename the manifests of newer versions."""
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
            f"{self.path.name!r} is damaged: no manifest of its {len(numbers)} versions can be read. "
            "Restore the store from a copy."
        )

    def _at(self, version: int) -> lance.LanceDataset:
        return open_version(self.path, version)

    def _set_aside(self, numbers: list[int]) -> None:
        names = ", ".join(map(str, numbers))
        subject, verb = ("versions", "were") if len(numbers) > 1 else ("version", "was")
        warnings.warn(
            f"{self.path.name!r}: {subject} {names} cannot be read, probably because of a power loss, and {verb} set "
            "aside. The newest readable version is open. Repeat the last write.",
            UserWarning,
            stacklevel=4,
        )
        folder = self.path / "_versions"
        for number, name in manifests(self.path).items():
            if number in numbers:
                (folder / name).rename(folder / f"{name}{_ASIDE}")
        (folder / HINT).unlink(missing_ok=True)
        sync_folder(folder)

    def _load(self, dataset: lance.LanceDataset) -> None:
        name = f"the metadata of {self.path.name!r}"
        with translate_read_errors(self.path):
            metadata = Fields(parse_json((dataset.schema.metadata or {}).get(METADATA, b"{}"), name), name).fields
            checked = (fragment_damage(self.path, each) for each in dataset.get_fragments())
            damages = [damage for damage in checked if damage is not None]
        damages += attached_damages(self.path, metadata)
        self._report(damages)
        self._dataset, self.damages = dataset, damages
        self.version = dataset.version
        self.metadata = metadata
        self.schema = dataset.schema.remove_metadata()

    def _operation(self, dataset: lance.LanceDataset) -> str:
        try:
            transaction = dataset.read_transaction(dataset.version)
            kind = "unknown" if transaction is None else type(transaction.operation).__name__
        except Exception:  # its record was removed, or is unknown to this version of pylance
            return "unknown"
        return _OPERATIONS.get(kind, kind.lower())

    def _commit(self, operation: lance.LanceOperation.BaseOperation, folder: str) -> None:
        sync_all(self.path / folder, self._before)
        with translate_errors(self.path):
            self._lance.LanceDataset.commit(str(self.path), operation, read_version=self.version)
        self._finish_commit()

    def _finish_commit(self) -> None:
        for folder in FOLDERS[:2]:
            sync_all(self.path / folder, self._before)
        sync_folder(self.path)
        self._load_newest()
