"""A worker, which reads fragments of a store and returns the partial results of queries over them.

As a program, `python -m qkv.database.cluster.worker` reads tasks from standard input and writes replies to standard
output, each as its length in 8 bytes followed by a pickle. Both ends belong to one user on one machine.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from qkv import store as stores
from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Shaped
from qkv.database.cluster.task import FragmentTask, Reply, ScanTask
from qkv.database.execute.accumulators import accumulator_for
from qkv.database.execute.partial_sums import PartialSums
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.running_aggregates import StreamedAggregator, streamed_aggregator_for
from qkv.database.execute.scan import CellLogits, VectorNorms, fast_logits
from qkv.database.execute.streamed_call import SPARE_ROWS
from qkv.database.execute.tile_pass import Consumer, TilePass
from qkv.database.partials.arrow_format import to_bytes
from qkv.database.partials.query_partial import QueryPartial, merge_partials
from qkv.database.partials.row_lists import RowLists, accumulates, select_rows
from qkv.database.partials.scan_rows import candidates_of_tile, with_spare_rows
from qkv.errors import DamagedError, DamagedStoreError, QkvError
from qkv.store import Block, Store

__all__ = ["FragmentWorker", "read_message", "serve", "write_message"]

_TOLERANCE = 1e-4
"""Slack of a bound of logits that are computed in float32."""
_MOST_VERSIONS = 2


class FragmentWorker:
    """The fragments that a worker has open, and the scans over them."""

    def __init__(self) -> None:
        self._stores: dict[tuple[str, int], Store] = {}
        self._norms: dict[tuple[str, int], VectorNorms] = {}

    def run(self, message: bytes) -> bytes:
        """Return the reply to a pickled task and a list of fragments, as a pickle."""
        task, fragments = pickle.loads(message)
        try:
            with ignore_numpy_warnings():
                reply = self.scan(task, fragments)
        except QkvError as error:
            reply = Reply(None, {}, error)
        return pickle.dumps(reply)

    def scan(self, task: ScanTask, fragments: Sequence[FragmentTask]) -> Reply:
        """Return the partial result of a scan over some fragments, or why a fragment cannot be read."""
        parts, unreadable = [], dict[int, str]()
        for each in fragments:
            try:
                block = self._store(task).block(each.fragment.name, task.names)
                if len(block) != each.fragment.rows:
                    raise DamagedError(f"{each.fragment.name} has {len(block)} rows instead of {each.fragment.rows}")
                parts.append(self._scan_block(task, each, block))
            except (DamagedError, OSError) as error:
                unreadable[each.fragment.index] = str(error)
        return Reply(to_bytes(merge_partials(parts)) if parts else None, unreadable)

    def _store(self, task: ScanTask) -> Store:
        name = (task.path, task.version)
        if name not in self._stores:
            while len(self._stores) >= _MOST_VERSIONS:
                oldest = next(iter(self._stores))
                del self._stores[oldest]
                self._norms.pop(oldest, None)
            version, checksums = task.version, task.checksums
            try:
                opened = stores.open(task.path, version=version, checksums=checksums)
            except DamagedStoreError:  # of other fragments, perhaps; reading all files finds the intact ones
                opened = stores.open(task.path, version=version, damaged="skip", checksums=checksums)
            self._stores[name] = opened
        return self._stores[name]

    def _scan_block(self, task: ScanTask, each: FragmentTask, block: Block) -> QueryPartial:
        norms = self._norms.setdefault((task.path, task.version), VectorNorms())
        columns = task.columns[:-1]
        cells = CellLogits(task.comparison, columns, task.query, task.folded)
        fast = fast_logits(task.comparison, columns, task.query, norms)
        elements = max(1, task.comparison.score.elements_per_logit(1, 1))
        plain = streamed_aggregator_for(task.columns[-1], task.folded, 1, task.votes)
        tile_pass = TilePass(cells, fast, plain, task.subject.count, elements, each.present)
        scan = _BlockScan(task, each, block, tile_pass, self._store(task).cache_folder)
        sums, rows = scan.sums() if accumulates(task.normalizer) else (None, scan.candidates())
        type_ = task.columns[-1].type
        plain_type = getattr(type_, "value_type", type_) if task.columns[-1].kind != "vector" else type_
        return QueryPartial(task.subject, task.normalizer, (each.fragment.index,), sums, rows, plain_type)


class _BlockScan:
    def __init__(self, task: ScanTask, each: FragmentTask, block: Block, tile_pass: TilePass, cache: Path) -> None:
        self.task, self.each, self.block, self.tile_pass, self.cache = task, each, block, tile_pass, cache
        self.queries = task.subject.count

    def sums(self) -> tuple[PartialSums, RowLists]:
        """Return the sums over all rows, and the rows of evidence."""
        task = self.task
        values = streamed_aggregator_for(task.columns[-1], task.folded, self.queries, task.votes)
        accumulator = accumulator_for(task.normalizer, self.queries, values, task.subject.top)
        assert accumulator is not None

        def consume(logits: Float[np.ndarray, "q n"], first: int, cells: Shaped[np.ndarray, "n ..."] | None) -> None:
            accumulator.accumulate(logits, first, cells)  # type: ignore[arg-type]

        self._run(consume, values)
        found = accumulator.top_rows.row
        query, place = np.nonzero(found >= 0)
        rows = RowLists(query, found[query, place], np.zeros(len(query)))
        return accumulator.sums(), self._exact(rows)

    def candidates(self) -> RowLists:
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

        self._run(consume, None)
        selected = select_rows(self._exact(found), normalizer, self.queries)
        assert selected is not None
        return selected

    def _run(self, consume: Consumer, aggregator: StreamedAggregator | None) -> None:
        count = len(self.block)
        for number, start in enumerate(range(0, count, self.task.tile)):
            stop = min(start + self.task.tile, count)
            tile = RowTile(start, self.block.rows(start, stop), self.block, start, self.cache)
            self.tile_pass.run(tile, number not in self.each.incomplete, consume, aggregator)

    def _exact(self, rows: RowLists) -> RowLists:
        """Return rows with logits that are computed in float64 from their cells."""
        import pyarrow as pa

        own = np.unique(rows.position)
        if not len(own):
            return rows
        places = own if self.block.present is None else np.flatnonzero(self.block.present)[own]
        table = self.block.table.take(pa.array(places))
        logits_of = self.tile_pass.cell_logits
        loaded = logits_of.load(RowTile(0, table, self.block, 0, self.cache))
        assert loaded is not None
        logits = np.asarray(logits_of.compute(loaded, 0, len(own)), np.float64)
        return RowLists(rows.query, rows.position, logits[rows.query, np.searchsorted(own, rows.position)])


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
