"""The class `Queryable`, which is the abstract base class of databases in memory and on disk."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from qkv.core.printable import read_escapes
from qkv.core.progress import Progress
from qkv.database.answer import Answer, Entry
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import Executor
from qkv.database.keys.queries import split_text
from qkv.encoders.columns import Column
from qkv.errors import DataError, QueryError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

if TYPE_CHECKING:
    import duckdb

    from qkv.database.candidates.candidates import Candidates
    from qkv.database.execute.row_reader import StoredRows


def ask_printed(ask: Callable[[object], Answer], queries: object, columns: int) -> Answer:
    """Answer queries, whose texts are read with their escapes if a key matches better so.

    Args:
        ask: answers queries.
        queries: as in `Database.ask`.
        columns: the number of key columns.
    """
    answer = ask(queries)
    read = [_read(entry.query, columns) for entry in answer.entries]
    places = [place for place, entry in enumerate(answer.entries) if read[place] is not entry.query]
    if not places:
        return answer
    entries = list(answer.entries)
    for place, other in zip(places, ask([read[place] for place in places]).entries, strict=True):
        given = entries[place]
        if other.found and (not given.found or _nearness(other) >= _nearness(given)):
            entries[place] = dataclasses.replace(other, query=given.query)
    return dataclasses.replace(answer, entries=tuple(entries))


def with_hints(answer: Answer) -> Answer:
    """Return an answer in which the reasons of queries with escapes say how the escapes are read."""
    hint = "; printed=True reads the escapes in the query"
    entries = [
        entry
        if entry.found or _read(entry.query, len(answer.keys)) is entry.query
        else dataclasses.replace(entry, reason=entry.reason + hint)
        for entry in answer.entries
    ]
    return dataclasses.replace(answer, entries=tuple(entries))


def _read(query: object, columns: int) -> object:
    """Return a query with the characters that its texts hold as escapes; the query itself if it has no escapes."""
    if isinstance(query, tuple):
        parts = tuple(_read(part, 1) for part in query)
        return query if all(part is given for part, given in zip(parts, query, strict=True)) else parts
    if not isinstance(query, str) or read_escapes(query) == query:
        return query
    if columns == 1:
        return read_escapes(query)
    # The parts are separated first, as an escape may stand for a line break.
    try:
        return tuple(read_escapes(part) for part in split_text(query))
    except QueryError:
        return query


def _nearness(entry: Entry) -> float:
    """Return the similarity of the first row; 0 if keys are equal or different."""
    return 0.0 if entry.nearness is None or not len(entry.nearness) else float(entry.nearness[0])


class Queryable(ABC):
    """Base class of databases, which are tables with key columns and a value column that answer queries.

    `Database` holds a table in memory, and `StoredDatabase` a store on disk.

    Attributes:
        key: the names of the key columns.
        value: the name of the value column.
        name: the name of the table in messages.
        votes: whether an answer is the weighted vote of the values (texts, categories, booleans, identifiers) rather
            than their average, unless `aggregate` or `where` is given.

    Example:
        >>> from qkv import Database
        >>> from qkv.database import Queryable
        >>> table = {"name": ["John Smith", "Li Mu"], "income": [48_200, 55_000]}
        >>> people = Database.open(table, key="name", value="income")
        >>> isinstance(people, Queryable), people.key, people.value, people.votes
        (True, ('name',), 'income', False)
    """

    key: tuple[str, ...]
    value: str
    name: str
    votes: bool
    _executor: Executor

    def ask(
        self,
        queries: object,
        *,
        score: Score | str | None = None,
        normalizer: Normalizer | str | None = None,
        mask: Mask | None = None,
        where: str | None = None,
        top: int = 10,
        min_similarity: float | None = None,
        max_distance: float | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        on_bad_query: str = "refuse",
        aggregate: str | None = None,
        printed: bool = False,
        candidates: Candidates | None = None,
        tolerance: float = 0.0,
    ) -> Answer:
        r"""Answer one or more queries by attention over the rows of the table.

        Args:
            queries: one query, or a list or data frame of several. A query is one value for a single key column,
                and a tuple, a dict or a text with commas for several key columns.
            score: a score or its name (`"jaro-winkler"`, `"gaussian:0.1"`); None: see
                `qkv.database.keys.choose`, or the score saved with a store.
            normalizer: a normalizer or its name (`"topk:10:0.02"`); None: the normalizer of the comparison.
            mask: a mask over the rows of the table, such as `masks.AllowedKeys(array)`.
            where: a SQL predicate over the table's columns, `"city = 'Oslo'"`; other tables cannot be read.
            top: number of rows to return as evidence. It does not affect the value.
            min_similarity: the least similarity of a match, for keys that are compared by similarity, such as texts
                and vectors; None: see `qkv.database.keys.choose`.
            max_distance: the largest distance of a match, in the unit in which answers state distances, for keys
                that are compared by distance, such as numbers and dates; None: see `qkv.database.keys.choose`.
            seed: random seed of normalizers that sample.
            progress: called as `progress(description, done, total)` during long computations.
            on_bad_query: "refuse" raises if a query does not fit the key; "report" answers it by "no match" with
                the reason, sets `Answer.invalid`, and takes each element of a list as one query.
            aggregate: "mean", the weighted mean; "vote", the value with the largest total weight; or "local-linear",
                the value at the query of the line through the rows near it, for keys and values of numbers or dates:
                without bias at the edges of the keys and on slopes, see `qkv.estimators.regression.local_linear`,
                `Answer.gradient` and `Answer.fit_note`. None: a vote for texts, categories, booleans and identifiers,
                otherwise the mean. Texts, categories and booleans vote also if `aggregate` is "mean".
            printed: whether texts are keys as answers print them, with escapes such as ``\x09`` for a tab and
                ``\x20`` for a space at an end, which are read unless the text as it is matches a key better.
            candidates: an approximate index of the vectors of the key, to whose rows answers are confined; their
                recall is measured, see `Answer.recall`. None: all rows are compared.
            tolerance: the largest share of the weights of a softmax that may be left out where that saves time, in a
                compressed store; see `Answer.omitted`. 0: all rows count.

        Raises:
            QueryError: A query does not fit the key, or the predicate fails.
            OptionError: A name is unknown, `top` is not a positive integer, the key is not compared by the measure of a
                limit, or the key, the value or the normalizer does not allow for the aggregate.
            DataError: A store has no rows.
            RefusedError: The rows of a store exceed its memory limit, and the normalizer samples or needs all
                weights at once.

        Example:
            >>> from qkv.database import Database
            >>> table = {"years": [1, 2, 3, 4, 5, 6], "pay": [10, 12, 14, 16, 18, 20]}
            >>> pay = Database.open(table, key="years", value="pay")
            >>> answer = pay.ask(3.5, score="boxcar:1")
            >>> answer.value, answer.spread, answer.perplexity
            (15.0, 1.0, 2.0)
        """
        first = score, normalizer, mask, where, top, min_similarity, max_distance
        options = AskOptions(*first, seed, progress, on_bad_query, aggregate, printed, candidates, tolerance)
        ask = self._ask
        if printed:
            return ask_printed(lambda given: ask(given, options), queries, len(self.key))
        return with_hints(ask(queries, options))

    def ask_batches(
        self,
        queries: object,
        *,
        on: Mapping[str, str] | str | None = None,
        id: str | None = None,
        score: Score | str | None = None,
        normalizer: Normalizer | str | None = None,
        mask: Mask | None = None,
        where: str | None = None,
        top: int = 3,
        min_similarity: float | None = None,
        max_distance: float | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        aggregate: str | None = None,
    ) -> pa.RecordBatchReader:
        """Answer a relation of queries by a relation of answers, which is computed as it is read.

        Each row holds the columns of a query, then value, probability (for votes), standard_error, lower and upper
        (the 90 % prediction interval), spread, effective_rows, found, reason (of a query without a match, or that
        cannot be read) and evidence: a list of structs with the id, the weight, and the similarity or distance of
        the rows with the largest weights. A column of the queries with one of these names gets the prefix `query_`.

        The result is accepted by DuckDB (`duckdb.from_arrow`), by polars and by the writers of pyarrow, and
        `read_all()` makes a table of it. Queries and answers are read in parts, so that they do not fill memory.

        Args:
            queries: a source of `Database.open` except a store, or an object with an Arrow stream, such as a DuckDB
                relation or a record batch reader.
            on: the columns of the queries by key column, as a mapping or a text such as `"name=guest,city=town"`;
                None: the columns with the names of the key columns, or the only column.
            id: the column of the database by which evidence names rows; None: the index of the row, from 0.
            score: a score or its name, as in `ask`.
            normalizer: a normalizer or its name, as in `ask`.
            mask: a mask over the rows of the table.
            where: a SQL predicate over the columns of the table.
            top: number of rows of evidence. It does not affect the value.
            min_similarity: the least similarity of a match, as in `ask`.
            max_distance: the largest distance of a match, as in `ask`.
            seed: random seed of normalizers that sample.
            progress: called as `progress("answering", done, 0)`.
            aggregate: "mean", "vote" or "local-linear", as in `ask`.

        Raises:
            QueryError: A column of the queries does not exist or cannot fit its key, or the predicate fails.
            OptionError: A name is unknown, or `top` is not a positive integer.
            DataError: The queries cannot be read, or `id` is no column.

        Example:
            >>> from qkv.database import Database
            >>> table = {"years": [1, 2, 3, 4, 5, 6], "pay": [10, 12, 14, 16, 18, 20]}
            >>> pay = Database.open(table, key="years", value="pay")
            >>> answers = pay.ask_batches({"name": ["Li", "Hu"], "years": [3.5, 9.0]}, score="boxcar:1")
            >>> answers.read_all().select(["name", "value", "found"]).to_pylist()
            [{'name': 'Li', 'value': 15.0, 'found': True}, {'name': 'Hu', 'value': None, 'found': False}]
        """
        from qkv.database.relations.answer_relation import AnswerRelation
        from qkv.database.relations.query_relation import open_relation

        limits = min_similarity, max_distance
        options = AskOptions(score, normalizer, mask, where, top, *limits, seed, progress, aggregate=aggregate)
        return AnswerRelation(self, open_relation(queries, self.key, on), options, id).reader()

    def create_function(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        *,
        id: str | None = None,
        score: Score | str | None = None,
        normalizer: Normalizer | str | None = None,
        where: str | None = None,
        top: int = 3,
        min_similarity: float | None = None,
        max_distance: float | None = None,
        aggregate: str | None = None,
    ) -> None:
        """Register a function of a DuckDB connection that answers a query per row: `select pay(years).value from t`.

        The function has one parameter per key column and returns a struct with the columns of answers of
        `ask_batches`; `unnest(pay(years))` makes columns of it. DuckDB calls it for 2,048 rows at a time.

        Args:
            connection: the connection.
            name: the name of the function.
            id: the column of the database by which evidence names rows; None: the index of the row, from 0.
            score: a score or its name, as in `ask`.
            normalizer: a normalizer or its name, as in `ask`.
            where: a SQL predicate over the columns of the table.
            top: number of rows of evidence. It does not affect the value.
            min_similarity: the least similarity of a match, as in `ask`.
            max_distance: the largest distance of a match, as in `ask`.
            aggregate: "mean", "vote" or "local-linear", as in `ask`.

        Raises:
            OptionError: An option is not allowed, the normalizer samples, or the name is taken.
            QueryError: The predicate fails.
            DataError: `id` is no column.

        Example:
            >>> import duckdb
            >>> from qkv.database import Database
            >>> table = {"years": [1, 2, 3, 4, 5, 6], "pay": [10, 12, 14, 16, 18, 20]}
            >>> connection = duckdb.connect()
            >>> Database.open(table, key="years", value="pay").create_function(connection, "pay", score="boxcar:1")
            >>> connection.sql("select i, pay(i).value from range(3, 5) t(i)").fetchall()
            [(3, 14.0), (4, 16.0)]
        """
        from qkv.database.relations.duckdb_function import create_function

        options = AskOptions(score, normalizer, None, where, top, min_similarity, max_distance, aggregate=aggregate)
        create_function(self, connection, name, options, id)

    @property
    def _ask(self) -> Callable[[object, AskOptions], Answer]:
        """The function that answers queries with the options of a call."""
        return self._executor.ask

    @abstractmethod
    def swap(self) -> Queryable:
        """Return a database over the same table with the key and value columns exchanged. The table is not copied.

        Raises:
            DataError: There is more than one key column.
        """

    @property
    def table(self) -> pa.Table | StoredRows:
        """The rows of the database, as a pyarrow table or as an object that reads slices of rows from the store."""
        return self._executor.table

    @property
    def missing_cells(self) -> dict[str, int]:
        """The number of missing cells of each key or value column that has any.

        Rows with a missing cell are excluded.
        """
        return self._executor.missing_cells

    def column(self, name: str) -> Column:
        """Return the key or value column `name` as NumPy arrays, or a sample of its rows if the table is large.

        If the table exceeds the memory limit, the arrays hold a sample of its rows.

        Raises:
            DataError: The column is neither a key column nor the value column.
        """
        return self._executor.column(name)

    def largest(self, name: str) -> float:
        """Return the largest magnitude of the numbers of a key column that is compared as numbers; otherwise 0."""
        executor = self._executor
        found = [column for column in executor.query_columns if column.name == name and column.kind == "number"]
        return executor.chooser.largest(found[0]) if found else 0.0

    def complete_columns(self, where: str | None = None) -> tuple[Column, ...]:
        """Return the key columns and the value column of the rows that have all of them and satisfy a predicate.

        If the table exceeds the memory limit, they are a sample of these rows.

        Args:
            where: as in `ask`.

        Raises:
            QueryError: The predicate fails.

        Example:
            >>> from qkv.database import Database
            >>> pay = Database.open({"years": [1, None, 3], "pay": [10, 12, 14]}, key="years", value="pay")
            >>> [column.cells.tolist() for column in pay.complete_columns("pay > 10")]
            [[3.0], [14.0]]
        """
        return self._executor.complete_columns(where)

    def __len__(self) -> int:
        """Return the number of rows that have a value in every key column and in the value column."""
        return self._executor.complete_rows

    def _single_key(self) -> str:
        if len(self.key) > 1:
            raise DataError(
                f"swap requires a single key column, got {len(self.key)}: {', '.join(self.key)}. "
                "Open the table with one of these columns as the key."
            )
        return self.key[0]
