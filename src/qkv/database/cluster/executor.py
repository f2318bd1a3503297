"""Execution of queries over a store whose fragments belong to the workers of a cluster.

The comparison is chosen here, from statistics of all rows, and broadcast with the queries. The workers return partial
results over their fragments; these are merged, and the rows of evidence are read here, as if the pass over all rows had
been in this process. Statistics are computed here, in one pass that is saved with the store.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qkv.core.formatting import counted
from qkv.core.progress import Progress
from qkv.core.typing import Int, Shaped
from qkv.database.answer import Answer
from qkv.database.cluster.scheduler import Scheduler
from qkv.database.cluster.task import FragmentRows, FragmentTask, ScanTask, StoreVersion
from qkv.database.execute.aggregates import value_sums
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.partial_sums import Accumulator, PartialSums
from qkv.database.execute.row_lists import FRAGMENT_ROWS
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.execute.streamed import StreamedCall, StreamedExecutor
from qkv.database.partials.aggregate_functions import check_mergeable
from qkv.database.partials.arrow_format import normalizer_record
from qkv.database.partials.query_partial import QueryPartial, Subject
from qkv.errors import DamagedStoreError, QkvError
from qkv.store import Store
from qkv.store.damage import unread_text


class _Unreadable(threading.local):
    """The unreadable fragments of the query of each thread, so that answers do not mix them."""

    def __init__(self) -> None:
        self.fragments: dict[int, str] = {}


class ClusterCall(StreamedCall):
    """The execution of one call of `ask` by the workers of a cluster."""

    executor: ClusterExecutor

    @property
    def local_reason(self) -> str:
        """Why the pass over all rows is in this process; empty if it is that of the workers."""
        if self.line is not None:
            return "local linear regression"
        try:
            normalizer_record(self.normalizer)
            check_mergeable(self.normalizer)
        except QkvError:
            return f"the normalizer {self.normalizer}"
        return ""

    def plan(self, queries: int) -> StreamedPlan:
        """Return the plan, which states the workers."""
        scheduler, count = self.executor.scheduler, len(self.executor.fragments)
        text = f"{scheduler.count} {scheduler.kind}, {counted(count, 'fragment', 'fragments')}"
        if self.local_reason:
            text = f"none; {self.local_reason} runs in this process"
        return replace(super().plan(queries), cluster=text)

    def sums(
        self, query: Shaped[np.ndarray, "q ..."], evidence: int, progress: Progress | None
    ) -> tuple[PartialSums, Int[np.ndarray, " rows"]]:
        if self.local_reason:
            return super().sums(query, evidence, progress)
        merged = self._run(query, evidence)
        if merged is None:
            values = value_sums(self.executor.value_column, len(query), self.executor.votes)
            return Accumulator(self.normalizer, values, len(query), 0).sums, np.zeros(0, np.int64)
        assert merged.sums is not None
        return merged.sums, self._rows_of(merged)

    def candidates(self, query: Shaped[np.ndarray, "q ..."], progress: Progress | None) -> Int[np.ndarray, " rows"]:
        if self.local_reason:
            return super().candidates(query, progress)
        merged = self._run(query, self.top)
        return np.zeros(0, np.int64) if merged is None else self._rows_of(merged)

    def _rows_of(self, merged: QueryPartial) -> Int[np.ndarray, " rows"]:
        """Return the indices in the table of the rows of a result, in ascending order."""
        starts = np.concatenate([[0], np.cumsum([each.rows for each in self.executor.fragments])])
        number, row = np.divmod(merged.rows.position, FRAGMENT_ROWS)
        fragments = np.array(merged.fragments, np.int64)
        return np.unique(starts[fragments[number]] + row)

    def _run(self, query: Shaped[np.ndarray, "q ..."], evidence: int) -> QueryPartial | None:
        """Return the merged result of the workers, or None without a selected row that can be read."""
        executor, rows = self.executor, self.rows
        columns = executor.read_columns(rows.store.empty(self.names))
        tile = rows.tile_rows(self.names)
        subject = Subject(
            queries=uuid.uuid4().hex,
            count=len(query),
            key=executor.key,
            value=executor.value,
            score=str(self.comparison.score),
            normalizer=str(self.normalizer),
            version=rows.store.identity,
            top=evidence,
        )
        task = ScanTask(
            store=StoreVersion.of(rows.store, executor.scheduler.storage_options),
            names=self.names,
            tile=tile,
            columns=columns,
            comparison=self.comparison.with_rows(columns[:-1]),
            normalizer=self.normalizer,
            query=query,
            folded=executor.fold,
            votes=executor.votes,
            subject=subject,
        )
        tasks, first_row, first_tile = [], 0, 0
        for each in executor.fragments:
            tiles = -(-each.rows // tile)
            incomplete = frozenset(n for n in range(tiles) if first_tile + n in self.incomplete_tiles)
            present = None if self.present is None else self.present[first_row : first_row + each.rows]
            if present is None or present.any():
                tasks.append(FragmentTask(each, incomplete, present))
            first_row, first_tile = first_row + each.rows, first_tile + tiles
        return executor.scan(task, tasks) if tasks else None


class ClusterExecutor(StreamedExecutor):
    """Executor that answers queries over one version of a store by the workers of a cluster.

    Args:
        store, key, value, name, fold, progress, hidden: as in `StreamedExecutor`.
        scheduler: the workers. If it skips fragments that cannot be read, the notes of an answer state them.
    """

    call: type[StreamedCall] = ClusterCall

    def __init__(
        self,
        store: Store,
        key: Sequence[str],
        value: str,
        name: str,
        fold: bool,
        progress: Progress | None,
        hidden: Sequence[str],
        scheduler: Scheduler,
    ) -> None:
        super().__init__(store, key, value, name, fold, progress, hidden)
        self.codes = None  # the workers compare all rows
        self.scheduler = scheduler
        self.fragments = FragmentRows.of(self.table.store)
        self._found = _Unreadable()

    @property
    def unreadable(self) -> dict[int, str]:
        """The fragments that the query of this thread could not read, with the reason."""
        return self._found.fragments

    def ask(self, queries: object, options: AskOptions) -> Answer:
        """Return the answer of the workers, whose notes state the fragments that could not be read."""
        self.unreadable.clear()
        answer = super().ask(queries, options)
        if not self.unreadable:
            return answer
        return answer.with_missing(self._unreadable_note())

    def _unreadable_note(self) -> str:
        lost = sum(self.fragments[index].rows for index in self.unreadable)
        named = [f"{self.fragments[index].name}: {reason}" for index, reason in sorted(self.unreadable.items())]
        return unread_text(named, len(self.fragments), lost)

    def scan(self, task: ScanTask, fragments: Sequence[FragmentTask]) -> QueryPartial | None:
        """Return the merged result of a scan, or None without a fragment that can be read.

        Raises:
            DamagedStoreError: A fragment cannot be read, and the store was not opened with `damaged="skip"`.
        """
        merged: QueryPartial | None
        merged, unreadable = self.scheduler.call(task, fragments)
        self.unreadable.update(unreadable)
        if unreadable and not self.scheduler.skip:
            raise DamagedStoreError(
                f"{self._unreadable_note()}. Restore these files from a copy, or open {self.name} with damaged='skip' "
                "for answers from the other fragments."
            )
        return merged
