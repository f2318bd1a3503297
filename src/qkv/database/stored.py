"""A database that lives on disk: rows are appended and deleted, versions stay, and `ask` reads what it must.

Rows that fit the memory allowed are asked as any table is. Others are read block by block, with the same
answers; the plan says which.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Self

from qkv import store as stores
from qkv.database.answer import Answer
from qkv.database.bandwidth import Progress
from qkv.database.columns import Column, plain
from qkv.database.database import Database, key_names
from qkv.database.names import named_normalizer, named_score
from qkv.database.rows import matching
from qkv.database.sources import read_parts, require_columns
from qkv.database.streamed import Streamed
from qkv.errors import DataError, OptionError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.plan.cost import memory_bytes
from qkv.scores.base import Score
from qkv.store import Damage, Store, Version

__all__ = ["StoredDatabase", "create_stored", "open_stored"]

_SETTINGS = "database"


class StoredDatabase(Database):
    """A store, asked as a table; made by `Database.create` and `Database.open`.

    Fields:
        store: `qkv.store.Store`, the rows and their versions.
        key, value, name: as of `Database`.
        fold: texts are compared without regard to case.
        score, normalizer, threshold: by which `ask` compares where it is told nothing else.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/people"
        >>> people = Database.create(folder, {"name": ["John Doe"], "income": [1000]}, "name", "income")
        >>> people.append({"name": ["Jane Roe", "Li Mu"], "income": [2000, 3000]})
        3
        >>> people.delete("income < 1500"), len(people), round(people.ask("jane roe").value)
        (1, 2, 2000)
        >>> people.at(3).ask("john doe").rows[0].record
        {'name': 'John Doe', 'income': 1000}
    """

    def __init__(
        self,
        store: Store,
        key: str | Sequence[str],
        value: str,
        *,
        fold: bool = True,
        score: str | None = None,
        normalizer: str | None = None,
        threshold: float | None = None,
        memory: int | str = "512 MiB",
    ) -> None:
        self.store = store
        self.key = key_names(key, store.schema.names)
        self.value = value
        self.name = store.path.name
        self.fold = fold
        self.score, self.normalizer, self.threshold = score, normalizer, threshold
        self.memory = memory_bytes(memory)
        require_columns(store.empty(), (*self.key, value), self.name)
        for column in (*self.key, value):
            Column.of(store.empty([column]), column)  # what can be neither compared nor averaged is said now
        self._asked: tuple[int, Database | Streamed] | None = None

    # -- asking -----------------------------------------------------------------------------------------

    def ask(
        self,
        queries: Any,
        *,
        score: Score | str | None = None,
        normalizer: Normalizer | str | None = None,
        mask: Mask | None = None,
        where: str | None = None,
        top: int = 10,
        threshold: float | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> Answer:
        """As `Database.ask`, of the version that is open: `refresh` goes to the newest.

        Raises:
            DataError: the store has no rows yet; otherwise as `Database.ask`.
            RefusedError: the normalizer draws, or needs all weights at once, and the rows do not fit the
                memory allowed.
        """
        asked = self._rows(progress)
        score = self.score if score is None else score
        normalizer = self.normalizer if normalizer is None else normalizer
        threshold = self.threshold if threshold is None else threshold
        how: dict[str, Any] = {
            "score": score,
            "normalizer": normalizer,
            "mask": mask,
            "where": where,
            "top": top,
            "threshold": threshold,
            "progress": progress,
        }
        if isinstance(asked, Streamed):
            return asked.ask(queries, **how)
        return asked.ask(queries, **how, seed=seed)

    def swap(self) -> "StoredDatabase":
        """The same store with key and value in each other's place; what the store keeps stays as it is."""
        if len(self.key) > 1:
            raise DataError(
                f"the key has {len(self.key)} columns ({', '.join(self.key)}) and a value is one, so they "
                "cannot change places. Open the store with one of them as key."
            )
        return StoredDatabase(self.store, self.value, self.key[0], fold=self.fold, memory=self.memory)

    @property
    def streams(self) -> bool:
        """Whether `ask` reads blocks one after another, because the rows do not fit the memory allowed."""
        return self._numbers() > self.memory

    @property
    def table(self) -> Any:
        """The rows: a pyarrow table, or where they do not fit, what reads them when it is sliced."""
        return self._rows().table

    @property
    def left_out(self) -> dict[str, int]:  # type: ignore[override]
        """How many rows lack each of these columns."""
        return self._rows().left_out

    @property
    def votes(self) -> bool:
        """Whether values are put to the vote."""
        return Column.of(self.store.empty([self.value]), self.value).kind in ("text", "category", "boolean")

    def column(self, name: str) -> Column:
        """A key column or the value column; of evenly spread rows where they do not fit the memory."""
        return self._rows().column(name)

    def __len__(self) -> int:
        return len(self._rows()) if len(self.store) else 0

    def __repr__(self) -> str:
        count = len(self.store)
        rows = f"{count:,} row{'s' * (count != 1)}"
        return f"Database({self.name}: {', '.join(self.key)} → {self.value}, {rows}, version {self.version})"

    # -- writing ----------------------------------------------------------------------------------------

    def append(self, source: Any, progress: Progress | None = None) -> int:
        """Add rows; they are on disk, synced, when this returns.

        Args:
            source: anything `Database.open` takes, with the columns of the store; or an iterator of such
                things, which become one version.
            progress: called as `progress("writing rows", done, 0)`.

        Returns:
            The number of the new version.

        Raises:
            DataError: columns are missing, too many, or of another type. Nothing was added.
            StoreBusyError: another process is writing.
            StoreFullError: the disk is full. Nothing was added.
        """
        return self.store.append(_told(_parts(source), progress))

    def delete(self, where: str) -> int:
        """Take out the rows that satisfy a SQL predicate; older versions keep them.

        Args:
            where: as in `ask`; the whole table is `data`: `"income > (select avg(income) from data)"`.

        Returns:
            How many rows went.

        Raises:
            QueryError: the predicate does not run.
        """
        schema = self.store.schema
        return self.store.delete_chosen(lambda blocks: matching(blocks, schema, where, deleted=True))

    def compact(self, keep: int | None = None, progress: Progress | None = None) -> int:
        """Rewrite small and thinned blocks into full ones.

        Args:
            keep: how many of the newest versions stay readable; None: all.
            progress: called as `progress(what, done, total)`.

        Returns:
            How many bytes of disk were freed.
        """
        return self.store.compact(keep, progress)

    # -- versions ---------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The one that is open."""
        return self.store.version

    def versions(self) -> list[Version]:
        """Every version that can be read, oldest first."""
        return self.store.versions()

    def at(self, version: int) -> Self:
        """The database as it was. It can be asked, not written."""
        return self._with(self.store.at(version))

    def refresh(self) -> bool:
        """Go to the newest version, whoever wrote it; True if there was a newer one."""
        return self.store.refresh()

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Compare every byte of this version with its checksum; empty where all is well."""
        return self.store.verify(progress)

    # -- within -----------------------------------------------------------------------------------------

    def _with(self, store: Store) -> Self:
        return type(self)(
            store,
            self.key,
            self.value,
            fold=self.fold,
            score=self.score,
            normalizer=self.normalizer,
            threshold=self.threshold,
            memory=self.memory,
        )

    def _rows(self, progress: Progress | None = None) -> Database | Streamed:
        """What answers for the version that is open."""
        if self._asked is None or self._asked[0] != self.version:
            if not len(self.store):
                raise DataError(f"{self.name} has no rows. Append some to answer from.")
            asked: Database | Streamed
            if self.streams:
                asked = Streamed(self.store, self.key, self.value, self.name, self.fold, progress)
            else:
                asked = Database(self.store.to_table(), self.key, self.value, self.name, self.fold)
            self._asked = (self.version, asked)
        return self._asked[1]

    def _numbers(self) -> int:
        """Bytes that key and value would take in memory, about."""
        names = dict.fromkeys((*self.key, self.value))
        rows, each = len(self.store), 0
        for name in names:
            type_ = self.store.schema.field(name).type
            width = getattr(type_, "list_size", 1)
            text = Column.of(self.store.empty([name]), name).kind in ("text", "category")
            # Cells as they are read, standardised, lifted; texts are Python's, folded and not.
            each += 200 if text else 4 * 8 * max(1, width)
        return rows * each


def create_stored(
    path: str | PathLike[str],
    source: Any,
    key: str | Sequence[str],
    value: str,
    *,
    fold: bool,
    score: str | None,
    normalizer: str | None,
    threshold: float | None,
    backend: str,
    memory: int | str,
    progress: Progress | None,
) -> StoredDatabase:
    """As `Database.create`."""
    import pyarrow as pa

    for name, check in ((score, named_score), (normalizer, named_normalizer)):
        if name is not None and not isinstance(name, str):
            raise OptionError(
                f"{name} cannot be kept with a store, which keeps names, such as 'gaussian:0.1'. Give its "
                "name, or give it to ask."
            )
        if name is not None:
            check(name)
    memory_bytes(memory)
    empty = isinstance(source, pa.Schema)
    tables = iter([source.empty_table()] if empty else _parts(source))
    first = next(tables, None)
    if first is None:
        raise DataError("the source gives no table, so there are no columns. Give a pyarrow schema.")
    keys = key_names(key, first.column_names)
    require_columns(first, (*keys, value), "the source")
    settings = {"key": list(keys), "value": value, "fold": fold}
    settings |= {"score": score, "normalizer": normalizer, "threshold": threshold}
    schema = first.schema.remove_metadata()
    for name in (*keys, value):
        Column.of(first.slice(0, 0), name)
    store = stores.create(path, schema, metadata={_SETTINGS: settings}, backend=backend)
    made = StoredDatabase(
        store,
        keys,
        value,
        fold=fold,
        score=score,
        normalizer=normalizer,
        threshold=threshold,
        memory=memory,
    )
    try:
        store.append(_told(chain([first], tables), progress))
    except BaseException:
        stores.remove(path)
        raise
    return made


def open_stored(
    path: str | PathLike[str],
    key: str | Sequence[str] | None,
    value: str | None,
    *,
    fold: bool | None,
    memory: int | str,
    damaged: str,
) -> StoredDatabase:
    """As `Database.open` of a store."""
    store = stores.open(path, damaged=damaged)
    kept: Mapping[str, Any] = store.metadata.get(_SETTINGS, {})
    key = kept.get("key") if key is None else key
    value = kept.get("value") if value is None else value
    if key is None or value is None:
        lacking = "key" if key is None else "value"
        raise DataError(
            f"the store {Path(path).name!r} does not say which column is the {lacking}. "
            f"It has {', '.join(store.schema.names)}. Name key and value."
        )
    same = list(key_names(key, store.schema.names)) == kept.get("key")
    how = {name: kept.get(name) if same else None for name in ("score", "normalizer", "threshold")}
    folds = bool(kept.get("fold", True)) if fold is None else fold
    return StoredDatabase(store, key, value, fold=folds, memory=memory, **how)


def _parts(source: Any) -> Iterator[Any]:
    """The tables in a source, or in each of an iterator of sources."""
    each: Iterable[Any] = source if isinstance(source, Iterator) else (source,)
    for one in each:
        for table in read_parts(one):
            yield plain(table)


def _told(tables: Iterable[Any], progress: Progress | None) -> Iterator[Any]:
    """The tables; how many rows went by is told."""
    rows = 0
    for table in tables:
        yield table
        rows += table.num_rows
        if progress is not None:
            progress("writing rows", rows, 0)
