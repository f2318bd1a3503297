"""The class `Database`, a table in memory that answers queries by attention over its rows.

For the rows (k_i, v_i) of a table D, Attention(q, D) = Σ a(q, k_i) v_i. A call to `Database.ask` proceeds as follows:

    io/sources.py              a file or frame becomes a table
    encoders/columns.py        key and value columns become arrays
    keys/choose.py             a comparison is chosen
    execute/in_memory.py       the engine computes attention (execute/streamed.py for stores larger than memory)
    execute/aggregates.py      the output becomes averages or votes
    answer.py                  values are returned with the rows that support them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from qkv.core.formatting import counted, format_value
from qkv.core.printable import html_table
from qkv.core.progress import Progress
from qkv.database.choice_cache import ChoiceCache
from qkv.database.execute.ask_options import AskDefaults
from qkv.database.execute.in_memory import InMemoryExecutor
from qkv.database.io import duckdb_reader
from qkv.database.io.bad_cells import add_cell_notes
from qkv.database.io.paths import is_paths, is_stored, source_files
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.sources import describe, read, requested_columns
from qkv.database.protocol import Queryable
from qkv.encoders.arrow_columns import records_of, with_microseconds
from qkv.encoders.columns import with_periods
from qkv.errors import DataError, OptionError
from qkv.store import ObjectPath, StorageOptions

if TYPE_CHECKING:
    from qkv.database.storage.stored import StoredDatabase
    from qkv.encoders.encoder import Encoder


class Database(Queryable):
    """A table in memory that answers queries. It has one or more key columns and a value column.

    Example:
        >>> table = {"name": ["John Doe", "Jane Roe"], "major": ["psychology", "physics"]}
        >>> students = Database.open(table, key="name", value="major")
        >>> students.ask("john doe").value
        'psychology'
        >>> students.swap().ask("psychology").value
        'John Doe'
    """

    def __init__(self, table: pa.Table, key: str | Sequence[str], value: str, name: str, fold: bool = True) -> None:
        self._executor: InMemoryExecutor = InMemoryExecutor(table, key, value, name, fold)
        self.key, self.value, self.name = self._executor.key, value, name
        self.votes = self._executor.votes

    # -- construction -----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | PathLike[str] | ObjectPath,
        source: object,
        key: str | Sequence[str],
        value: str,
        *,
        fold: bool = True,
        score: str | None = None,
        normalizer: str | None = None,
        min_similarity: float | None = None,
        max_distance: float | None = None,
        encoder: str | PathLike[str] | Encoder | None = None,
        backend: str = "arrow",
        memory: int | str = "512 MiB",
        progress: Progress | None = None,
        on_bad_cell: str = "exclude",
        encoding: str | None = None,
        delimiter: str | None = None,
        decimal: str | None = None,
        date_format: str | None = None,
        header_row: int | None = None,
        skip_footer: int | None = None,
        cyclic: Mapping[str, float] | None = None,
        storage_options: StorageOptions = None,
    ) -> StoredDatabase:
        """Create a database on disk with its first rows as version 1, and save its settings.

        If this is interrupted or killed, there is no database, and the same call can be repeated.

        Args:
            path: a folder that does not exist or is empty, or a URL such as `s3://bucket/people`.
            source: the first rows, anything that `open` takes, or an iterator of such sources; or a pyarrow
                schema for a database without rows.
            key: as in `open`.
            value: as in `open`.
            fold: as in `open`.
            score: the default score of `ask`, by name.
            normalizer: the default normalizer of `ask`, by name.
            min_similarity: the default `min_similarity` of `ask`.
            max_distance: the default `max_distance` of `ask`.
            encoder: maps keys and queries to vectors, which are then compared: "latent", "latent:100",
                "sentences", "table", the folder of a sentence model, a file of word vectors, or an object of
                `qkv.encoders`. It is fitted to the first rows and saved with the store.
            backend: "arrow", or "lance" (pip install "qkv[stores]").
            memory: as in `open`.
            progress: as in `append`.
            on_bad_cell: as in `append`.
            encoding: as in `open`.
            delimiter: as in `open`.
            decimal: as in `open`.
            date_format: as in `open`.
            header_row: as in `open`.
            skip_footer: as in `open`.
            cyclic: as in `open`.
            storage_options: as in `open`.

        Raises:
            DataError: The path is not empty, a column is not in the source, or a bad cell is refused.
            StoreFullError: The disk is full. No files remain.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp() + "/pay"
            >>> Database.create(folder, {"years": [1.0, 3.0], "pay": [10.0, 30.0]}, key="years", value="pay")
            Database(pay: years → pay, 2 rows, version 1)
            >>> Database.open(folder).ask(2.0, score="gaussian:1").value
            20.0
        """
        from qkv.database.storage.create import create_database  # tables in memory start without what stores need

        return create_database(
            path,
            source,
            key,
            value,
            fold=fold,
            defaults=AskDefaults(score, normalizer, min_similarity, max_distance),
            encoder=encoder,
            backend=backend,
            memory=memory,
            progress=progress,
            options=ReadOptions(encoding, delimiter, decimal, on_bad_cell, date_format, header_row, skip_footer),
            cyclic=cyclic,
            storage_options=storage_options,
        )

    @overload
    @classmethod
    def open(
        cls,
        source: str | PathLike[str] | ObjectPath,
        *,
        memory: int | str = ...,
        damaged: str = ...,
        cache: bool = ...,
        cluster: str | None = ...,
        storage_options: StorageOptions = ...,
    ) -> StoredDatabase: ...

    @overload
    @classmethod
    def open(
        cls,
        source: object,
        key: str | Sequence[str],
        value: str,
        *,
        fold: bool | None = ...,
        memory: int | str = ...,
        damaged: str = ...,
        encoding: str | None = ...,
        delimiter: str | None = ...,
        decimal: str | None = ...,
        on_bad_cell: str = ...,
        date_format: str | None = ...,
        header_row: int | None = ...,
        skip_footer: int | None = ...,
        cyclic: Mapping[str, float] | None = ...,
        cache: bool = ...,
        cluster: str | None = ...,
        storage_options: StorageOptions = ...,
    ) -> Queryable: ...

    @classmethod
    def open(
        cls,
        source: object,
        key: str | Sequence[str] | None = None,
        value: str | None = None,
        *,
        fold: bool | None = None,
        memory: int | str = "512 MiB",
        damaged: str = "refuse",
        encoding: str | None = None,
        delimiter: str | None = None,
        decimal: str | None = None,
        on_bad_cell: str = "exclude",
        date_format: str | None = None,
        header_row: int | None = None,
        skip_footer: int | None = None,
        cyclic: Mapping[str, float] | None = None,
        cache: bool = True,
        cluster: str | None = None,
        storage_options: StorageOptions = None,
    ) -> Queryable:
        """Open a file, data frame, table, dict of columns, list of records, or store as a database.

        Args:
            source: a path that ends in .csv, .tsv, .txt, .jsonl, .ndjson, .json, .parquet, .arrow or .feather
                (each also with .gz or .zst), a folder of such files, a pattern (`"parts/*.csv"`) or a list of
                paths, whose rows become one table; a file opened in binary mode; a pandas or polars frame, a
                pyarrow table, a dict of lists or arrays (a matrix is a column of vectors), a list of dicts; or
                the folder of a store made by `create`, or its URL: `s3://bucket/people`, `gs://`, `az://`,
                `https://` or one of fsspec (pip install "qkv[stores]").
            key: one column name, a list of names, or names separated by commas: `"longitude,latitude"`. None: the
                key that is saved with the store.
            value: the name of the value column. None: the value that is saved with the store.
            fold: whether texts are compared without regard to case, width of characters (NFKC) and repeated
                white space; None: as the store was created, otherwise True.
            memory: for stores: rows that need more than this are read block by block by each `ask`.
            damaged: for stores: "refuse" raises if a file is damaged, "skip" continues without its rows.
            encoding: for text files: "utf-16", "latin-1", "cp1252" or another encoding of Python; None: UTF-8.
            delimiter: for delimited files: the character between cells; None: detected.
            decimal: for delimited files: the decimal separator, "." or ","; None: detected, and "." if no cell of a
                column decides.
            on_bad_cell: "exclude" leaves out the rows of a table whose key or value is no finite number in a column
                of numbers, or no date in a column of dates, and counts these cells in the notes of answers;
                "refuse" raises; "text" reads all cells of such a column of a CSV or JSON file as texts.
            date_format: for delimited and JSON files: the format of dates that are not in ISO 8601, by directives of
                `datetime.strptime`, such as "%m/%d/%Y"; None: detected. If no cell of a column decides between day
                and month, the day is first, which a note of answers says. %z reads time zones.
            header_row: for delimited files: the line that holds the names of the columns, from 1; None: detected.
            skip_footer: for delimited files: the number of lines at the end that are left out, such as a total;
                None: detected. A note of answers says which lines were left out.
            cyclic: the periods of columns whose numbers go round, such as `{"hour": 24}` or `{"direction": 360}`: 23
                and 1 o'clock are two hours apart, and the mean of 350° and 10° is 0°. None: no column is cyclic.
            cache: whether the bandwidth, the no-match distance and the interval factors of 20,000 rows or more are
                saved: those of files in the user's cache folder (the environment variable `QKV_CACHE` names another
                one), those of a store in its folder `notes`.
            cluster: for stores: "processes", or "processes:4" for four of them, reads the rows in worker processes;
                "ray", "ray:4" or an address "ray://…" in actors of Ray. The answers are the same.
            storage_options: for URLs: settings of the object store, such as `region`, `endpoint` or `profile`; None:
                those of the environment.

        Raises:
            OptionError: An option of text files is not allowed.
            DataError: There is no such file or column, it cannot be read, or no row has both key and value.
            StorageError: The object store of a URL cannot be reached or refuses a request.

        Example:
            >>> Database.open({"gpa": [3.0, 3.5], "salary": [50_000, None]}, key="gpa", value="salary")
            Database(the dict: gpa → salary, 1 row, 1 left out)
        """
        options = ReadOptions(encoding, delimiter, decimal, on_bad_cell, date_format, header_row, skip_footer)
        if is_stored(source):
            from qkv.database.storage.create import open_database

            if options != ReadOptions(on_bad_cell=on_bad_cell):
                raise OptionError(
                    "encoding, delimiter, decimal, date_format, header_row and skip_footer must be None for a store. "
                    "Pass them to create and append."
                )
            if cyclic:
                raise OptionError(f"cyclic must be None for a store, got {dict(cyclic)}. Pass it to create.")
            if on_bad_cell != "exclude":
                raise OptionError(
                    f"on_bad_cell must be 'exclude' for a store, got {on_bad_cell!r}. Pass it to create and append."
                )
            assert isinstance(source, (str, PathLike, ObjectPath))
            return open_database(
                source,
                key,
                value,
                fold=fold,
                memory=memory,
                damaged=damaged,
                cache=cache,
                cluster=cluster,
                storage_options=storage_options,
            )
        if storage_options is not None:
            raise OptionError(f"storage_options must be None for {describe(source)}. Pass them with a URL.")
        if cluster is not None:
            raise OptionError(
                f"cluster must be None for {describe(source)}, got {cluster!r}. Create a store with Database.create."
            )
        if key is None or value is None:
            raise DataError(
                f"{'key' if key is None else 'value'} must be the name of a column of {describe(source)}, got None. "
                "Name the key and value columns; only stores save these names."
            )
        required = requested_columns(key, value, source, options)
        identity = {"reading": asdict(options), "columns": list(required), "cyclic": dict(cyclic or {})}
        choices = ChoiceCache.of_files(source_files(source) if cache and is_paths(source) else [], identity)
        table = with_periods(with_microseconds(read(source, required, options)), cyclic)
        out = cls(table, key, value, describe(source), fold is not False)
        columns = {"key": list(out.key), "value": value, "fold": fold is not False}
        out._executor.choices = choices.with_options(**columns).for_rows(table.num_rows)
        return out

    @classmethod
    def sql(
        cls,
        query: str,
        key: str | Sequence[str],
        value: str,
        *,
        tables: Mapping[str, object] | None = None,
        fold: bool = True,
        cyclic: Mapping[str, float] | None = None,
    ) -> Database:
        """Run a SQL query with DuckDB, and open its result as a database in memory. No DuckDB extension is downloaded.

        Args:
            query: a SELECT statement, which may read files and `tables`.
            key: as in `open`.
            value: as in `open`.
            fold: as in `open`.
            tables: anything that `open` takes, by its name in the query.
            cyclic: as in `open`.

        Raises:
            QueryError: The query fails.

        Example:
            >>> rows = {"name": ["Zhang", "Li"], "monthly": [100, 200]}
            >>> Database.sql("select name, 12 * monthly as income from pay", key="name", value="income",
            ...              tables={"pay": rows}).ask("Li").value
            2400.0
        """
        given = {name: read(source) for name, source in (tables or {}).items()}
        result = duckdb_reader.run_sql(query, given)
        result = add_cell_notes(result, requested_columns(key, value), "exclude", "the SQL result")
        return cls(with_periods(with_microseconds(result), cyclic), key, value, "the SQL result", fold)

    # -- Queryable --------------------------------------------------------------------------------------

    def swap(self) -> Database:
        return Database(self._executor.table, self.value, self._single_key(), self.name, self._executor.fold)

    def _repr_html_(self) -> str:
        """Return the first rows as a table, which notebooks show."""
        records = records_of(self.table, list(range(min(5, self.table.num_rows))))
        names = [name for name in (*self.key, self.value) if all(name in record for record in records)]
        rows = [[format_value(record[name]) for name in names] for record in records]
        return html_table(repr(self), rows, names)

    def __repr__(self) -> str:
        rows = counted(len(self), "row", "rows")
        out = self.table.num_rows - len(self)
        rows += f", {out:,} left out" if out else ""
        return f"Database({self.name}: {', '.join(self.key)} → {self.value}, {rows})"
