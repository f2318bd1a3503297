"""The class `ServedStore`, a database and a search index that answer groups of requests and follow new versions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from qkv.core.progress import checkpoint, with_check
from qkv.database.answer import Answer
from qkv.database.io.duckdb_file import interrupt_thread
from qkv.database.io.predicates import PredicateProcess
from qkv.database.protocol import Queryable
from qkv.database.relations.answer_relation import samples
from qkv.database.storage.stored import StoredDatabase
from qkv.encoders.arrow_columns import to_records
from qkv.errors import DamagedStoreError, DataError, OptionError, QkvError, QueryError
from qkv.serve.answers import EvidenceRows
from qkv.serve.questions import Question, Search, Work

if TYPE_CHECKING:
    from qkv.search.hits import Hit
    from qkv.search.index import Index


class Abandoned(BaseException):
    """Raised within a scan whose requests no longer wait for an answer, which ends the scan."""


class _Postponed(BaseException):
    """Raised within a scan that starts again later, because too many scans have been suspended."""


_SHARE, _LONGEST_WAIT = 0.25, 0.25
"""Longest time to wait for requests, as a share of the time of the last scan, and in seconds."""
_SLICE, _LOOK = 0.05, 0.005
"""Seconds that a scan runs before it lets others run, and between two looks whether anybody waits for it."""
_THREADS = 16
"""Most scans that have begun, each of which holds memory."""
Request = Question | Search | Work


@dataclass(eq=False)
class _Job:
    request: Request
    future: Future[Answered] = field(default_factory=Future)


@dataclass(eq=False)
class _Scan:
    """A scan that has begun.

    Attributes:
        jobs: the requests that it answers.
        thread: the identifier of its thread.
        began: when it got its turn, or looked last whether others wait for theirs.
        used: seconds that it has run before.
        looked: when it looked last whether anybody waits for it.
    """

    jobs: list[_Job]
    thread: int
    began: float
    used: float = 0.0
    looked: float = 0.0

    def is_abandoned(self) -> bool:
        """Return whether nobody waits for the scan."""
        return all(job.future.cancelled() for job in self.jobs)


class ScanQueue:
    """Requests that wait for a scan, and the threads that run scans, one at a time.

    A scan answers the request that has waited longest of the smallest ones, and all waiting requests of its group, up
    to `most` queries.
    A single client is answered at once. After a scan of several requests, whose clients are about to ask again, the
    next scan waits until as many requests have come, but at most a quarter of the time of the last scan and 250 ms;
    otherwise the first client would be alone in a scan, and all others would wait for it.

    A scan that has run for 50 ms is suspended at its next checkpoint if requests of other groups wait, and continues
    when no scan is left that has run for less time. So a short request waits for one slice of another's scan. Of more
    than 16 scans that have begun, the others start again later. A request whose future was cancelled is left out, and a
    scan all of whose requests were cancelled is ended at its next checkpoint by the exception `Abandoned`.

    Args:
        run: answers requests of one group, with calls of `qkv.core.progress.checkpoint`: returns one result or
            exception per request, in their order.
        most: the largest number of queries of a scan; a single request may have more.
        interrupt: called with the identifier of the thread of a scan all of whose requests were cancelled.

    Example:
        >>> queue = ScanQueue(lambda requests: [len(request) for request in requests])
        >>> from qkv.serve.questions import Question
        >>> queue.submit(Question(("Li", "Hu"))).result()
        2
        >>> queue.close()
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Sequence[Answered | BaseException]],
        most: int = 64,
        interrupt: Callable[[int], None] | None = None,
    ) -> None:
        self._run, self._most, self._interrupt = run, most, interrupt
        self._turn: _Scan | None = None
        self._suspended: list[_Scan] = []
        self._last, self._until = 0, 0.0
        self._waiting: deque[_Job] = deque()
        self._postponed: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def __len__(self) -> int:
        """Return the number of requests that wait for the next scan."""
        return len(self._waiting)

    def submit(self, request: Request) -> Future[Answered]:
        """Add a request, and return the future of its result.

        Raises:
            RuntimeError: The queue is closed.
        """
        job: _Job = _Job(request)
        with self._changed:
            if self._closed:
                raise RuntimeError("the queue is closed")
            self._waiting.append(job)
            if not self._threads:
                self._start_thread()
            self._changed.notify_all()
        job.future.add_done_callback(self._notice_cancelled)
        return job.future

    def close(self, seconds: float = 5.0) -> None:
        """Cancel the requests that wait, and wait at most some seconds for the scan that runs."""
        with self._changed:
            self._closed = True
            waiting = [*self._waiting, *self._postponed]
            self._waiting.clear()
            self._postponed.clear()
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()
        until = time.monotonic() + seconds
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    # -- private ----------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        self._threads.append(threading.Thread(target=self._work, name="qkv-scan", daemon=True))
        self._idle += 1
        self._threads[-1].start()

    def _work(self) -> None:
        while (scan := self._next()) is not None:
            self._scan(scan)

    def _notice_cancelled(self, future: Future[Answered]) -> None:
        """Interrupt the scan that runs if nobody waits for it any more, and end those that are suspended."""
        if not future.cancelled():
            return
        with self._changed:  # the scan cannot end meanwhile, so that the next one is not interrupted
            if self._turn is not None and self._interrupt is not None and self._turn.is_abandoned():
                self._interrupt(self._turn.thread)
            self._changed.notify_all()

    def _next(self) -> _Scan | None:
        """Wait for requests and for the turn, and return the next scan; None if the thread is needed no more."""
        with self._changed:
            while True:
                if self._idle > 1:
                    self._idle -= 1
                    self._threads.remove(threading.current_thread())
                    return None
                self._changed.wait_for(lambda: self._closed or (self._turn is None and self._waiting))
                if self._last > 1 and not self._suspended and (left := self._until - time.monotonic()) > 0:
                    self._changed.wait_for(lambda: len(self._waiting) >= self._last or self._closed, left)
                if self._closed:
                    return None
                if self._turn is None and self._waiting:
                    if jobs := self._take():
                        self._idle -= 1
                        self._turn = _Scan(jobs, threading.get_ident(), time.monotonic())
                        return self._turn
                    self._changed.notify_all()  # all that waited were cancelled: a suspended scan continues

    def _take(self) -> list[_Job]:
        """Remove a request and those of its group from the queue, and return them."""
        jobs: list[_Job] = []
        others: deque[_Job] = deque()
        queries = 0
        for job in sorted(self._waiting, key=lambda job: job.request.size):
            if job.future.cancelled():
                continue
            fits = not jobs or queries + len(job.request) <= self._most
            if fits and (not jobs or job.request.group == jobs[0].request.group):
                jobs.append(job)
                queries += len(job.request)
            else:
                others.append(job)
        self._waiting = others
        return jobs

    def _check(self, scan: _Scan) -> None:
        """End a scan for which nobody waits, and suspend one that has run for long while others wait."""
        now = time.monotonic()
        if now < scan.looked + _LOOK:
            return
        scan.looked = now
        if scan.is_abandoned():
            raise Abandoned
        if scan.used + now - scan.began < _SLICE:
            return
        with self._changed:
            if self._turn is scan:
                scan.used, scan.began = scan.used + now - scan.began, now
                # Those of its own group take as long: they are answered together afterwards.
                others = any(job.request.group != scan.jobs[0].request.group for job in self._waiting)
                if others and not self._idle:
                    if len(self._threads) == _THREADS:
                        raise _Postponed
                    self._start_thread()
                if not others and scan.used < _SLICE + min(
                    (other.used for other in self._suspended), default=scan.used
                ):
                    return
                self._suspended.append(scan)
                self._turn = None
                self._changed.notify_all()
            # A scan in several threads waits in each of them.
            self._changed.wait_for(lambda: scan.is_abandoned() or self._turn is scan or self._continues(scan))
            if scan in self._suspended:
                self._suspended.remove(scan)
            if scan.is_abandoned():
                raise Abandoned
            self._turn, scan.began = scan, time.monotonic()
            self._changed.notify_all()

    def _continues(self, scan: _Scan) -> bool:
        """Return whether it is the turn of a suspended scan."""
        if self._turn is not None or (self._waiting and self._idle):
            return False
        return scan is min(self._suspended, key=lambda other: other.used)

    def _scan(self, scan: _Scan) -> None:
        jobs = scan.jobs
        results: Sequence[Answered | BaseException] | None
        try:
            with with_check(partial(self._check, scan)):
                results = self._run([job.request for job in jobs])
        except _Postponed:
            results = None
        except BaseException as error:  # an exception must not end the thread, which requests need
            results = [error] * len(jobs)
        ended = time.monotonic()
        with self._changed:
            self._idle += 1
            if self._turn is scan:  # not if it was abandoned while it was suspended
                self._turn = None
            self._last, self._until = len(jobs), ended + min(_SHARE * (ended - scan.began), _LONGEST_WAIT)
            if results is None:
                self._postponed.extend(jobs)
            elif len(self._suspended) < _THREADS - 1:
                self._waiting.extend(self._postponed)
                self._postponed.clear()
            self._changed.notify_all()
        for job, result in zip(jobs, results or (), strict=results is not None):
            if not job.future.set_running_or_notify_cancel():
                continue
            if isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)


_READ, _PREPARED = 64, 4
"""Number of rows that are read when a version is opened, and of complete keys among them that are asked."""
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
        self.queue = ScanQueue(self._run, interrupt=interrupt_thread)
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

    def submit(self, request: Request) -> Future[Answered]:
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

    def _run(self, requests: Sequence[Request]) -> list[Answered | BaseException]:
        if isinstance(requests[0], Work):  # a group has one kind
            requests[0].run()
            return [Answered()]
        if self.observe is not None:
            self.observe(len(requests), sum(map(len, requests)))
        searches = [request for request in requests if isinstance(request, Search)]
        if searches:
            return list(map(self._search, searches))
        questions = [request for request in requests if isinstance(request, Question)]
        try:
            return self._ask(questions)
        except DamagedStoreError:
            # Another process may have removed the files of this version after it wrote a new one.
            if not self.refresh():
                raise
            return self._ask(questions)

    def _ask(self, questions: Sequence[Question]) -> list[Answered | BaseException]:
        database = self._current
        assert database is not None
        version = _version(database)
        options = dict(questions[0].options)
        if len(questions) > 1 and samples(database, options.get("normalizer")):
            # What is drawn depends on the place of a query, which other requests must not change.
            return list(map(self._alone, questions))

        queries = [query for question in questions for query in question.queries]
        with self._predicates.used():
            answer: Answer = database.ask(
                queries,
                on_bad_query="report",
                progress=lambda *_: checkpoint(),
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

    def _alone(self, question: Question) -> Answered | BaseException:
        try:
            return self._ask([question])[0]
        except QkvError as error:
            return error

    def _search(self, search: Search) -> Answered | BaseException:
        assert self.index is not None
        found = []
        for query in search.queries:
            checkpoint()
            options = {"mix": search.mix, "temperature": search.temperature, "contributions": search.contributions}
            try:
                found.append(self.index.search(query, search.top, **options))  # type: ignore[arg-type]
            except QkvError as error:
                return error
        return Answered(hits=tuple(found))


def _prepare(database: Queryable) -> None:
    """Answer keys of the table, so that the first question waits neither for rows nor for what is chosen from them."""
    if not len(database):
        return
    rows = to_records(database.table.slice(0, min(_READ, database.table.num_rows)))
    keys = [tuple(row[name] for name in database.key) for row in rows]
    keys = [key for key in keys if None not in key][:_PREPARED] or keys[:1]
    database.ask(keys if len(database.key) > 1 else [key for (key,) in keys], top=1, on_bad_query="report")


def _version(database: Queryable | None) -> int | None:
    return database.version if isinstance(database, StoredDatabase) else None
