"""A database that lives on disk: rows are appended and deleted, versions stay, and `ask` reads what it must.

Rows that fit the memory allowed are asked as any table is. Others are read block by block, with the same
answers; the plan says which.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from qkv.core.progress import Progress
from qkv.database.answer import Answer
from qkv.database.database import Database
from qkv.database.execute.row_reader import matching
from qkv.database.execute.streamed import Streamed
from qkv.database.io.sources import iterate_tables, report_rows, require_columns
from qkv.database.keys.columns import Column, key_names
from qkv.database.keys.part_registry import parse_score
from qkv.database.storage.encoding import Encoding
from qkv.errors import DataError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.plan.cost import memory_bytes
from qkv.scores.base import Score
from qkv.store import Block, Damage, Store, Version

__all__ = ["StoredDatabase"]

_FEW = 64


class StoredDatabase(Database):
    """A store, asked as a table; made by `Database.create` and `Database.open`.

    Fields:
        store: `qkv.store.Store`, the rows and their versions.
        key, value, name: as of `Database`.
        fold: texts are compared without regard to case.
        score, normalizer, threshold: by which `ask` compares where it is told nothing else.
        encoding: what makes vectors of keys and queries; None: keys are compared as they are.

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
        encoding: Encoding | None = None,
    ) -> None:
        self.store = store
        self.encoding = encoding
        self.key = key_names(key, store.schema.names)
        self.value = value
        self.name = store.path.name
        self.fold = fold
        self.score, self.normalizer, self.threshold = score, normalizer, threshold
        self.memory = memory_bytes(memory)
        require_columns(store.empty(self._shown), (*self.key, value), self.name)
        for column in (*self.key, value):
            Column.from_table(store.empty([column]), column)  # what can be neither compared nor averaged is said now
        self._asked: dict[bool, tuple[int, Database | Streamed]] = {}
        self._examples: tuple[int, list[Column]] = (-1, [])

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

        A store with an encoder compares the vectors of keys and queries, unless the score is one of texts,
        such as `"spelling"`, or `"exact"`; the normalizer and threshold that it keeps are then not meant.

        Raises:
            DataError: the store has no rows yet; otherwise as `Database.ask`.
            RefusedError: the normalizer draws, or needs all weights at once, and the rows do not fit the
                memory allowed.
        """
        same = score is None or score == self.score
        score = self.score if score is None else score
        vectors = self._by_vectors(score)
        asked = self._rows(vectors, progress)
        if vectors == self._by_vectors(self.score):
            normalizer = self.normalizer if normalizer is None else normalizer
            # A least cosine is no largest distance.
            if threshold is None and (same or not vectors):
                threshold = self.threshold
        how: dict[str, Any] = {
            "score": score,
            "normalizer": normalizer,
            "mask": mask,
            "where": where,
            "top": top,
            "threshold": threshold,
            "progress": progress,
        }
        if not isinstance(asked, Streamed):
            how["seed"] = seed
        if not vectors or self.encoding is None:
            return asked.ask(queries, **how)
        encoded = self.encoding.queries(queries, self._few())
        return self.encoding.told(asked.ask(encoded.queries, **how), encoded, self.key)

    def swap(self) -> "StoredDatabase":
        """The same store with key and value in each other's place; what the store keeps stays as it is.

        The new key is compared as it is: an encoder is of one key.
        """
        if len(self.key) > 1:
            raise DataError(
                f"the key has {len(self.key)} columns ({', '.join(self.key)}) and a value is one, so they "
                "cannot change places. Open the store with one of them as key."
            )
        how: dict[str, Any] = {"fold": self.fold, "memory": self.memory, "encoding": self.encoding}
        return StoredDatabase(self.store, self.value, self.key[0], **how)

    @property
    def streams(self) -> bool:
        """Whether `ask` reads blocks one after another, because the rows do not fit the memory allowed."""
        return self._streams(self._by_vectors(self.score))

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
        return Column.from_table(self.store.empty([self.value]), self.value).kind in ("text", "category", "boolean")

    def column(self, name: str) -> Column:
        """A key column or the value column; of evenly spread rows where they do not fit the memory."""
        # A key that was encoded is itself no column of vectors.
        return self._rows(False if name in self.key else None).column(name)

    def __len__(self) -> int:
        return len(self._rows()) if len(self.store) else 0

    def __repr__(self) -> str:
        count = len(self.store)
        rows = f"{count:,} row{'s' * (count != 1)}"
        key = ", ".join(self.key)
        if self._by_vectors(None) and self.encoding is not None:
            key += f" by {self.encoding.name}"
        return f"Database({self.name}: {key} → {self.value}, {rows}, version {self.version})"

    # -- writing ----------------------------------------------------------------------------------------

    def append(self, source: Any, progress: Progress | None = None) -> int:
        """Add rows; they are on disk, synced, when this returns.

        Args:
            source: anything `Database.open` takes, with the columns of the store; or an iterator of such
                things, which become one version.
            progress: called as `progress("writing rows", done, 0)`, or `progress("encoding rows", done, 0)`.

        Returns:
            The number of the new version.

        Raises:
            DataError: columns are missing, too many, or of another type. Nothing was added.
            StoreBusyError: another process is writing.
            StoreFullError: the disk is full. Nothing was added.
        """
        return self.store.append(self.arriving(iterate_tables(source), progress))

    def arriving(self, tables: Iterator[Any], progress: Progress | None = None, done: int = 0) -> Iterator[Any]:
        """Tables of rows as the store keeps them: with their vectors, where it has an encoder.

        `done` rows of the same work have theirs already.
        """
        if self.encoding is None:
            return report_rows(tables, progress)
        schema = self.store.empty(self._shown).schema
        return self.encoding.encoded((self.store.fit(table, schema) for table in tables), progress, done)

    def delete(self, where: str) -> int:
        """Take out the rows that satisfy a SQL predicate; older versions keep them.

        Args:
            where: as in `ask`; the whole table is `data`: `"income > (select avg(income) from data)"`.

        Returns:
            How many rows went.

        Raises:
            QueryError: the predicate does not run.
        """
        shown = self._shown
        schema = self.store.empty(shown).schema

        def chosen(blocks: Sequence[Block]) -> list[np.ndarray]:
            seen = [replace(block, table=block.table.select(shown)) for block in blocks]
            return matching(seen, schema, where, deleted=True)

        return self.store.delete_chosen(chosen)

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
            encoding=self.encoding,
        )

    @property
    def _shown(self) -> list[str]:
        """The columns that the user gave."""
        hidden = None if self.encoding is None else self.encoding.vector
        return [name for name in self.store.schema.names if name != hidden]

    def _by_vectors(self, score: Score | str | None) -> bool:
        """Whether what is compared are the vectors that the encoder made of the key."""
        if self.encoding is None or self.key != self.encoding.columns:
            return False
        kind: Any = parse_score(score).kind if isinstance(score, str) else score
        return kind is None or kind.accepts == "numbers"

    def _few(self) -> list[Column]:
        """The key columns of some rows, by which queries are read."""
        if self._examples[0] != self.version:
            few = self.store.take(np.arange(min(_FEW, len(self.store))), self.key)
            self._examples = self.version, [Column.from_table(few, name, False) for name in self.key]
        return self._examples[1]

    def _rows(self, vectors: bool | None = None, progress: Progress | None = None) -> Database | Streamed:
        """What answers for the version that is open, by the vectors of the encoder or by the key as it is."""
        if vectors is None:
            vectors = self._by_vectors(self.score)
        if vectors not in self._asked or self._asked[vectors][0] != self.version:
            if not len(self.store):
                raise DataError(f"{self.name} has no rows. Append some to answer from.")
            asked: Database | Streamed
            key, shown = self._compared(vectors), self._shown
            hidden = [name for name in self.store.schema.names if name not in shown]
            if self._streams(vectors):
                asked = Streamed(self.store, key, self.value, self.name, self.fold, progress, hidden)
            else:
                columns = [*shown, *hidden] if vectors else shown
                asked = Database(self.store.to_table(columns), key, self.value, self.name, self.fold)
                asked.table = asked.table.select(shown)
            # A row lacks its vector where it lacks its key.
            said = dict.fromkeys(hidden, ", ".join(self.key))
            asked.left_out = {said.get(name, name): count for name, count in asked.left_out.items()}
            current = {way: held for way, held in self._asked.items() if held[0] == self.version}
            self._asked = {**current, vectors: (self.version, asked)}
        return self._asked[vectors][1]

    def _compared(self, vectors: bool) -> tuple[str, ...]:
        """The columns whose cells are compared."""
        return (self.encoding.vector,) if vectors and self.encoding is not None else self.key

    def _streams(self, vectors: bool) -> bool:
        """Whether what is compared, and the value, would take more memory than is allowed, about."""
        names = dict.fromkeys((*self._compared(vectors), self.value))
        each = 0
        for name in names:
            type_ = self.store.schema.field(name).type
            width = getattr(type_, "list_size", 1)
            text = Column.from_table(self.store.empty([name]), name).kind in ("text", "category")
            # Cells as they are read, standardised, lifted; texts are Python's, folded and not.
            each += 200 if text else 4 * 8 * max(1, width)
        return len(self.store) * each > self.memory
