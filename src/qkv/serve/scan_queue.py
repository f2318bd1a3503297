"""The class `ScanQueue`, by which requests that wait while a scan runs are answered together by the next scan."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = ["Abandoned", "Groupable", "ScanQueue"]


class Abandoned(BaseException):
    """Raised within a scan whose requests no longer wait for an answer, which ends the scan."""


class Groupable(Protocol):
    """A request that can be answered together with others of the same group."""

    @property
    def group(self) -> tuple[object, ...]:
        """The name of the group."""

    def __len__(self) -> int: ...


_SHARE, _LONGEST_WAIT = 0.25, 0.25
"""Longest time to wait for requests, as a share of the time of the last scan, and in seconds."""
_Request = TypeVar("_Request", bound=Groupable)
_Result = TypeVar("_Result")


@dataclass(eq=False)
class _Job(Generic[_Request, _Result]):
    request: _Request
    future: Future[_Result] = field(default_factory=Future)


class ScanQueue(Generic[_Request, _Result]):
    """Requests that wait for a scan, and the thread that runs one scan after the other.

    A scan answers the request that has waited longest, and all waiting requests of its group, up to `most` queries.
    A single client is answered at once. After a scan of several requests, whose clients are about to ask again, the
    next scan waits until as many requests have come, but at most a quarter of the time of the last scan and 250 ms;
    otherwise the first client would be alone in a scan, and all others would wait for it. A request whose future was
    cancelled is left out, and a scan all of whose requests were cancelled is ended by the exception `Abandoned`, which
    `raise_if_abandoned` raises.

    Args:
        run: answers requests of one group: returns one result or exception per request, in their order. Its second
            argument is `raise_if_abandoned`, to be called now and then.
        most: the largest number of queries of a scan; a single request may have more.
        interrupt: called with the identifier of the thread of a scan all of whose requests were cancelled.

    Example:
        >>> queue = ScanQueue(lambda requests, _: [len(request) for request in requests])
        >>> from qkv.serve.questions import Question
        >>> queue.submit(Question(("Li", "Hu"))).result()
        2
        >>> queue.close()
    """

    def __init__(
        self,
        run: Callable[[Sequence[_Request], Callable[[], None]], Sequence[_Result | BaseException]],
        most: int = 8192,
        interrupt: Callable[[int], None] | None = None,
    ) -> None:
        self._run, self._most, self._interrupt = run, most, interrupt
        self._running: list[_Job[_Request, _Result]] = []
        self._last, self._until = 0, 0.0
        self._waiting: deque[_Job[_Request, _Result]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of requests that wait for the next scan."""
        return len(self._waiting)

    def submit(self, request: _Request) -> Future[_Result]:
        """Add a request, and return the future of its result.

        Raises:
            RuntimeError: The queue is closed.
        """
        job: _Job[_Request, _Result] = _Job(request)
        with self._changed:
            if self._closed:
                raise RuntimeError("the queue is closed")
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="qkv-scan", daemon=True)
                self._thread.start()
            self._changed.notify()
        job.future.add_done_callback(self._notice_cancelled)
        return job.future

    def close(self, seconds: float = 5.0) -> None:
        """Cancel the requests that wait, and wait at most some seconds for the scan that runs."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while jobs := self._next():
            self._scan(jobs)

    def _notice_cancelled(self, future: Future[_Result]) -> None:
        """Interrupt the scan that runs if nobody waits for it any more."""
        if not future.cancelled() or self._interrupt is None:
            return
        with self._changed:  # the scan cannot end meanwhile, so that the next one is not interrupted
            if self._running and all(job.future.cancelled() for job in self._running):
                assert self._thread is not None
                assert self._thread.ident is not None
                self._interrupt(self._thread.ident)

    def _next(self) -> list[_Job[_Request, _Result]]:
        """Wait for requests, and return those of the next scan; an empty list if the queue is closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._last > 1 and (left := self._until - time.monotonic()) > 0:
                    self._changed.wait_for(lambda: len(self._waiting) >= self._last or self._closed, left)
                jobs: list[_Job[_Request, _Result]] = []
                others: deque[_Job[_Request, _Result]] = deque()
                queries = 0
                for job in self._waiting:
                    if job.future.cancelled():
                        continue
                    fits = not jobs or queries + len(job.request) <= self._most
                    if fits and (not jobs or job.request.group == jobs[0].request.group):
                        jobs.append(job)
                        queries += len(job.request)
                    else:
                        others.append(job)
                self._waiting, self._running = others, jobs
                if jobs or self._closed:
                    return jobs

    def _scan(self, jobs: list[_Job[_Request, _Result]]) -> None:
        def raise_if_abandoned() -> None:
            if all(job.future.cancelled() for job in jobs):
                raise Abandoned

        results: Sequence[_Result | BaseException]
        started = time.monotonic()
        try:
            results = self._run([job.request for job in jobs], raise_if_abandoned)
        except BaseException as error:  # an exception must not end the thread, which every request needs
            results = [error] * len(jobs)
        ended = time.monotonic()
        with self._changed:
            self._running = []
            self._last, self._until = len(jobs), ended + min(_SHARE * (ended - started), _LONGEST_WAIT)
        for job, result in zip(jobs, results, strict=True):
            if not job.future.set_running_or_notify_cancel():
                continue
            if isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
