"""A worker, which reads fragments of a store and returns the partial results of queries over them.

As a program, `python -m qkv.database.cluster.worker` reads tasks, or replies to be merged, from standard input and
writes replies to standard output, each as its length in 8 bytes followed by a pickle. Both ends belong to one user on
one machine.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from qkv import store as stores
from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Int
from qkv.database.cluster.fragment_calls import FragmentCall
from qkv.database.cluster.task import FragmentTask, Reply, ScanTask, StoreVersion, merge_replies
from qkv.database.execute.aggregates import value_sums
from qkv.database.execute.block_scan import BlockScan
from qkv.database.execute.partial_sums import accumulates
from qkv.database.execute.row_lists import FRAGMENT_ROWS, RowLists, select_rows
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.scan import DeviceProducts, VectorNorms
from qkv.database.partials.query_partial import QueryPartial, plain_type
from qkv.errors import DamagedError, DamagedStoreError, RefusedError
from qkv.store import Block, Store

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FragmentWorker", "read_message", "serve", "write_message"]

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
        self._prepared: dict[str, dict[int, Any]] = {}

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
                reply = (self.scan if isinstance(task, ScanTask) else self.call)(task, fragments)
            return pickle.dumps(reply)
        except Exception as error:  # of a score, for example; it must not end the worker
            return _error_reply(error)

    def scan(self, task: ScanTask, fragments: Sequence[FragmentTask]) -> Reply:
        """Return the partial result of a scan over some fragments, or why a fragment cannot be read."""
        unreadable, name = dict[int, str](), task.store
        while True:
            left = [each for each in fragments if each.fragment.index not in unreadable]
            store = self.open_store(name)
            if self.device is not None and name not in self._products:
                self._products[name] = DeviceProducts(self.device)
            scan = _Scan(task, store, self._norms.setdefault(name, VectorNorms()), self._products.get(name))
            try:
                partial = scan.run(left, unreadable)
            except _UnreadableError as error:  # after some of its rows were added: start again without it
                unreadable[error.index] = error.reason
                continue
            return Reply(partial, unreadable, first=min((each.fragment.index for each in left), default=0))

    def call(self, call: FragmentCall, fragments: Sequence[FragmentTask]) -> Reply:
        """Return the merged result of a call over some fragments, or why a fragment cannot be read."""
        prepared = self._prepared.pop(call.name, {})
        self._prepared[call.name] = prepared  # at the end: the name that was used last
        while len(self._prepared) > _MOST_VERSIONS:
            del self._prepared[next(iter(self._prepared))]
        unreadable, results = dict[int, str](), list[Any]()
        for each in fragments:
            index = each.fragment.index
            try:
                if index not in prepared:
                    prepared[index] = call.prepare(self, each.fragment)
            except (DamagedError, OSError) as error:
                unreadable[index] = str(error)
                continue
            result = call.run(prepared[index], index)
            results.append(result if not results else results.pop().merge(result))
        first = min((each.fragment.index for each in fragments), default=0)
        return Reply(results[0] if results else None, unreadable, None, first)

    def open_store(self, version: StoreVersion) -> Store:
        """Return the store, which stays open."""
        if version not in self._stores:
            while len(self._stores) >= _MOST_VERSIONS:
                oldest = next(iter(self._stores))
                del self._stores[oldest]
                self._norms.pop(oldest, None)
                self._products.pop(oldest, None)
            path, number = version.path, version.version
            options: dict[str, Any] = {"checksums": version.checksums, "storage_options": version.storage_options}
            try:
                opened = stores.open(path, version=number, **options)
            except DamagedStoreError:  # of other fragments, perhaps; reading all files finds the intact ones
                opened = stores.open(path, version=number, damaged="skip", **options)
            self._stores[version] = opened
        return self._stores[version]


class _UnreadableError(Exception):
    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index, self.reason = index, reason


class _Scan:
    """A scan over some fragments, whose rows are added to the same sums or candidates, fragment after fragment.

    Attributes:
        read: the indices of the fragments that were read.
        rows: the rows of each fragment that were among the best after it was read, with their positions.
    """

    def __init__(self, task: ScanTask, store: Store, norms: VectorNorms, products: DeviceProducts | None) -> None:
        self.task, self.store = task, store
        self.scan = BlockScan(task.comparison, task.columns, task.query, task.folded, norms, products)
        self.read: list[int] = []
        self.rows: list[tuple[Int[np.ndarray, " n"], pa.Table]] = []

    def run(self, fragments: Sequence[FragmentTask], unreadable: dict[int, str]) -> QueryPartial | None:
        """Return the partial result over the fragments that can be read, and add the others to `unreadable`."""
        task, scan, sums = self.task, self.scan, None
        subject, normalizer, value = task.subject, task.normalizer, task.columns[-1]

        def tiles() -> Iterator[RowTile]:
            again, self.read, self.rows = bool(self.read), [], []
            return self._tiles(fragments, unreadable, again)

        try:
            if accumulates(normalizer):
                empty = value_sums(value, subject.count, task.votes)
                accumulator = scan.sums(tiles(), normalizer, empty, subject.top)
                sums, rows = accumulator.sums, RowLists.of_top_rows(accumulator.top_rows)
            else:
                rows = scan.candidates(tiles, normalizer)
        except (DamagedError, OSError) as error:
            raise _UnreadableError(self.read[-1], str(error)) from None
        if not self.read:
            return None
        rows = self._exact(rows)
        if sums is None:
            rows = select_rows(rows, normalizer, subject.count)
        return QueryPartial(subject, normalizer, tuple(self.read), sums, rows, plain_type(value))

    def _tiles(self, fragments: Sequence[FragmentTask], unreadable: dict[int, str], again: bool) -> Iterator[RowTile]:
        task = self.task
        for each in fragments:
            index = each.fragment.index
            if index in unreadable:
                continue
            try:
                block = self.store.block(each.fragment.name, task.names)
                if len(block) != each.fragment.rows:
                    raise DamagedError(f"{each.fragment.name} has {len(block)} rows instead of {each.fragment.rows}")
            except (DamagedError, OSError) as error:
                if again:  # its rows were listed by the first pass
                    raise _UnreadableError(index, str(error)) from None
                unreadable[index] = str(error)
                continue
            self.read.append(index)
            offset, count = (len(self.read) - 1) * FRAGMENT_ROWS, len(block)
            for number, start in enumerate(range(0, count, task.tile)):
                stop = min(start + task.tile, count)
                selected = None if each.present is None else each.present[start:stop]
                place = offset + start, block.rows(start, stop), block, start, self.store.cache_folder
                yield RowTile(*place, number not in each.incomplete, selected)
            self._keep(offset, block)

    def _keep(self, offset: int, block: Block) -> None:
        """Keep the cells of the rows of the last fragment that are among the best; others are replaced later."""
        import pyarrow as pa

        positions = self.scan.positions()
        own = positions[slice(*np.searchsorted(positions, [offset, offset + FRAGMENT_ROWS]))]
        if len(own):
            rows = own - offset
            table = block.table.take(pa.array(rows if block.present is None else np.flatnonzero(block.present)[rows]))
            self.rows.append((own, table))

    def _exact(self, rows: RowLists) -> RowLists:
        """Return rows with logits that are computed in float64 from their cells."""
        import pyarrow as pa

        if not len(rows.position):
            return rows
        position = np.concatenate([own for own, _ in self.rows])
        own = np.isin(position, rows.position)
        table = pa.concat_tables([table for _, table in self.rows]).take(pa.array(np.flatnonzero(own)))
        return self.scan.with_exact_logits(rows, table, position[own])


def _error_reply(error: Exception) -> bytes:
    """Return a reply with an exception, or with its text if it cannot be pickled and loaded again."""
    try:
        reply = pickle.dumps(Reply(None, {}, error))
        pickle.loads(reply)
    except Exception:  # pickles raise many kinds
        problem = RefusedError(f"the query must run in the workers, but {type(error).__name__}: {error}. Correct it.")
        return pickle.dumps(Reply(None, {}, problem))
    return reply


def read_message(stream: IO[bytes]) -> bytes:
    """Return the next message of a stream.

    Raises:
        EOFError: The stream has ended.
    """
    header = _read(stream, 8)
    return _read(stream, struct.unpack("<Q", header)[0])


def _read(stream: IO[bytes], count: int) -> bytes:
    parts = []
    while count:
        part = stream.read(min(count, 2**24))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write_message(stream: IO[bytes], message: bytes) -> None:
    """Write a message to a stream."""
    stream.write(struct.pack("<Q", len(message)))
    stream.write(message)
    stream.flush()


def serve() -> None:
    """Answer the messages of standard input until it ends."""
    # What libraries print goes to standard error.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = FragmentWorker()
    with suppress(EOFError, BrokenPipeError):
        while True:
            write_message(output, worker.run(read_message(sys.stdin.buffer)))


if __name__ == "__main__":
    serve()
