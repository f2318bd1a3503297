"""The scheduler of a cluster: it divides fragments among workers, replaces those that die, and merges their results.

A worker has the same fragments in all queries, so that they stay in its memory. Each of its results is merged over its
fragments; the results of all workers are merged by the workers in a tree of `FAN_IN` branches, in the order of the
fragments, and the last `FAN_IN` by this process, whose work does not grow with the number of workers. A worker that
dies is replaced by one with the same fragments; if results were lost with it, their fragments are read again. The
groups of the tree are always the same, so that the answer is equal to the last bit.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any, Protocol, TypeVar

from qkv.database.cluster.task import FragmentCall, FragmentTask, merge_replies, serialize
from qkv.errors import RefusedError
from qkv.store import StorageOptions

FAN_IN = 16
"""Number of results that are merged at once. With 16, the results of 4,096 workers are merged in three steps."""

_MOST_ATTEMPTS = 10
"""Number of workers that one task may use up; a task that ends so many is not repeated."""

T = TypeVar("T")


class WorkerDiedError(Exception):
    """Raised by the methods of a `Worker` if it died before it replied."""


class LostResultError(Exception):
    """Raised by `Worker.merge` and `Worker.fetch` if a result was lost with the machine that held it."""


class Worker(Protocol):
    """A process that runs a `FragmentWorker`, on this machine or on another one.

    Results may stay where they were computed: they are replies, or references to them.
    """

    @property
    def process_id(self) -> int:
        """The id of the process on its machine; 0 if it is not known."""

    def call(self, message: bytes) -> object:
        """Return the result of `FragmentWorker.run`, or raise a `WorkerDiedError`."""

    def send(self, message: bytes) -> object:
        """Start `FragmentWorker.run`, and return what `receive` needs, or raise a `WorkerDiedError`."""

    def receive(self, sent: object) -> bytes:
        """Wait for the reply to a message that was sent, as a pickle, or raise one of both errors."""

    def merge(self, results: Sequence[object]) -> object:
        """Return the result of `FragmentWorker.merge` for results of any workers, or raise one of both errors."""

    def fetch(self, result: object) -> bytes:
        """Return the reply of a result, as a pickle, or raise a `LostResultError`."""

    def close(self) -> None:
        """End the worker."""


@dataclass(frozen=True, eq=False)
class _Branch:
    """The merged result of the shares `first` to `last` − 1."""

    first: int
    last: int
    result: object


class Scheduler:
    """The workers of a cluster.

    Args:
        start: starts a worker.
        workers: number of workers.
        kind: the workers in words, such as "processes".
        skip: whether fragments that cannot be read are left out.
        storage_options: settings of the object store of the fragments.

    Attributes:
        replaced: number of workers that died and were replaced.
        workers: the workers, None where none was started yet.
    """

    def __init__(
        self,
        start: Callable[[], Worker],
        workers: int,
        kind: str,
        skip: bool = False,
        storage_options: StorageOptions = None,
    ) -> None:
        self.storage_options = storage_options
        self.start, self.count, self.kind, self.skip = start, workers, kind, skip
        self.replaced = 0
        self.workers: list[Worker | None] = [None] * workers
        self._locks = [threading.Lock() for _ in range(workers)]

    def call(self, task: FragmentCall, fragments: Sequence[FragmentTask]) -> tuple[Any, dict[int, str]]:
        """Return the merged result of a scan or a call, and the reason for each fragment that cannot be read.

        The result is None if no fragment can be read. The error of a worker is raised.
        """
        shares = [share for share in divide(fragments, self.count) if share]
        if not shares:
            return None, {}
        messages = [serialize((task, share)) for share in shares]
        replies = self._replies(messages) if len(shares) <= FAN_IN else self._merged_in_tree(messages)
        reply = merge_replies(replies)
        if reply.error is not None:
            raise reply.error
        return reply.result, dict(reply.unreadable)

    def _replies(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the replies of few workers, in one round trip of this thread; repeat the messages whose reply is lost.

        Threads of which each waits for one actor of Ray took 5 ms more for a query of two workers.
        """
        replies: list[bytes | None] = [None] * len(messages)
        sent: dict[int, object] = {}
        with ExitStack() as stack:
            for slot in range(len(messages)):  # in the same order by all threads, so that none waits for another
                stack.enter_context(self._locks[slot])
            try:
                for slot, message in enumerate(messages):
                    with suppress(WorkerDiedError):
                        sent[slot] = self._try(slot, methodcaller("send", message))
                for slot in list(sent):
                    with suppress(WorkerDiedError, LostResultError):
                        replies[slot] = self._try(slot, methodcaller("receive", sent[slot]))
                    del sent[slot]
            finally:
                for slot in sent:  # an exception, such as of Ctrl+C: the next query must not get these replies
                    self._discard(slot)
        for slot in range(len(messages)):
            if replies[slot] is None:
                scan = partial(self._scan, messages)
                replies[slot] = self._reply(scan, scan(slot))
        return [reply for reply in replies if reply is not None]

    def _scan(self, messages: Sequence[bytes], slot: int) -> _Branch:
        return _Branch(slot, slot + 1, self._retry(slot, lambda worker: worker.call(messages[slot])))

    def _merged_in_tree(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return at most `FAN_IN` replies of many workers, which the workers merge."""
        scan = partial(self._scan, messages)
        with ThreadPoolExecutor(len(messages)) as threads:
            branches = list(threads.map(scan, range(len(messages))))
            while len(branches) > FAN_IN:
                groups = [branches[first : first + FAN_IN] for first in range(0, len(branches), FAN_IN)]
                branches = list(threads.map(partial(self._merge, scan), groups))
            return list(threads.map(partial(self._reply, scan), branches))

    def _merge(self, scan: Callable[[int], _Branch], group: Sequence[_Branch]) -> _Branch:
        """Return the merge of consecutive branches by the worker of the first one."""
        first, last = group[0].first, group[-1].last
        if len(group) == 1:
            return group[0]

        def merge(worker: Worker) -> object:
            return worker.merge([branch.result for branch in current])

        current = list(group)
        for _ in range(_MOST_ATTEMPTS):
            try:
                return _Branch(first, last, self._retry(first, merge))
            except LostResultError:
                current = [replace(branch, result=self._repeat(scan, branch)) for branch in group]
        raise self._given_up()

    def _reply(self, scan: Callable[[int], _Branch], branch: _Branch) -> bytes:
        """Return the pickled reply of a branch."""
        try:
            return self._fetch(branch)
        except LostResultError:
            return self._repeat(scan, branch)

    def _repeat(self, scan: Callable[[int], _Branch], branch: _Branch) -> bytes:
        """Return the pickled reply of a branch that was lost, by reading its fragments again, merged as before."""
        replies = [self._read_again(scan, slot) for slot in range(branch.first, branch.last)]
        while len(replies) > 1:
            groups = [replies[first : first + FAN_IN] for first in range(0, len(replies), FAN_IN)]
            replies = [pickle.dumps(merge_replies(group)) for group in groups]
        return replies[0]

    def _read_again(self, scan: Callable[[int], _Branch], slot: int) -> bytes:
        for _ in range(_MOST_ATTEMPTS):
            with suppress(LostResultError):
                return self._fetch(scan(slot))
        raise self._given_up()

    def _fetch(self, branch: _Branch) -> bytes:
        return self._retry(branch.first, lambda worker: worker.fetch(branch.result))

    def _retry(self, slot: int, action: Callable[[Worker], T]) -> T:
        """Return the result of an action of a worker; if the worker dies, repeat it with another one."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                with self._locks[slot]:
                    return self._try(slot, action)
            except WorkerDiedError:
                continue
        raise self._given_up()

    def _try(self, slot: int, action: Callable[[Worker], T]) -> T:
        """Return the result of an action of a worker whose lock the caller has; a worker that dies is discarded."""
        worker = self.workers[slot]
        if worker is None:
            worker = self.workers[slot] = self.start()
        try:
            return action(worker)
        except WorkerDiedError:
            self._discard(slot)
            self.replaced += 1
            raise

    def _discard(self, slot: int) -> None:
        worker, self.workers[slot] = self.workers[slot], None
        if worker is not None:
            worker.close()

    def _given_up(self) -> RefusedError:
        return RefusedError(
            f"a worker must survive a query, but {_MOST_ATTEMPTS} {self.kind} died one after another. Check the memory "
            "of the machine, or open the store without cluster."
        )

    def close(self) -> None:
        """End all workers, after the queries of other threads. The next query starts new ones."""
        for slot in range(self.count):
            with self._locks[slot]:
                self._discard(slot)


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
