"""The class `Queryable`, which is the abstract base class of databases in memory and on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from qkv.core.checks import check_choice, check_integers
from qkv.core.progress import Progress
from qkv.database.answer import Answer
from qkv.database.execute.base import AskOptions, Executor
from qkv.database.keys.columns import Column
from qkv.errors import DataError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.execute.row_reader import StoredRows

__all__ = ["Queryable"]


class Queryable(ABC):
    """Base class of databases, which are tables with key columns and a value column that answer queries.

    `Database` holds a table in memory, and `StoredDatabase` a store on disk.

    Attributes:
        key: the names of the key columns.
        value: the name of the value column.
        name: the name of the table in messages.
        votes: whether an answer is the weighted vote of the values (texts, categories, booleans) rather than their
            average.
    """

    key: tuple[str, ...]
    value: str
    name: str
    votes: bool

    def ask(
        self,
        queries: object,
        *,
        score: Score | str | None = None,
        normalizer: Normalizer | str | None = None,
        mask: Mask | None = None,
        where: str | None = None,
        top: int = 10,
        threshold: float | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        on_bad_query: str = "refuse",
    ) -> Answer:
        """Answer one or more queries by attention over the rows of the table.

        Args:
            queries: one query, or a list or data frame of several. A query is one value for a single key column,
                and a tuple, a dict or a text with commas for several key columns.
            score: a score or its name (`"jaro-winkler"`, `"gaussian:0.1"`); None: see
                `qkv.database.keys.choose`, or the score saved with a store.
            normalizer: a normalizer or its name (`"topk:10:0.02"`); None: the normalizer of the comparison.
            mask: a mask over the rows of the table, such as `masks.Keys(array)`.
            where: a SQL predicate over the table's columns, `"city = 'Oslo'"`; other tables cannot be read.
            top: number of rows to return as evidence. It does not affect the value.
            threshold: the least similarity, or the largest distance, of a match; None: see
                `qkv.database.keys.choose`.
            seed: random seed of normalizers that sample.
            progress: called as `progress(description, done, total)` during long computations.
            on_bad_query: "refuse" raises if a query does not fit the key; "report" answers it by "no match" with
                the reason, sets `Answer.invalid`, and takes each element of a list as one query.

        Raises:
            QueryError: A query does not fit the key, or the predicate fails.
            OptionError: A name is unknown, or `top` is not a positive integer.
            DataError: A store has no rows.
            RefusedError: The rows of a store exceed its memory limit, and the normalizer samples or needs all
                weights at once.

        Example:
            >>> from qkv.database import Database
            >>> table = {"years": [1, 2, 3, 4, 5, 6], "pay": [10, 12, 14, 16, 18, 20]}
            >>> pay = Database.open(table, key="years", value="pay")
            >>> answer = pay.ask(3.5, score="boxcar:1")
            >>> answer.value, answer.spread, answer.support
            (15.0, 1.0, 2.0)
        """
        check_integers(top=top)
        check_choice("on_bad_query", on_bad_query, ("refuse", "report"))
        options = AskOptions(score, normalizer, mask, where, top, threshold, seed, progress, on_bad_query)
        return self._ask(queries, options)

    @abstractmethod
    def _executor(self) -> Executor: ...

    def _ask(self, queries: object, options: AskOptions) -> Answer:
        return self._executor().ask(queries, options)

    @abstractmethod
    def swap(self) -> Queryable:
        """Return a database over the same table with the key and value columns exchanged. The table is not copied.

        Raises:
            DataError: There is more than one key column.
        """

    @property
    def table(self) -> pa.Table | StoredRows:
        """The rows of the database, as a pyarrow table or as an object that reads slices of rows from the store."""
        return self._executor().table

    @property
    def missing_cells(self) -> dict[str, int]:
        """The number of missing cells of each key or value column that has any.

        Rows with a missing cell are excluded.
        """
        return self._executor().missing_cells

    def column(self, name: str) -> Column:
        """Return the key or value column `name` as NumPy arrays, or a sample of its rows if the table is large.

        If the table exceeds the memory limit, the arrays hold a sample of its rows.

        Raises:
            DataError: The column is neither a key column nor the value column.
        """
        return self._executor().column(name)

    def __len__(self) -> int:
        """Return the number of rows that have a value in every key column and in the value column."""
        return self._executor().complete_rows

    def _single_key(self) -> str:
        if len(self.key) > 1:
            raise DataError(
                f"swap requires a single key column, got {len(self.key)}: {', '.join(self.key)}. "
                "Open the table with one of these columns as the key."
            )
        return self.key[0]
