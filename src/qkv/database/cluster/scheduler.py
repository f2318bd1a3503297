"""The scheduler of a cluster: it divides fragments among workers, replaces those that die, and merges their results.

A worker has the same fragments in all queries, so that they stay in its memory. Each of its results is merged over its
fragments; the results of all workers are merged in a tree in the order of the fragments. A worker that dies is replaced
by one with the same fragments, so that the answer is equal to the last bit.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from qkv.database.cluster.task import FragmentTask, Reply, ScanTask, serialize
from qkv.database.partials.arrow_format import from_batch
from qkv.database.partials.query_partial import QueryPartial, merge_partials
from qkv.errors import RefusedError

__all__ = ["Scheduler", "Worker", "WorkerDiedError", "divide"]

_MOST_ATTEMPTS = 10
"""Number of workers that one task may use up; a task that ends so many is not repeated."""


class WorkerDiedError(Exception):
    """Raised by `Worker.call` if the worker died before it replied."""


class Worker(Protocol):
    """A process that runs `FragmentWorker.run`, on this machine or on another one."""

    def call(self, message: bytes) -> bytes:
        """Return the reply to a message, or raise a `WorkerDiedError`."""

    def close(self) -> None:
        """End the worker."""


class Scheduler:
    """The workers of a cluster.

    Args:
        start: starts a worker.
        workers: number of workers.
        kind: the workers in words, such as "processes".
        skip: whether fragments that cannot be read are left out.

    Attributes:
        replaced: number of workers that died and were replaced.
    """

    def __init__(self, start: Callable[[], Worker], workers: int, kind: str, skip: bool = False) -> None:
        self.start, self.count, self.kind, self.skip = start, workers, kind, skip
        self.replaced = 0
        self._workers: list[Worker | None] = [None] * workers
        self._locks = [threading.Lock() for _ in range(workers)]

    def run(self, task: ScanTask, fragments: Sequence[FragmentTask]) -> tuple[QueryPartial | None, dict[int, str]]:
        """Return the partial result over all fragments, and the reason for each fragment that cannot be read."""
        shares = [share for share in divide(fragments, self.count) if share]
        messages = [serialize((task, share)) for share in shares]
        with ThreadPoolExecutor(max(1, len(shares))) as threads:
            replies = list(threads.map(self._call, range(len(messages)), messages))
        unreadable: dict[int, str] = {}
        parts = []
        for reply in replies:
            if reply.error is not None:
                raise reply.error
            unreadable |= reply.unreadable
            if reply.partial is not None:
                parts.append(from_batch(reply.partial))
        return (merge_partials(parts) if parts else None), unreadable

    def _call(self, slot: int, message: bytes) -> Reply:
        with self._locks[slot]:
            for _ in range(_MOST_ATTEMPTS):
                worker = self._workers[slot]
                if worker is None:
                    worker = self._workers[slot] = self.start()
                try:
                    reply = pickle.loads(worker.call(message))
                    assert isinstance(reply, Reply)
                    return reply
                except WorkerDiedError:
                    worker.close()
                    self._workers[slot] = None
                    self.replaced += 1
        raise RefusedError(
            f"a worker must survive a query, but {_MOST_ATTEMPTS} {self.kind} died one after another. Check the memory "
            "of the machine, or open the store without cluster."
        )

    def close(self) -> None:
        """End all workers. The next query starts new ones."""
        for slot, worker in enumerate(self._workers):
            if worker is not None:
                worker.close()
            self._workers[slot] = None


def divide(fragments: Sequence[FragmentTask], count: int) -> list[list[FragmentTask]]:
    """Return consecutive fragments for each worker, with about equal numbers of rows."""
    total = sum(each.fragment.rows for each in fragments)
    shares: list[list[FragmentTask]] = [[] for _ in range(count)]
    before = 0
    for each in fragments:
        middle = before + each.fragment.rows / 2
        shares[min(count - 1, int(count * middle / total)) if total else 0].append(each)
        before += each.fragment.rows
    return shares
