"""The class `StoredDatabase`, a database on disk that makes a new version for each append and each delete.

If the rows fit the memory limit, attention is computed in memory. Otherwise they are read block by block, with the
same answers. The plan of an answer says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import numpy as np

from qkv.core.formatting import counted, memory_bytes, memory_text
from qkv.core.progress import Progress, report
from qkv.database.answer import Answer
from qkv.database.choice_cache import ChoiceCache
from qkv.database.cluster.executor import ClusterExecutor
from qkv.database.cluster.scheduler import Scheduler
from qkv.database.cluster.task import StoreFragments
from qkv.database.execute.aggregates import votes_by_kind
from qkv.database.execute.ask_options import AskDefaults, AskOptions
from qkv.database.execute.base import Executor
from qkv.database.execute.code_scan import VectorCodes
from qkv.database.execute.in_memory import InMemoryExecutor
from qkv.database.execute.row_reader import StoredRows, match_blocks, predicate_columns
from qkv.database.execute.scan import arrays_path
from qkv.database.execute.streamed import StreamedExecutor
from qkv.database.io.bad_cells import predicate_notes
from qkv.database.io.cell_notes import collect_notes, decided_formats, stated_types
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.sources import iterate_tables, require_columns
from qkv.database.keys.part_registry import parse_score
from qkv.database.protocol import Queryable
from qkv.database.storage.encoding import Encoding, prepare_rows
from qkv.encoders.arrow_columns import float_dtype
from qkv.encoders.columns import Column, key_names
from qkv.errors import DataError, StoreFullError
from qkv.scores.base import Score
from qkv.store import ArrowStore, Damage, ObjectPath, RemoteStore, StorageOptions, Store, Version, export
from qkv.store import copy as copy_store

_EXAMPLES = 64
_NO_DEFAULTS = AskDefaults()


class StoredDatabase(Queryable):
    """A database on disk, which `Database.create` and `Database.open` return.

    It answers every query that a database in memory does. A store with an encoder compares the vectors of keys and
    queries, unless the score compares texts, such as `"spelling"` or `"exact"`; then the saved normalizer and
    threshold are not used.

    Args:
        store: the rows and their versions.
        key, value: names of the key columns and the value column.
        fold: whether texts are compared without regard to case.
        defaults: the defaults of `ask`.
        memory: the memory limit, in bytes or as text.
        encoding: encodes keys and queries as vectors; None: keys are compared unchanged.
        cache: whether what is chosen from 20,000 rows or more, such as bandwidths, is saved with the store.
        cluster: the workers that read the rows; None: this process does.

    Attributes:
        cell_notes: sentences about cells of the rows written last that are not what the column holds, such as "n/a"
            among prices; or about the columns that the predicate of the last deletion names.

    Example:
        >>> import tempfile
        >>> from qkv.database import Database
        >>> folder = tempfile.mkdtemp() + "/people"
        >>> people = Database.create(folder, {"name": ["John Doe"], "income": [1000]}, "name", "income")
        >>> people.append({"name": ["Jane Roe", "Li Mu"], "income": [2000, 3000]})
        2
        >>> people.delete("income < 1500"), len(people), round(people.ask("jane roe").value)
        (1, 2, 2000)
        >>> people.at(2).ask("john doe").rows[0].record
        {'name': 'John Doe', 'income': 1000}
    """

    def __init__(
        self,
        store: Store,
        key: str | Sequence[str],
        value: str,
        *,
        fold: bool = True,
        defaults: AskDefaults = _NO_DEFAULTS,
        memory: int | str = "512 MiB",
        encoding: Encoding | None = None,
        cache: bool = True,
        cluster: Scheduler | None = None,
    ) -> None:
        self.store = store
        self.cache, self.cluster = cache, cluster
        self.encoding = encoding
        self.key = key_names(key, store.schema.names)
        self.value = value
        self.name = store.path.name
        self.fold = fold
        self.score, self.normalizer, self.min_similarity, self.max_distance = self._defaults = defaults
        self.memory = memory_bytes(memory)
        self.cell_notes: tuple[str, ...] = ()
        require_columns(store.empty(self._visible), (*self.key, value), self.name)
        for column in (*self.key, value):
            self._empty_column(column)  # raises if its cells can be neither compared nor averaged
        self._executors: dict[bool, tuple[int, Executor]] = {}
        self._examples: tuple[int, list[Column]] = (-1, [])

    @property
    def _ask(self) -> Callable[[object, AskOptions], Answer]:
        return self._ask_store

    def _ask_store(self, queries: object, options: AskOptions) -> Answer:
        """Answer queries with the defaults of the store, and say what was read of it."""
        score = self.score if options.score is None else options.score
        vectors = self._compares_vectors(score)
        normalizer = options.normalizer
        if vectors == self._compares_vectors(self.score):
            normalizer = self.normalizer if normalizer is None else normalizer
            # A limit that an older version saved may be a cosine, which is no distance for another score.
            if options.min_similarity is options.max_distance is None and (score == self.score or not vectors):
                limits = self.min_similarity, self.max_distance
                options = replace(options, min_similarity=limits[0], max_distance=limits[1], default_limits=True)
        options = replace(options, score=score, normalizer=normalizer)
        before = self.store.traffic if isinstance(self.store, RemoteStore) else None
        executor = self._executor_for(vectors, options.progress)
        if not vectors or self.encoding is None:
            answer = executor.ask(queries, options)
        else:
            encoded, unknown = self.encoding.encode_queries(queries, self._example_columns(), options.on_bad_query)
            answer = self.encoding.describe(executor.ask(encoded, options), unknown, self.key)
        if self.store.damages and self.store.skipped:
            answer = answer.with_missing(self.store.skipped)
        if before is None:
            return answer
        assert isinstance(self.store, RemoteStore)
        traffic = self.store.traffic - before
        text = f"{memory_text(traffic.read)} in {counted(traffic.requests, 'request', 'requests')} from "
        text += str(self.store.path)
        if traffic.cached:
            text += f", {memory_text(traffic.cached)} from the block cache"
        return answer.with_note(f"read {text}", f"rows read: {text}", read=text)

    def swap(self) -> StoredDatabase:
        """Return a database over the same store with the key and value columns exchanged.

        The new key is compared without an encoder.

        Raises:
            DataError: There is more than one key column.
        """
        key = self._single_key()
        return StoredDatabase(self.store, self.value, key, **self._settings)

    @property
    def votes(self) -> bool:  # type: ignore[override]
        """Whether an answer is the weighted vote of the values rather than their average; see `Queryable`."""
        return self._executor.votes if len(self.store) else votes_by_kind(self._empty_column(self.value))

    @property
    def streams(self) -> bool:
        """Whether `ask` reads the store block by block, because its rows exceed the memory limit."""
        return self.cluster is not None or self._exceeds_memory(self._compares_vectors(self.score))

    def column(self, name: str) -> Column:
        # An encoded key is not itself a column of vectors.
        return self._executor_for(False if name in self.key else None).column(name)

    def complete_columns(self, where: str | None = None) -> tuple[Column, ...]:
        """Return the key columns, not encoded, and the value column; see `Queryable.complete_columns`."""
        return self._executor_for(False).complete_columns(where)

    def __len__(self) -> int:
        return super().__len__() if len(self.store) else 0

    def __repr__(self) -> str:
        rows = counted(len(self.store), "row", "rows")
        key = ", ".join(self.key)
        if self._compares_vectors(None) and self.encoding is not None:
            key += f" by {self.encoding.name}"
        missing = self.store.unchecked
        unchecked = f", no checksums of {counted(missing, 'file', 'files')}" if missing else ""
        unchecked += f"; {self.store.skipped}" if self.store.damages else ""
        return f"Database({self.name}: {key} → {self.value}, {rows}, version {self.version}{unchecked})"

    def append(
        self,
        source: object,
        progress: Progress | None = None,
        on_bad_cell: str = "exclude",
        *,
        encoding: str | None = None,
        delimiter: str | None = None,
        decimal: str | None = None,
        date_format: str | None = None,
        header_row: int | None = None,
        skip_footer: int | None = None,
    ) -> int:
        """Append rows, save them on disk as a new version, and return the number of the version.

        Args:
            source: anything that `Database.open` takes, with the columns of the store; or an iterator of such
                sources, which become one version.
            progress: called as `progress("writing rows", done, 0)` or `progress("encoding rows", done, 0)`.
            on_bad_cell: as in `Database.open`; excluded cells are stored as missing, and counted in `cell_notes`.
            encoding: as in `Database.open`.
            delimiter: as in `Database.open`.
            decimal: as in `Database.open`; that of the store, if no cell of a column decides.
            date_format: as in `Database.open`; that of the store, if no cell of a column decides.
            header_row: as in `Database.open`.
            skip_footer: as in `Database.open`.

        Returns:
            The number of the new version.

        Raises:
            DataError: Columns are missing, unknown, or of another type. The store is unchanged.
            StoreBusyError: Another process is writing.
            StoreFullError: The disk is full. The store is unchanged.
        """
        names, notes = (*self.key, self.value), list[str]()
        schema = self.store.empty(self._visible).schema
        assumed = tuple({**stated_types(schema), **decided_formats(schema)}.items())
        options = ReadOptions(
            encoding, delimiter, decimal, on_bad_cell, date_format, header_row, skip_footer, assumed=assumed
        )
        tables = collect_notes(iterate_tables(source, names, options), names, notes)
        version = self.store.append(prepare_rows(self.encoding, tables, schema, self.name, progress))
        self.cell_notes = tuple(notes)
        return version

    def delete(self, where: str) -> int:
        """Delete the rows that satisfy a SQL predicate, and return their number. Older versions keep the rows.

        Args:
            where: as in `ask`; the whole table is `data`: `"income > (select avg(income) from data)"`.

        Returns:
            The number of deleted rows.

        Raises:
            QueryError: The predicate fails.
        """
        named = predicate_columns(self.store, self._visible, where)
        schema = self.store.empty(named).schema
        self.cell_notes = predicate_notes(StoredRows(self.store), where)
        return self.store.delete_chosen(lambda blocks: match_blocks(blocks, schema, where, deleted=True), named)

    def compact(self, keep: int | None = None, progress: Progress | None = None) -> int:
        """Merge small blocks and blocks with deleted rows into full blocks, and remove old versions if `keep` is given.

        Args:
            keep: number of newest versions that remain readable; None: all.
            progress: called as `progress("compacting", done, total)`.

        Returns:
            The number of bytes freed on the disk.
        """
        compressed = bool(VectorCodes.saved(self.store.cache_folder))
        freed = self.store.compact(keep, progress)
        return freed - (self.compress(progress) if compressed and len(self.store) else 0)

    def compress(self, progress: Progress | None = None) -> int:
        """Save codes of one byte for each number of the vectors of the key, and return their number of bytes.

        `ask` with an inner product or a cosine then reads the codes of all rows, and of the rows themselves only those
        that are not proven to have no weight, where that saves time; the plan says so. The answers remain the same. A
        softmax, under which all rows have weight, needs a `tolerance`. The first `ask` after an append makes the codes
        of its rows. The codes are results about the rows, in the folder `notes`: removing it ends the compression.

        Args:
            progress: called as `progress("compressing", done, total)`.

        Raises:
            DataError: The key is not one column of vectors of floats, or the rows are not in Arrow files on a disk.
            StoreFullError: The codes cannot be written.
        """
        store, columns = self.store, self._compared(self._compares_vectors(None))
        kinds = [store.schema.field(name).type for name in columns]
        if not isinstance(store, ArrowStore) or isinstance(store, RemoteStore):
            raise DataError(f"{self.name} must be in Arrow files on a disk. Copy it with backend='arrow'.")
        if len(kinds) > 1 or float_dtype(kinds[0]) is None:
            raise DataError(
                f"the key of {self.name} must be one column of vectors of floats, got {', '.join(map(str, kinds))}. "
                "Compress stores whose keys are vectors, or create the store with an encoder."
            )
        codes, total = VectorCodes(), len(store.block_names())
        for number, block in enumerate(store.blocks(columns)):
            codes.of_block(block, columns[0], store.cache_folder)
            if not arrays_path(block, columns[0], "codes", store.cache_folder).exists():
                raise StoreFullError(f"the codes of {self.name} could not be written. Free disk space.")
            report(progress, "compressing", number + 1, total)
        self._executors = {}
        return sum(path.stat().st_size for path in VectorCodes.saved(store.cache_folder))

    @property
    def version(self) -> int:
        """The number of the open version."""
        return self.store.version

    def versions(self) -> list[Version]:
        """Return a list of all versions of the store that can be read, oldest first."""
        return self.store.versions()

    def at(self, version: int) -> Self:
        """Return the database opened at a given version, which can be read but not written."""
        return self._over(self.store.at(version))

    def refresh(self) -> bool:
        """Open the newest version, which another process may have written, and return whether the version changed."""
        return self.store.refresh()

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Verify the files of all versions, and return a `Damage` for each damaged file; see `qkv.store.verify`."""
        return self.store.verify(progress)

    def copy(
        self,
        path: str | PathLike[str] | ObjectPath,
        *,
        backend: str = "arrow",
        overwrite: bool = False,
        progress: Progress | None = None,
        storage_options: StorageOptions = None,
    ) -> Self:
        """Copy the open version to a folder, where it is version 1, and return the copy; see `qkv.store.copy`.

        Args:
            path: a folder that does not exist or is empty, or a store if `overwrite` is True; or a URL.
            backend: the format of the copy, `"arrow"` or `"lance"`.
            overwrite: whether a store at the path is replaced.
            progress: called as `progress("copying", done, total)`.
            storage_options: settings of the object store of a URL, as in `Database.open`.

        Raises:
            DataError: The path cannot be used.
            DamagedStoreError: Files of the open version are damaged.
            StoreFullError: The disk is full. Nothing remains.
        """
        copied = copy_store(
            self.store, path, backend=backend, overwrite=overwrite, progress=progress, storage_options=storage_options
        )
        return self._over(copied)

    def export(self, path: str | PathLike[str], *, overwrite: bool = False, progress: Progress | None = None) -> None:
        """Write the rows of the open version to a Parquet or Arrow file; see `qkv.store.export`.

        The column of vectors that an encoder added is left out.

        Args:
            path: a file whose name ends in `.parquet` or `.arrow`.
            overwrite: whether an existing file is replaced.
            progress: called as `progress("exporting", done, total)`.

        Raises:
            DataError: The file exists or cannot be written, or its format does not support the type of a column.
            DamagedStoreError: Files of the open version are damaged.
        """
        export(self.store, path, columns=self._visible, overwrite=overwrite, progress=progress)

    def close(self) -> None:
        """End the workers of the cluster. The next query starts new ones."""
        if self.cluster is not None:
            self.cluster.close()

    def row_fragments(self) -> StoreFragments:
        """Return the fragments of the open version, from which `AttentionRegressor.fit` learns without a copy."""
        return StoreFragments(self.store, self.key, self.value, self.cluster)

    # -- private ----------------------------------------------------------------------------------------

    def _over(self, store: Store) -> Self:
        """Return the same database over another store."""
        return type(self)(store, self.key, self.value, defaults=self._defaults, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        names = ("fold", "memory", "encoding", "cache", "cluster")
        return {name: getattr(self, name) for name in names}

    @property
    def _visible(self) -> list[str]:
        """The names of all columns of the store except the column of vectors that the encoder added."""
        hidden = None if self.encoding is None else self.encoding.vector
        return [name for name in self.store.schema.names if name != hidden]

    def _empty_column(self, name: str) -> Column:
        return Column.from_table(self.store.empty([name]), name)

    def _compares_vectors(self, score: Score | str | None) -> bool:
        """Return whether a score compares the vectors of the encoder rather than the key columns."""
        if self.encoding is None or self.key != self.encoding.columns:
            return False
        kind = parse_score(score).kind if isinstance(score, str) else score
        return kind is None or kind.accepts == "numbers"

    def _example_columns(self) -> list[Column]:
        """Return the key columns of the first rows, which determine how queries are parsed."""
        if self._examples[0] != self.version:
            rows = self.store.take(np.arange(min(_EXAMPLES, len(self.store))), self.key)
            self._examples = self.version, [Column.from_table(rows, name, False) for name in self.key]
        return self._examples[1]

    @property
    def _executor(self) -> Executor:  # type: ignore[override]
        return self._executor_for()

    def _executor_for(self, vectors: bool | None = None, progress: Progress | None = None) -> Executor:
        """Return the executor of the open version, which compares the vectors of the encoder or the key columns."""
        if vectors is None:
            vectors = self._compares_vectors(self.score)
        if vectors not in self._executors or self._executors[vectors][0] != self.version:
            if not len(self.store):
                raise DataError(f"{self.name} must have at least one row, got none. Append rows first.")
            executor: Executor
            key, visible = self._compared(vectors), self._visible
            hidden = [name for name in self.store.schema.names if name not in visible]
            rows = self.store, key, self.value, self.name, self.fold
            if self.cluster is not None:
                executor = ClusterExecutor(*rows, progress, hidden, self.cluster)
            elif self._exceeds_memory(vectors):
                executor = StreamedExecutor(*rows, progress, hidden)
            else:
                executor = self._load_executor(key, hidden, [*visible, *hidden] if vectors else visible)
            if self.cache:
                choices = ChoiceCache.of_store(self.store).for_rows(len(self.store))
                kind = (InMemoryExecutor if isinstance(executor, InMemoryExecutor) else StreamedExecutor).__name__
                executor.choices = choices.with_options(key=list(key), value=self.value, fold=self.fold, kind=kind)
            executor.encoded = self.key if vectors else ()
            # A row lacks its vector if it lacks its key.
            names = dict.fromkeys(hidden, ", ".join(self.key))
            executor.missing_cells = {names.get(name, name): count for name, count in executor.missing_cells.items()}
            current = {kind: entry for kind, entry in self._executors.items() if entry[0] == self.version}
            self._executors = {**current, vectors: (self.version, executor)}
        return self._executors[vectors][1]

    def _load_executor(self, key: tuple[str, ...], hidden: list[str], columns: list[str]) -> InMemoryExecutor:
        """Return an executor over the rows in memory.

        Of a store in an object store, the key and value columns are loaded; the others are read for the rows of
        evidence.
        """
        names = key, self.value, self.name, self.fold
        if not isinstance(self.store, RemoteStore):
            return InMemoryExecutor(self.store.to_table(columns), *names, hidden)
        executor = InMemoryExecutor(self.store.to_table(list(dict.fromkeys((*key, self.value)))), *names)
        executor.table = StoredRows(self.store, hidden)
        return executor

    def _compared(self, vectors: bool) -> tuple[str, ...]:
        """Return the name of the column of vectors if `vectors` is True, otherwise the names of the key columns."""
        return (self.encoding.vector,) if vectors and self.encoding is not None else self.key

    def _exceeds_memory(self, vectors: bool) -> bool:
        """Return whether the compared columns and the value column are estimated to exceed the memory limit."""
        row_bytes = 0
        for name in dict.fromkeys((*self._compared(vectors), self.value)):
            width = getattr(self.store.schema.field(name).type, "list_size", 1)
            text = self._empty_column(name).traits.text
            # Numbers as read, standardized and projected; Python texts as read and folded.
            row_bytes += 200 if text else 4 * 8 * max(1, width)
        return len(self.store) * row_bytes > self.memory
