"""A database answers queries: Attention(q, D) = Σ a(q, k_i) v_i over the rows (k_i, v_i) of a table.

One call flows so: `sources` makes a table, `columns` reads its key and value into arrays, `keys` chooses
how keys are compared, the engine attends, `values` turns its output into answers, and `answer` holds them
with their evidence.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from qkv.core.progress import Progress
from qkv.database.answer import Answer
from qkv.database.execute.aggregates import values_of
from qkv.database.execute.in_memory import Asking
from qkv.database.io import duckdb_reader
from qkv.database.io.arrow_columns import with_microseconds
from qkv.database.io.sources import describe, read, require_columns
from qkv.database.keys.bandwidth import Bandwidth, leave_one_out, scott
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.columns import Column, key_names
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.part_registry import parse_normalizer
from qkv.database.keys.queries import Queries
from qkv.errors import DataError, OptionError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score
from qkv.store import is_store

if TYPE_CHECKING:
    from qkv.database.storage.stored import StoredDatabase

__all__ = ["Database"]


class Database:
    """A table, one or several of whose columns are keys, and one the value.

    Fields:
        table: the pyarrow table.
        key: the names of the key columns.
        value: the name of the value column.
        left_out: how many rows lack each of these columns; such rows take no part.

    Example:
        >>> table = {"name": ["John Doe", "Jane Roe"], "major": ["psychology", "physics"]}
        >>> students = Database.open(table, key="name", value="major")
        >>> students.ask("john doe").value
        'psychology'
        >>> students.swap().ask("psychology").value
        'John Doe'
    """

    def __init__(self, table: Any, key: str | Sequence[str], value: str, name: str, fold: bool = True) -> None:
        self.table = table
        self.key = key_names(key, table.column_names)
        self.value = value
        self.name = name
        self._fold = fold
        if not isinstance(value, str):
            raise DataError(f"the value is {value!r}, and one column name is wanted. Ask once for each column.")
        require_columns(table, (*self.key, value), name)
        if not table.num_rows:
            raise DataError(f"{name} has no rows. Give it some to answer from.")
        self._columns = tuple(Column.from_table(table, column, fold) for column in self.key)
        self._values = values_of(Column.from_table(table, value, fold))
        columns = {column.name: column for column in (*self._columns, self._values.column)}
        self.left_out = {n: int(column.missing.sum()) for n, column in columns.items() if column.missing.any()}
        self._kept = ~np.logical_or.reduce([column.missing for column in columns.values()])
        if not self._kept.any():
            raise DataError(f"no row of {name} has all of {', '.join(columns)}. Name columns that are filled together.")
        self._bandwidth: Bandwidth | None = None
        self._last_comparison: tuple[Any, Comparison] | None = None
        self._last_filter: tuple[str, np.ndarray] | None = None
        self._progress: Progress | None = None

    # -- opening ----------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        source: Any,
        key: str | Sequence[str],
        value: str,
        *,
        fold: bool = True,
        score: str | None = None,
        normalizer: str | None = None,
        threshold: float | None = None,
        encoder: Any = None,
        backend: str = "arrow",
        memory: int | str = "512 MiB",
        progress: Progress | None = None,
    ) -> "StoredDatabase":
        """Make a database that lives on disk. `open` finds it again, with all that is said here.

        Args:
            path: a folder that is not there yet, or is empty.
            source: the first rows, anything `open` takes, or an iterator of such things; or a pyarrow schema,
                for none yet.
            key, value, fold: as in `open`.
            score, normalizer, threshold: what `ask` does where it is told nothing else; parts by name.
            encoder: makes vectors of keys and queries, which are then compared: "latent", "latent:100",
                "sentences", "table", the folder of a sentence model, a file of word vectors, or an object of
                `qkv.encoders`. What it learns from the first rows is kept with the store.
            backend: "arrow", or "lance" (pip install "qkv[lance]").
            memory: as in `open`.
            progress: as in `append`.

        Raises:
            DataError: something is there already, or a column is not in the source.
            StoreFullError: the disk is full. Nothing is left behind.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp() + "/pay"
            >>> Database.create(folder, {"years": [1.0, 3.0], "pay": [10.0, 30.0]}, key="years", value="pay")
            Database(pay: years → pay, 2 rows, version 2)
            >>> Database.open(folder).ask(2.0, score="gaussian:1").value
            20.0
        """
        from qkv.database.storage.create import create_database

        return create_database(
            path,
            source,
            key,
            value,
            fold=fold,
            score=score,
            normalizer=normalizer,
            threshold=threshold,
            encoder=encoder,
            backend=backend,
            memory=memory,
            progress=progress,
        )

    @overload
    @classmethod
    def open(cls, source: str | PathLike[str], *, memory: int | str = ..., damaged: str = ...) -> "StoredDatabase": ...

    @overload
    @classmethod
    def open(
        cls,
        source: Any,
        key: str | Sequence[str],
        value: str,
        *,
        fold: bool | None = ...,
        memory: int | str = ...,
        damaged: str = ...,
    ) -> "Database": ...

    @classmethod
    def open(
        cls,
        source: Any,
        key: str | Sequence[str] | None = None,
        value: str | None = None,
        *,
        fold: bool | None = None,
        memory: int | str = "512 MiB",
        damaged: str = "refuse",
    ) -> "Database":
        """Open a file, a frame, a table, a dict of columns, a list of records, or a store.

        Args:
            source: a path that ends in .csv, .tsv, .txt, .jsonl, .ndjson, .json, .parquet, .arrow or .feather
                (each also with .gz); a pandas or polars frame, a pyarrow table, a dict of lists or arrays
                (a matrix is a column of vectors), a list of dicts; or the folder of a store that `create`
                made.
            key: a column, several, or several with commas: `"longitude,latitude"`. A store knows its own.
            value: the column that answers. A store knows its own.
            fold: compare texts without regard to case, width of characters (NFKC) and repeated white space;
                None: as the store was made, and for all else, yes.
            memory: of a store: rows that need more than this are read block by block whenever they are asked.
            damaged: of a store: "refuse" raises where a file is not what was written, "skip" goes on without
                its rows.

        Raises:
            DataError: there is no such file or column, it cannot be read, or no row has both key and value.

        Example:
            >>> Database.open({"gpa": [3.0, 3.5], "salary": [50_000, None]}, key="gpa", value="salary")
            Database(the dict: gpa → salary, 1 row, 1 left out)
        """
        if isinstance(source, (str, PathLike)) and is_store(source):
            from qkv.database.storage.create import open_database

            return open_database(source, key, value, fold=fold, memory=memory, damaged=damaged)
        if key is None or value is None:
            raise DataError(
                f"{describe(source)} does not say which column is the {'key' if key is None else 'value'}. "
                "Name key and value; only a store knows its own."
            )
        wanted = tuple(key.split(",")) if isinstance(key, str) else tuple(key)
        table = with_microseconds(read(source, tuple(str(name).strip() for name in (*wanted, value))))
        return cls(table, key, value, describe(source), fold is not False)

    @classmethod
    def sql(
        cls,
        query: str,
        key: str | Sequence[str],
        value: str,
        *,
        tables: Mapping[str, Any] | None = None,
        fold: bool = True,
    ) -> "Database":
        """Open what a SQL query gives. It runs in DuckDB, may name files, and fetches no extension.

        Args:
            query: a SELECT.
            key, value, fold: as in `open`.
            tables: anything `open` takes, by the name that the query gives it.

        Raises:
            QueryError: the query does not run.

        Example:
            >>> rows = {"name": ["Zhang", "Li"], "monthly": [100, 200]}
            >>> Database.sql("select name, 12 * monthly as income from pay", key="name", value="income",
            ...              tables={"pay": rows}).ask("Li").value
            2400.0
        """
        given = {name: read(source) for name, source in (tables or {}).items()}
        return cls(with_microseconds(duckdb_reader.run_sql(query, given)), key, value, "the SQL result", fold)

    def swap(self) -> "Database":
        """The same table with key and value in each other's place; nothing is copied.

        Raises:
            DataError: there are several key columns, and a value is one.
        """
        if len(self.key) > 1:
            raise DataError(
                f"the key has {len(self.key)} columns ({', '.join(self.key)}) and a value is one, so they "
                "cannot change places. Open the table with one of them as key."
            )
        return Database(self.table, self.value, self.key[0], self.name, self._fold)

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
        """Answer one query or many.

        Args:
            queries: a cell for one key column; a tuple, a record or a text with commas for several; a list or
                a frame of these for many.
            score: a score or its name (`"jaro-winkler"`, `"gaussian:0.1"`); None: see `qkv.database.keys.choose`.
            normalizer: a normalizer or its name (`"topk:10:0.02"`); None: the one that goes with the score.
            mask: over the rows of the table, such as `masks.Keys(array)`.
            where: a SQL predicate over the table's columns, `"city = 'Oslo'"`; it sees nothing else.
            top: how many rows are kept as evidence. It does not change the answer.
            threshold: the least similarity, or the largest distance, at which a key answers; None: see
                `qkv.database.keys.choose`.
            seed: for normalizers that draw.
            progress: called as `progress(what, done, total)` during long work.

        Raises:
            QueryError: a query does not fit the key, or the predicate does not run.
            OptionError: a name is unknown, or `top` is no positive number.

        Example:
            >>> table = {"years": [1, 2, 3, 4, 5, 6], "pay": [10, 12, 14, 16, 18, 20]}
            >>> pay = Database.open(table, key="years", value="pay")
            >>> answer = pay.ask(3.5, score="boxcar:1")
            >>> answer.value, answer.spread, answer.support
            (15.0, 1.0, 2.0)
        """
        if not isinstance(top, int) or top < 1:
            raise OptionError(f"top is {top!r}, and at least one row of evidence is shown. Give 1 or more.")
        given = isinstance(queries, Queries)
        parsed = queries if given else Queries.parse(queries, self._columns, self._fold)
        self._progress = progress
        try:
            comparison = self._comparison(score, threshold)
        finally:
            self._progress = None
        chosen = parse_normalizer(normalizer) if isinstance(normalizer, str) else normalizer
        kept = self._kept if where is None else self._kept & self._filter(where)
        asking = Asking(comparison, chosen or comparison.normalizer, self._values, kept, mask, top, seed)
        entries, plan = asking.run(parsed, progress)
        return Answer(
            entries,
            parsed.single,
            self.table,
            self.key,
            self.value,
            comparison.measure,
            plan,
            self._notes(comparison, asking),
        )

    @property
    def votes(self) -> bool:
        """Whether values are put to the vote (texts, categories, booleans) rather than averaged."""
        return self._values.votes

    def column(self, name: str) -> Column:
        """A key column or the value column, as arrays.

        Raises:
            DataError: the column is neither.
        """
        for column in (*self._columns, self._values.column):
            if column.name == name:
                return column
        raise DataError(f"{name!r} is neither key nor value of {self!r}.")

    def __len__(self) -> int:
        return int(self._kept.sum())

    def __repr__(self) -> str:
        rows = f"{len(self):,} row{'s' * (len(self) != 1)}"
        out = self.table.num_rows - len(self)
        rows += f", {out:,} left out" if out else ""
        return f"Database({self.name}: {', '.join(self.key)} → {self.value}, {rows})"

    # -- within -----------------------------------------------------------------------------------------

    def _comparison(self, score: Score | str | None, threshold: float | None) -> Comparison:
        # The last one is kept: streamed queries ask again and again in the same way.
        asked = (score, threshold)
        if self._last_comparison is None or self._last_comparison[0] != asked:
            keys = ComparisonChooser(self._columns, self._kept, self._choose_bandwidth, self._rule_of_thumb)
            self._last_comparison = (asked, keys.compare(score, threshold))
        return self._last_comparison[1]

    def _choose_bandwidth(self, points: np.ndarray) -> Bandwidth:
        if self._bandwidth is None:
            targets = self._values.targets(self._kept)
            if isinstance(targets, str):
                self._bandwidth = scott(len(self), points.shape[1], targets)
            else:
                self._bandwidth = leave_one_out(points[self._kept], targets, self._progress)
        return self._bandwidth

    def _rule_of_thumb(self, points: np.ndarray) -> Bandwidth:
        return scott(len(self), points.shape[1], "numbers beside other kinds of key")

    def _filter(self, where: str) -> np.ndarray:
        if self._last_filter is None or self._last_filter[0] != where:
            self._last_filter = (where, duckdb_reader.matching_rows(self.table, where))
        return self._last_filter[1]

    def _notes(self, comparison: Comparison, asking: "Asking") -> tuple[str, ...]:
        rows = f"{len(self):,} rows of {self.name}"
        if self.left_out:
            lacking = ", ".join(f"{name} missing in {count:,}" for name, count in self.left_out.items())
            rows += f"; {self.table.num_rows - len(self):,} left out ({lacking})"
        taking = int(asking.kept.sum())
        if taking != len(self):
            rows += f"; {taking:,} satisfy the predicate"
        return (rows, *comparison.notes, f"weights by {asking.normalizer_text}")
