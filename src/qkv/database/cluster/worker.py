"""A worker, which reads fragments of a store and returns the partial results of queries over them.

As a program, `python -m qkv.database.cluster.worker` reads tasks, or replies to be merged, from standard input and
writes replies to standard output, each as a pickle of the bytes of a pickle. Both ends belong to one user on one
machine.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from qkv import store as stores
from qkv.core.arrays import ignore_numpy_warnings
from qkv.database.cluster.task import FragmentCall, FragmentTask, Reply, ScanTask, StoreVersion, merge_replies
from qkv.database.execute.block_scan import BlockScan
from qkv.database.execute.partial_sums import Mergeable
from qkv.database.execute.scan import DeviceProducts, VectorNorms
from qkv.errors import DamagedError, DamagedStoreError, RefusedError
from qkv.store import Store

_MOST_VERSIONS = 2


class FragmentWorker:
    """The fragments that a worker has open, and the scans over them.

    Args:
        device: the device of PyTorch that multiplies vectors, such as "cuda"; None: the processor.
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self._stores: dict[StoreVersion, Store] = {}
        self._norms: dict[StoreVersion, VectorNorms] = {}
        self._products: dict[StoreVersion, DeviceProducts] = {}
        self._prepared: dict[str, dict[int, object]] = {}

    def run(self, message: bytes) -> bytes:
        """Return the reply to a pickled task and fragments, or to a list of replies to be merged, as a pickle."""
        try:
            given = pickle.loads(message)
        except (AttributeError, ImportError) as error:
            problem = RefusedError(
                f"score and normalizer must be importable by the workers of a cluster, but: {error}. Define their "
                "functions in a module that is installed on their machines."
            )
            return pickle.dumps(Reply(None, {}, problem))
        if isinstance(given, list):
            return pickle.dumps(merge_replies(given))
        task, fragments = given
        try:
            with ignore_numpy_warnings():
                reply = self._reply(task, fragments)
            return pickle.dumps(reply)
        except Exception as error:  # of a score, for example; it must not end the worker
            return _error_reply(error)

    def _reply(self, task: FragmentCall, fragments: Sequence[FragmentTask]) -> Reply:
        """Return the merged result over some fragments, and why other fragments cannot be read."""
        unreadable, results = dict[int, str](), list[Mergeable]()
        for each in fragments:
            try:
                result = task.run(self, each)
            except (DamagedError, OSError) as error:
                unreadable[each.fragment.index] = str(error)
                continue
            results.append(result if not results else results.pop().merge(result))
        first = min((each.fragment.index for each in fragments), default=0)
        return Reply(results[0] if results else None, unreadable, None, first)

    def prepared(self, name: str, fragment: int, prepare: Callable[[], object]) -> Any:
        """Return the result of `prepare` for a fragment, from the cache of `name` if it is there."""
        kept = self._prepared.pop(name, {})
        self._prepared[name] = kept  # at the end: the name that was used last
        while len(self._prepared) > _MOST_VERSIONS:
            del self._prepared[next(iter(self._prepared))]
        if fragment not in kept:
            kept[fragment] = prepare()
        return kept[fragment]

    def scan_of(self, task: ScanTask) -> BlockScan:
        """Return a scan for the queries of a task, which shares its norms and vectors with later scans."""
        name = task.store
        if self.device is not None and name not in self._products:
            self._products[name] = DeviceProducts(self.device)
        norms, products = self._norms.setdefault(name, VectorNorms()), self._products.get(name)
        return BlockScan(task.comparison, task.columns, task.query, task.folded, norms, products)

    def open_store(self, version: StoreVersion) -> Store:
        """Return the store, which stays open."""
        if version not in self._stores:
            while len(self._stores) >= _MOST_VERSIONS:
                oldest = next(iter(self._stores))
                del self._stores[oldest]
                self._norms.pop(oldest, None)
                self._products.pop(oldest, None)
            path, settings = version.path, version.storage_options
            open_store = partial(
                stores.open, path, version=version.version, checksums=version.checksums, storage_options=settings
            )
            try:
                opened = open_store()
            except DamagedStoreError:  # of other fragments, perhaps; reading all files finds the intact ones
                opened = open_store(damaged="skip")
            self._stores[version] = opened
        return self._stores[version]


def _error_reply(error: Exception) -> bytes:
    """Return a reply with an exception, or with its text if it cannot be pickled and loaded again."""
    try:
        reply = pickle.dumps(Reply(None, {}, error))
        pickle.loads(reply)
    except Exception:  # pickles raise many kinds
        problem = RefusedError(f"the query must run in the workers, but {type(error).__name__}: {error}. Correct it.")
        return pickle.dumps(Reply(None, {}, problem))
    return reply


def serve() -> None:
    """Answer the messages of standard input until it ends."""
    # What libraries print goes to standard error.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = FragmentWorker()
    with suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):  # a message may end in its middle
        while True:
            pickle.dump(worker.run(pickle.load(sys.stdin.buffer)), output)
            output.flush()


if __name__ == "__main__":
    serve()
