"""What a worker receives and returns: a function of some fragments, such as a scan for a group of queries.

A worker prepares a fragment once for a function of its rows, such as the keys of its rows, keeps the result in memory,
and merges the results of its fragments; the scheduler merges those of all workers.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.checksums import checksums_wanted
from qkv.core.typing import Bool, Int, Shaped
from qkv.database.execute.aggregates import value_sums
from qkv.database.execute.partial_sums import Mergeable, merge_in_tree
from qkv.database.execute.row_reader import RowTile
from qkv.database.keys.comparisons import Comparison
from qkv.database.partials.query_partial import QueryPartial, Subject, fragment_partial
from qkv.encoders.columns import Column
from qkv.errors import DamagedError, DamagedStoreError, RefusedError
from qkv.normalizers.base import Normalizer
from qkv.store import StorageOptions, Store

if TYPE_CHECKING:
    from qkv.database.cluster.scheduler import Scheduler
    from qkv.database.cluster.worker import FragmentWorker


@dataclass(frozen=True)
class StoreVersion:
    """A version of a store, as it is opened by a worker.

    Attributes:
        path, version: the store.
        checksums: whether files are verified when they are first read.
        storage_options: settings of the object store, which may be secret and are not shown.
    """

    path: str
    version: int
    checksums: bool
    storage_options: StorageOptions = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, store: Store, storage_options: StorageOptions) -> StoreVersion:
        """Return the open version of a store."""
        return cls(str(store.path.absolute()), store.version, checksums_wanted(), storage_options)


@dataclass(frozen=True, eq=False)
class FragmentRows:
    """A fragment of a store, which is one of its blocks.

    Attributes:
        index: the index of the fragment in the version.
        name: the name of the block.
        rows: number of rows.
    """

    index: int
    name: str
    rows: int

    @classmethod
    def of(cls, store: Store) -> list[FragmentRows]:
        """Return the fragments of the open version of a store."""
        named = zip(store.block_names(), store.block_lengths(), strict=True)
        return [cls(index, *pair) for index, pair in enumerate(named)]


@dataclass(frozen=True, eq=False)
class FragmentTask:
    """One fragment of a scan, with its selected rows and its tiles that have missing cells.

    Attributes:
        fragment: the fragment.
        incomplete: the indices of its tiles with a missing cell.
        present: True for the selected rows; None for all.
    """

    fragment: FragmentRows
    incomplete: frozenset[int]
    present: Bool[np.ndarray, " rows"] | None


class FragmentCall(Protocol):
    """A function of a fragment, which workers run for each of their fragments."""

    def run(self, worker: FragmentWorker, each: FragmentTask) -> Mergeable:
        """Return the partial result over a fragment, or raise a `DamagedError` or an `OSError`."""


@dataclass(frozen=True, eq=False)
class ScanTask:
    """A scan for a group of queries, which is the same for all fragments; a `FragmentCall`.

    Attributes:
        store: the store.
        names: the key and value columns.
        tile: maximum number of rows of a tile.
        columns: the key columns and the value column, without rows.
        comparison: the comparison, without rows.
        normalizer: the normalizer.
        query: the query array of the engine.
        folded: whether texts are folded.
        votes: whether the values vote.
        subject: what the partial result is about.
    """

    store: StoreVersion
    names: tuple[str, ...]
    tile: int
    columns: tuple[Column, ...]
    comparison: Comparison
    normalizer: Normalizer
    query: Shaped[np.ndarray, "q ..."]
    folded: bool
    votes: bool
    subject: Subject

    def run(self, worker: FragmentWorker, each: FragmentTask) -> QueryPartial:
        """Return the partial result of the queries over a fragment."""
        store, scan = worker.open_store(self.store), worker.scan_of(self)
        block = store.block(each.fragment.name, self.names)
        if len(block) != each.fragment.rows:
            raise DamagedError(f"{each.fragment.name} has {len(block)} rows instead of {each.fragment.rows}")

        def tiles() -> Iterator[RowTile]:
            for number, start in enumerate(range(0, len(block), self.tile)):
                stop = min(start + self.tile, len(block))
                selected = None if each.present is None else each.present[start:stop]
                place = start, block.rows(start, stop), block, start, store.cache_folder
                yield RowTile(*place, number not in each.incomplete, selected)

        values = value_sums(scan.value, self.subject.count, self.votes)
        return fragment_partial(scan, tiles, block.take, self.subject, self.normalizer, values, each.fragment.index)


@dataclass(frozen=True, eq=False)
class Reply:
    """The result of a scan or a call over some fragments.

    Attributes:
        result: the merged result over the fragments that could be read; None without any.
        unreadable: the reason for each other fragment, by index.
        error: an exception of qkv that it raised, such as one of cells that a score does not fit; None for none.
        first: the index of the first fragment of the result, in the order of which results are merged.
    """

    result: Any
    unreadable: Mapping[int, str]
    error: Exception | None = None
    first: int = 0


def serialize(task: object) -> bytes:
    """Return the bytes of a task, by which it is broadcast.

    Raises:
        RefusedError: A part of it, such as a score with a function that is not in a module, cannot be sent.
    """
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            import cloudpickle
        except ImportError:
            raise RefusedError(
                f"score and normalizer must be picklable for a cluster, but: {error}. Define their functions in a "
                "module, install cloudpickle, or open the store without cluster."
            ) from None
        return bytes(cloudpickle.dumps(task))


def merge_replies(replies: Sequence[bytes]) -> Reply:
    """Return the merge of replies to the same task over different fragments, each of which is a pickle.

    It does not depend on their order. An error in one of them is that of the merge.
    """
    loaded: list[Reply] = [pickle.loads(each) for each in replies]
    error = next((each.error for each in loaded if each.error is not None), None)
    unreadable = {index: reason for each in loaded for index, reason in each.unreadable.items()}
    found = sorted((each for each in loaded if each.result is not None), key=lambda each: each.first)
    if error is not None or not found:
        return Reply(None, unreadable, error)
    with ignore_numpy_warnings():
        return Reply(merge_in_tree([each.result for each in found]), unreadable, None, found[0].first)


class StoreFunction(Protocol):
    """A function of the rows of a fragment of a store."""

    @property
    def name(self) -> str:
        """The name under which a worker caches the results of `prepare`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""

    def prepare(self, table: pa.Table) -> object:
        """Return the data of a fragment that all calls need, computed from its rows once."""

    def run(self, rows: Any, fragment: int) -> Mergeable:
        """Return the partial result over a fragment."""


@dataclass(frozen=True, eq=False)
class StoreCall:
    """A `StoreFunction`, with the version of the store that it reads; a `FragmentCall`."""

    store: StoreVersion
    function: StoreFunction

    def run(self, worker: FragmentWorker, each: FragmentTask) -> Mergeable:
        """Return the result of the function over a fragment, whose rows are read once."""

        def prepare() -> object:
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
        merged: Mergeable | None = None
        for each in self.fragments:  # prepared again for each call, as the rows may exceed the memory
            block = self.store.block(each.name, function.names)
            with ignore_numpy_warnings():
                result = function.run(function.prepare(block.rows(0, len(block))), each.index)
                merged = result if merged is None else merged.merge(result)
        return merged
