"""Calls of a function for each fragment of a store or of an index, by the workers that hold them.

A worker prepares a fragment once, such as the keys of its rows, keeps the result in memory, and merges the results of
its fragments; the scheduler merges those of all workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Int
from qkv.database.cluster.task import FragmentCall, FragmentRows, FragmentTask, StoreVersion
from qkv.errors import DamagedStoreError
from qkv.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.database.cluster.scheduler import Scheduler
    from qkv.database.cluster.worker import FragmentWorker

__all__ = ["StoreCall", "StoreFragments", "StoreFunction", "run_call"]


class StoreFunction(Protocol):
    """A function of the rows of a fragment of a store."""

    @property
    def name(self) -> str:
        """The name under which the worker keeps what `prepare` returns."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""

    def prepare(self, table: pa.Table) -> Any:
        """Return what is computed once from the rows of a fragment."""

    def run(self, rows: Any, fragment: int) -> Any:
        """Return the partial result over a fragment."""


@dataclass(frozen=True, eq=False)
class StoreCall:
    """A `StoreFunction`, with the version of the store that it reads; a `FragmentCall`."""

    store: StoreVersion
    function: StoreFunction

    def run(self, worker: FragmentWorker, each: FragmentTask) -> Any:
        """Return the result of the function over a fragment, whose rows are read once."""

        def prepare() -> Any:
            block = worker.open_store(self.store).block(each.fragment.name, self.function.names)
            return self.function.prepare(block.rows(0, len(block)))

        index = each.fragment.index
        return self.function.run(worker.prepared(self.function.name, index, prepare), index)


def run_call(scheduler: Scheduler, call: FragmentCall, fragments: Sequence[FragmentRows], source: str) -> Any:
    """Return the merged result of a call over all fragments.

    Raises:
        DamagedStoreError: A fragment cannot be read. It is never left out.
    """
    result, unreadable = scheduler.call(call, [FragmentTask(each, frozenset(), None) for each in fragments])
    if unreadable:
        index, reason = min(unreadable.items())
        raise DamagedStoreError(
            f"{len(unreadable)} of {len(fragments)} fragments of {source} could not be read: {fragments[index].name}: "
            f"{reason}. Restore these files from a copy."
        )
    return result


class StoreFragments:
    """The fragments of one version of a store, over which functions run by the workers of a cluster or in this process.

    Args:
        store: the store; its current version is read.
        key, value: names of the columns.
        scheduler: the workers; None: this process.
    """

    def __init__(self, store: Store, key: tuple[str, ...], value: str, scheduler: Scheduler | None) -> None:
        self.store, self.key, self.value, self.scheduler = store.snapshot(), key, value, scheduler
        if self.store.damages:
            warnings.warn(f"{store.path.name!r}: {store.skipped}", UserWarning, stacklevel=4)
        self.fragments = FragmentRows.of(self.store)

    def lengths(self) -> list[int]:
        """Return the number of rows of each fragment."""
        return [each.rows for each in self.fragments]

    def read(self, names: tuple[str, ...], rows: Int[np.ndarray, " n"] | None = None) -> pa.Table:
        """Return some columns of all rows, or of the rows with some indices in ascending order."""
        import pyarrow as pa

        if rows is not None:
            return self.store.take(rows, list(names))
        blocks = [block.rows(0, len(block)) for block in self.store.blocks(list(names))]
        return pa.concat_tables([self.store.empty(list(names)), *blocks])

    def run(self, function: StoreFunction) -> Any:
        """Return the merged results of a function over all fragments.

        Raises:
            DamagedStoreError: A fragment cannot be read.
        """
        if self.scheduler is not None:
            call = StoreCall(StoreVersion.of(self.store, self.scheduler.storage_options), function)
            return run_call(self.scheduler, call, self.fragments, self.store.path.name)
        merged: Any = None
        for each in self.fragments:  # prepared again for each call, as the rows may exceed the memory
            block = self.store.block(each.name, function.names)
            with ignore_numpy_warnings():
                result = function.run(function.prepare(block.rows(0, len(block))), each.index)
                merged = result if merged is None else merged.merge(result)
        return merged
