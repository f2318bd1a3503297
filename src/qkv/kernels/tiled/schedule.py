"""Assignment of the tiles of a call to workers, a cache of objects for batch elements, and output buffers.

A task is a range of queries of some batch elements. Consecutive tasks of a batch element are assigned to one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

from qkv.core.batch import BatchIndex, batch_indices, take_batch
from qkv.core.equation import TorchCall, take_range
from qkv.core.tile import Tile
from qkv.core.typing import Num, Tensor
from qkv.kernels.runtime.tile_loop import Limits, ranges
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.runtime.workers import split_evenly, worker_count

__all__ = ["ElementCache", "OutputBuffers", "Task", "shares_by_element", "shares_by_rows"]

Task = tuple[BatchIndex, Limits]


def shares_by_rows(call: TorchCall, sizes: TileSizes) -> list[Sequence[Task]]:
    """Return a list of tasks for each worker. The queries of a batch element may be split between workers."""
    rows = list(ranges(call.tile.q_total, sizes.rows))
    tasks = [(index, limits) for index in batch_indices(call.tile.batch, sizes.batch) for limits in rows]
    return split_evenly(tasks, worker_count(call.value))


def shares_by_element(call: TorchCall, sizes: TileSizes, in_parallel: bool) -> list[Sequence[Task]]:
    """Return a list of tasks for each worker. All queries of a batch element go to the same worker.

    Without `in_parallel`, a single worker has all tasks.
    """
    rows = list(ranges(call.tile.q_total, sizes.rows))
    elements = list(batch_indices(call.tile.batch, sizes.batch))
    shares = split_evenly(elements, worker_count(call.value) if in_parallel else 1)
    return [[(index, limits) for index in share for limits in rows] for share in shares]


class _GuardReporter(Protocol):
    """Protocol of objects that report which fast paths the data allowed."""

    def guard_notes(self) -> tuple[str, ...]:
        """Return one phrase for each guard on the data, which states whether its fast path was taken."""


_Element = TypeVar("_Element", bound=_GuardReporter)


class ElementCache(Generic[_Element]):
    """Cache of the most recently used objects that compute a batch element, shared by all workers.

    Args:
        create: function that creates the element at an index.
        call: the call.
    """

    def __init__(self, create: Callable[[BatchIndex], _Element], call: TorchCall) -> None:
        self._create, self._lock = create, Lock()
        workers = worker_count(call.value)
        # Each worker computes the rows of one element at a time, and workers may be between two elements.
        self._capacity = workers + (workers > 1)
        self._elements: dict[str, _Element] = {}
        self._notes: list[str] = []

    def __call__(self, index: BatchIndex) -> _Element:
        """Return the object for the batch element at `index`, which is created if it is not in the cache.

        If the cache is full, the least recently used object is dropped.
        """
        key = repr(index)
        with self._lock:
            element = self._elements.pop(key, None)
            if element is None:
                while len(self._elements) >= self._capacity:
                    self._note(self._elements.pop(next(iter(self._elements))))
                element = self._create(index)
            self._elements[key] = element
            return element

    def guard_notes(self) -> list[str]:
        """Return the distinct guard notes of all objects created so far."""
        for element in self._elements.values():
            self._note(element)
        return self._notes

    def _note(self, element: _Element) -> None:
        self._notes.extend(note for note in element.guard_notes() if note not in self._notes)


class OutputBuffers:
    """Arrays for the results of all queries of a call, to which workers write one range of queries at a time.

    Attributes:
        arrays: tensors `(*batch, q, width)`, allocated by the first write.
    """

    def __init__(self, tile: Tile) -> None:
        self._tile, self._lock = tile, Lock()
        self.arrays: list[Tensor] = []

    def write(self, index: BatchIndex, rows: Limits, arrays: Sequence[Num[Tensor, "*batch q _"]]) -> None:
        """Copy `arrays`, the results of a range of queries of some batch elements, to the buffers."""
        with self._lock:
            if not self.arrays:
                lead = (*self._tile.batch, self._tile.q_total)
                self.arrays = [x.new_empty((*lead, x.shape[-1])) for x in arrays]
        # Copy in place: new small arrays between large temporaries would fragment the heap.
        for whole, x in zip(self.arrays, arrays, strict=True):
            take_range(take_batch(whole, index, 2), rows).copy_(x)
