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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

import numpy as np

from qkv import store as stores
from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int, Shaped
from qkv.database.cluster.fragment_calls import FragmentCall, StoreCall
from qkv.database.cluster.task import FragmentTask, Reply, ScanTask, merge_replies
from qkv.database.execute.accumulators import accumulator_for
from qkv.database.execute.device_products import DeviceProducts
from qkv.database.execute.partial_sums import PartialSums
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.running_aggregates import StreamedAggregator, streamed_aggregator_for
from qkv.database.execute.scan import CellLogits, VectorNorms, fast_logits
from qkv.database.execute.streamed_call import SPARE_ROWS
from qkv.database.execute.tile_pass import Consumer, TilePass
from qkv.database.partials.arrow_format import to_bytes
from qkv.database.partials.query_partial import QueryPartial
from qkv.database.partials.row_lists import FRAGMENT_ROWS, RowLists, accumulates, select_rows
from qkv.database.partials.scan_rows import candidates_of_tile, with_spare_rows
from qkv.errors import DamagedError, DamagedStoreError, RefusedError
from qkv.store import Block, Store

__all__ = ["FragmentWorker", "read_message", "serve", "write_message"]

_TOLERANCE = 1e-4
"""Slack of a bound of logits that are computed in float32."""
_MOST_VERSIONS = 2


class FragmentWorker:
    """The fragments that a worker has open, and the scans over them.

    Args:
        device: the device of PyTorch that multiplies vectors, such as "cuda"; None: the processor.
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self._stores: dict[tuple[str, int], Store] = {}
        self._norms: dict[tuple[str, int], VectorNorms] = {}
        self._products: dict[tuple[str, int], DeviceProducts] = {}
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
            return merge_replies(given)
        task, fragments = given
        try:
            with ignore_numpy_warnings():
                reply = (self.scan if isinstance(task, ScanTask) else self.call)(task, fragments)
            return pickle.dumps(reply)
        except Exception as error:  # of a score, for example; it must not end the worker
            return _error_reply(error)

    def scan(self, task: ScanTask, fragments: Sequence[FragmentTask]) -> Reply:
        """Return the partial result of a scan over some fragments, or why a fragment cannot be read."""
        unreadable, name = dict[int, str](), (task.path, task.version)
        while True:
            left = [each for each in fragments if each.fragment.index not in unreadable]
            store = self.open_store(task)
            if self.device is not None and name not in self._products:
                self._products[name] = DeviceProducts(self.device)
            scan = _Scan(task, store, self._norms.setdefault(name, VectorNorms()), self._products.get(name))
            try:
                partial = scan.run(left, unreadable)
            except _UnreadableError as error:  # after some of its rows were added: start again without it
                unreadable[error.index] = error.reason
                continue
            return Reply(None if partial is None else to_bytes(partial), unreadable)

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
        return Reply(None, unreadable, None, results[0] if results else None, first)

    def open_store(self, task: ScanTask | StoreCall) -> Store:
        """Return the store of a task, which stays open."""
        name = (task.path, task.version)
        if name not in self._stores:
            while len(self._stores) >= _MOST_VERSIONS:
                oldest = next(iter(self._stores))
                del self._stores[oldest]
                self._norms.pop(oldest, None)
                self._products.pop(oldest, None)
            options: dict[str, Any] = {"checksums": task.checksums, "storage_options": task.storage_options}
            try:
                opened = stores.open(task.path, version=task.version, **options)
            except DamagedStoreError:  # of other fragments, perhaps; reading all files finds the intact ones
                opened = stores.open(task.path, version=task.version, damaged="skip", **options)
            self._stores[name] = opened
        return self._stores[name]


class _UnreadableError(Exception):
    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index, self.reason = index, reason


class _Scan:
    """A scan over some fragments, whose rows are added to the same sums or candidates, fragment after fragment."""

    def __init__(self, task: ScanTask, store: Store, norms: VectorNorms, products: DeviceProducts | None) -> None:
        self.task, self.store, self.queries = task, store, task.subject.count
        columns = task.columns[:-1]
        self.logits = CellLogits(task.comparison, columns, task.query, task.folded)
        self.fast = fast_logits(task.comparison, columns, task.query, norms, products)
        self.elements = max(1, task.comparison.score.elements_per_logit(1, 1))
        self.read: list[int] = []
        self.kept: list[tuple[Int[np.ndarray, " n"], RowTile]] = []

    def run(self, fragments: Sequence[FragmentTask], unreadable: dict[int, str]) -> QueryPartial | None:
        """Return the partial result over the fragments that can be read, and add the others to `unreadable`."""
        accumulates_sums = accumulates(self.task.normalizer)
        sums, rows = (self._sums if accumulates_sums else self._candidates)(self._blocks(fragments, unreadable))
        if not self.read:
            return None
        task, type_ = self.task, self.task.columns[-1].type
        plain_type = getattr(type_, "value_type", type_) if task.columns[-1].kind != "vector" else type_
        return QueryPartial(task.subject, task.normalizer, tuple(self.read), sums, rows, plain_type)

    def _blocks(
        self, fragments: Sequence[FragmentTask], unreadable: dict[int, str]
    ) -> Iterator[tuple[FragmentTask, Block]]:
        for each in fragments:
            try:
                block = self.store.block(each.fragment.name, self.task.names)
                if len(block) != each.fragment.rows:
                    raise DamagedError(f"{each.fragment.name} has {len(block)} rows instead of {each.fragment.rows}")
            except (DamagedError, OSError) as error:
                unreadable[each.fragment.index] = str(error)
                continue
            self.read.append(each.fragment.index)
            yield each, block

    def _sums(self, blocks: Iterable[tuple[FragmentTask, Block]]) -> tuple[PartialSums, RowLists]:
        """Return the sums over all rows, and the rows of evidence."""
        task = self.task
        values = streamed_aggregator_for(task.columns[-1], task.folded, self.queries, task.votes)
        accumulator = accumulator_for(task.normalizer, self.queries, values, task.subject.top)
        assert accumulator is not None

        def consume(logits: Float[np.ndarray, "q n"], first: int, cells: Shaped[np.ndarray, "n ..."] | None) -> None:
            accumulator.accumulate(logits, first, cells)  # type: ignore[arg-type]

        for each, block in blocks:
            self._run(each, block, consume, values)
            self._keep(accumulator.top_rows.row, block)
        query, place = np.nonzero(accumulator.top_rows.row >= 0)
        rows = RowLists(query, accumulator.top_rows.row[query, place], np.zeros(len(query)))
        return accumulator.sums(), self._exact(rows)

    def _candidates(self, blocks: Iterable[tuple[FragmentTask, Block]]) -> tuple[None, RowLists]:
        """Return the rows that can have weight."""
        normalizer = self.task.normalizer
        rough = with_spare_rows(normalizer, SPARE_ROWS)
        nothing = np.zeros(0, np.int64)
        found = RowLists(nothing, nothing, np.zeros(0))

        def consume(logits: Float[np.ndarray, "q n"], first: int, _: object) -> None:
            nonlocal found
            joined = found.concat(candidates_of_tile(logits, first, rough, _TOLERANCE))
            selected = select_rows(joined, rough, self.queries, _TOLERANCE)
            assert selected is not None
            found = selected

        for each, block in blocks:
            self._run(each, block, consume, None)
            self._keep(found.position, block)
        selected = select_rows(self._exact(found), normalizer, self.queries)
        assert selected is not None
        return None, selected

    def _run(self, each: FragmentTask, block: Block, consume: Consumer, aggregator: StreamedAggregator | None) -> None:
        task, offset = self.task, (len(self.read) - 1) * FRAGMENT_ROWS
        plain = streamed_aggregator_for(task.columns[-1], task.folded, 1, task.votes)
        tile_pass = TilePass(self.logits, self.fast, plain, self.queries, self.elements, each.present)

        def consume_fragment(logits: Any, first: int, cells: Any) -> None:
            consume(logits, offset + first, cells)

        count = len(block)
        try:
            for number, start in enumerate(range(0, count, task.tile)):
                stop = min(start + task.tile, count)
                tile = RowTile(start, block.rows(start, stop), block, start, self.store.cache_folder)
                tile_pass.run(tile, number not in each.incomplete, consume_fragment, aggregator)
        except (DamagedError, OSError) as error:
            raise _UnreadableError(each.fragment.index, str(error)) from None

    def _keep(self, positions: Int[np.ndarray, "*shape"], block: Block) -> None:
        """Keep the cells of the rows of the last fragment that are among some positions; others are replaced later."""
        import pyarrow as pa

        offset = (len(self.read) - 1) * FRAGMENT_ROWS
        own = np.unique(positions[positions >= offset])
        if len(own):
            rows = own - offset
            table = block.table.take(pa.array(rows if block.present is None else np.flatnonzero(block.present)[rows]))
            self.kept.append((own, RowTile(0, table, block, 0, self.store.cache_folder)))

    def _exact(self, rows: RowLists) -> RowLists:
        """Return rows with logits that are computed in float64 from their cells."""
        import pyarrow as pa

        if not len(rows.position):
            return rows
        position = np.concatenate([own for own, _ in self.kept])
        own = np.isin(position, rows.position)
        table = pa.concat_tables([tile.table for _, tile in self.kept]).take(pa.array(np.flatnonzero(own)))
        tile, position = replace(self.kept[0][1], table=table), position[own]
        loaded = self.logits.load(tile)
        assert loaded is not None
        logits = np.asarray(self.logits.compute(loaded, 0, len(position)), np.float64)
        return RowLists(rows.query, rows.position, logits[rows.query, np.searchsorted(position, rows.position)])


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
