"""The class `ServedStore`, a database and a search index that answer groups of requests and follow new versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qkv.database.io.duckdb_file import interrupt_thread
from qkv.database.io.nanoseconds import to_records
from qkv.database.io.predicates import PredicateProcess
from qkv.database.relations.answer_relation import samples
from qkv.database.storage.stored import StoredDatabase
from qkv.errors import DamagedStoreError, DataError, OptionError, QkvError, QueryError
from qkv.serve.evidence_rows import EvidenceRows
from qkv.serve.questions import Question, Search, Work
from qkv.serve.scan_queue import ScanQueue

if TYPE_CHECKING:
    from concurrent.futures import Future

    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable
    from qkv.search.hits import Hit
    from qkv.search.index import Index

__all__ = ["Answered", "ServedStore"]

_PREPARED = 64
"""Number of rows whose keys are asked when a version is opened. The key of a row may be missing."""
Observer = Callable[[int, int], None]
"""Called with the numbers of requests and of queries of each scan."""


@dataclass(frozen=True, eq=False)
class Answered:
    """The result of a request, with the version of the store that it was computed from.

    Attributes:
        answer: the answer to a question, with its evidence in memory; None for a search.
        hits: for each text of a search, the passages found.
        version: the version of the store; None for a table in memory or an index.
    """

    answer: Answer | None = None
    hits: tuple[list[Hit], ...] = ()
    version: int | None = None


class ServedStore:
    """A database, and optionally a search index, that answers requests of many clients by few scans.

    Requests that wait while a scan runs are answered together by the next one. A new version of the store is opened
    and prepared beside the old one, which answers until the new one is ready.

    Args:
        database: the database; None to serve an index alone.
        index: the search index, if any.
        refresh: seconds between two looks for a new version of the store; 0: never.
        observe: called with the numbers of requests and of queries of each scan.

    Attributes:
        problem: why the newest version cannot be opened, so that an older one answers; otherwise "".

    Raises:
        OptionError: There is neither a database nor an index.
        DamagedError: The store is damaged.

    Example:
        >>> from qkv.database import Database
        >>> table = {"years": [1, 2, 3], "pay": [10, 12, 14]}
        >>> with ServedStore(Database.open(table, key="years", value="pay")) as served:
        ...     served.submit(Question((2.0,), True, options=(("score", "boxcar:0.5"),))).result().answer.value
        12.0
    """

    def __init__(
        self,
        database: Queryable | None = None,
        index: Index | None = None,
        *,
        refresh: float = 1.0,
        observe: Observer | None = None,
    ) -> None:
        if database is None and index is None:
            raise OptionError("database or index must be given, got None for both. Open a store or an index.")
        self.index = index
        self.problem = ""
        self.observe = observe
        self._predicates = PredicateProcess()
        self.queue: ScanQueue[Question | Search | Work, Answered] = ScanQueue(self._run, interrupt=interrupt_thread)
        self._source = database if isinstance(database, StoredDatabase) else None
        self._current = database
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        if self._source is not None:
            self._current = self._open()
        elif database is not None:
            _prepare(database)
        if self._source is not None and refresh:
            self._watcher = threading.Thread(target=self._watch, args=(refresh,), name="qkv-versions", daemon=True)
            self._watcher.start()

    def __enter__(self) -> ServedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def database(self) -> Queryable | None:
        """The database that answers, at a fixed version; None if only an index is served."""
        return self._current

    @property
    def version(self) -> int | None:
        """The version of the store that answers; None if the database is no store."""
        return _version(self._current)

    def submit(self, request: Question | Search | Work) -> Future[Answered]:
        """Add a request to those of the next scan, and return the future of its result.

        Raises:
            DataError: A question is asked without a database, or a search without an index.
        """
        if isinstance(request, Search) and self.index is None:
            raise DataError("a search index must be served, got a database alone. Start the server with --index.")
        if isinstance(request, Question) and self._current is None:
            raise DataError("a store must be served, got a search index alone. Start the server with a store.")
        return self.queue.submit(request)

    def refresh(self) -> bool:
        """Switch to the newest version of the store if there is one, and return whether the version changed.

        If the new version cannot be opened, the old one stays, and `problem` says why.
        """
        with self._reading:
            if self._source is None:
                return False
            try:
                self._source.refresh()
                if self._source.version == self.version:
                    self.problem = ""
                    return False
                self._current = self._open()
            except (QkvError, OSError) as error:
                self.problem = str(error) or type(error).__name__
                return False
            self.problem = ""
            return True

    def close(self) -> None:
        """Stop looking for new versions, and cancel the requests that wait."""
        self._stop.set()
        self.queue.close()
        self._predicates.close()
        if self._watcher is not None:
            self._watcher.join(5)

    # -- private ----------------------------------------------------------------------------------------

    def _open(self) -> StoredDatabase:
        """Return the newest version as a database that does not change, ready to answer."""
        assert self._source is not None
        opened = self._source.at(self._source.version)
        _prepare(opened)
        return opened

    def _watch(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self.refresh()

    def _run(
        self, requests: Sequence[Question | Search | Work], raise_if_abandoned: Callable[[], None]
    ) -> list[Answered | BaseException]:
        if isinstance(requests[0], Work):  # a group has one kind
            requests[0].run()
            return [Answered()]
        if self.observe is not None:
            self.observe(len(requests), sum(map(len, requests)))
        searches = [request for request in requests if isinstance(request, Search)]
        if searches:
            return [self._search(search, raise_if_abandoned) for search in searches]
        questions = [request for request in requests if isinstance(request, Question)]
        try:
            return self._ask(questions, raise_if_abandoned)
        except DamagedStoreError:
            # Another process may have removed the files of this version after it wrote a new one.
            if not self.refresh():
                raise
            return self._ask(questions, raise_if_abandoned)

    def _ask(
        self, questions: Sequence[Question], raise_if_abandoned: Callable[[], None]
    ) -> list[Answered | BaseException]:
        database = self._current
        assert database is not None
        version = _version(database)
        options = dict(questions[0].options)
        if len(questions) > 1 and samples(database, options.get("normalizer")):
            # What is drawn depends on the place of a query, which other requests must not change.
            return [self._alone(question, raise_if_abandoned) for question in questions]

        def progress(task: str, done: int, total: int) -> None:
            raise_if_abandoned()

        queries = [query for question in questions for query in question.queries]
        with self._predicates.used():
            answer: Answer = database.ask(
                queries,
                on_bad_query="report",
                progress=progress,
                **options,  # type: ignore[arg-type]
            )
        answer = replace(answer, table=EvidenceRows.of(answer))
        results: list[Answered | BaseException] = []
        start = 0
        for question in questions:
            entries = answer.entries[start : start + len(question)]
            start += len(question)
            bad = next((entry.reason for entry in entries if entry.invalid), None)
            if bad is not None and question.on_bad_query == "refuse":
                results.append(QueryError(bad))
            else:
                results.append(Answered(replace(answer, entries=entries, single=question.single), version=version))
        return results

    def _alone(self, question: Question, raise_if_abandoned: Callable[[], None]) -> Answered | BaseException:
        try:
            return self._ask([question], raise_if_abandoned)[0]
        except QkvError as error:
            return error

    def _search(self, search: Search, raise_if_abandoned: Callable[[], None]) -> Answered | BaseException:
        assert self.index is not None
        found = []
        for query in search.queries:
            raise_if_abandoned()
            try:
                found.append(
                    self.index.search(
                        query,
                        search.top,
                        mix=search.mix,
                        temperature=search.temperature,
                        contributions=search.contributions,
                    )
                )
            except QkvError as error:
                return error
        return Answered(hits=tuple(found))


def _prepare(database: Queryable) -> None:
    """Answer keys of the table, so that the first question waits neither for rows nor for what is chosen from them."""
    if not len(database):
        return
    rows = to_records(database.table.slice(0, min(_PREPARED, database.table.num_rows)))
    keys = [tuple(row[name] for name in database.key) for row in rows]
    database.ask(keys if len(database.key) > 1 else [key for (key,) in keys], top=1, on_bad_query="report")


def _version(database: Queryable | None) -> int | None:
    return database.version if isinstance(database, StoredDatabase) else None
