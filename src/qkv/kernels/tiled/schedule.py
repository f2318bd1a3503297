"""Distribute batch elements and rows of tiles over worker threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from qkv.core.batch import BatchIndex, batch_indices, take_batch
from qkv.core.equation import BoundCall, side
from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_loop import ranges
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.runtime.workers import Workspace, chunks, run, threads
from qkv.kernels.tiled.generic import Folded
from qkv.kernels.tiled.logits.base import Gradients
from qkv.kernels.tiled.readouts import Seen
from qkv.kernels.tiled.softmax import Exponentials, bound_of, is_exponential

__all__ = ["backward", "forward"]

Limits = tuple[int, int]
Task = tuple[BatchIndex, Limits]


def forward(call: BoundCall, tiling: TileSizes, notes: list[str], seen: Seen | None = None) -> list[Tensor]:
    """Output, and what the normalizer keeps of each query.

    `notes` gets how guards on the data went, `seen` what is read of the weights on the way.
    """
    tile, out = call.tile, Whole(call)
    elements = _elements(call, tiling, seen)

    def work(tasks: Sequence[Task]) -> Callable[[Workspace], None]:
        def on_worker(room: Workspace) -> None:
            for index, rows in tasks:
                element = elements(index)
                output, summary = element.fold(rows, room)
                notes.extend(note for note in element.notes() if note not in notes)
                out.write(index, rows, (output, *summary))

        return on_worker

    if seen is None:
        shares = chunks(_tasks(call, tiling), threads(call.value))
    else:
        # What is read of one batch element is put together by one worker.
        every = list(batch_indices(tile.batch, tiling.most))
        shares = [
            [(index, rows) for index in some for rows in _rows(call, tiling)]
            for some in chunks(every, threads(call.value) if seen.many_workers else 1)
        ]
    run([work(some) for some in shares])
    return out.pieces


def backward(
    call: BoundCall,
    tiling: TileSizes,
    output: Tensor,
    summary: Sequence[Tensor],
    gradient: Tensor,
    logits_wanted: bool,
) -> list[Tensor]:
    """Gradients of query, key, value, the score's arrays and the normalizer's arrays.

    As in `core.guard.weigh`, an output that read an infinite value or NaN is a constant.
    """
    if not call.finite_value:
        known = output.isfinite()
        output, gradient = output.where(known, 0.0), gradient.where(known, 0.0)
    row_dot = (gradient * output).sum(dim=-1, keepdim=True)
    elements = _elements(call, tiling)
    shares = chunks(_tasks(call, tiling), threads(call.value))
    # Each worker adds into arrays of its own, so that the sum does not depend on who is first.
    sums = [Gradients.zeros(call) for _ in shares]

    def work(tasks: Sequence[Task], own: Gradients) -> Callable[[Workspace], None]:
        def on_worker(room: Workspace) -> None:
            last, there = None, own
            for index, rows in tasks:
                if index != last:
                    last, there = index, own.at(index)
                elements(index).unfold(
                    rows,
                    tuple(side(take_batch(x, index, 2), rows) for x in summary),
                    side(take_batch(row_dot, index, 2), rows),
                    side(take_batch(gradient, index, 2), rows),
                    there,
                    room,
                    logits_wanted,
                )

        return on_worker

    run([work(some, own) for some, own in zip(shares, sums, strict=True)])
    total = sums[0] if sums else Gradients.zeros(call)
    for more in sums[1:]:
        for target, x in zip(total.tensors(), more.tensors(), strict=True):
            target += x
    if is_exponential(call) and call.normalizer.scale != 1:
        for target in (total.query, total.key, *total.score.arrays()):
            if target.is_floating_point():  # not the indices that a score holds
                target *= call.normalizer.scale
    per_row = call.normalizer.array_gradients(tuple(summary), row_dot)
    for target, x in zip(total.normalizer.arrays(), per_row, strict=True):
        if x is not None:
            target = target[..., None, None] if target.ndim else target
            target += x.sum_to_size(target.shape)
    if not call.finite_value:
        total.value.masked_fill_(~call.value.isfinite(), 0.0)
    found = total.tensors()
    del total, sums
    for n, x in enumerate(found):  # one after the other, so that only one is there twice
        found[n] = x.contiguous()
    return found


def _tasks(call: BoundCall, tiling: TileSizes) -> list[Task]:
    every = batch_indices(call.tile.batch, tiling.most)
    return [(index, rows) for index in every for rows in _rows(call, tiling)]


def _rows(call: BoundCall, tiling: TileSizes) -> list[Limits]:
    return list(ranges(call.tile.q_total, tiling.rows))


def _elements(call: BoundCall, tiling: TileSizes, seen: Seen | None = None) -> Callable[[BatchIndex], Any]:
    """What folds and unfolds the batch elements at an index."""
    if is_exponential(call):
        bound = bound_of(call)

        def made(index: BatchIndex) -> Any:
            return Exponentials(call.select_batch(index), tiling.cols, bound, index, seen)

    else:

        def made(index: BatchIndex) -> Any:
            return Folded(call.select_batch(index), tiling.cols)

    held: dict[Any, Any] = {}
    lock, workers = Lock(), threads(call.value)
    most = workers + (workers > 1)

    def get(index: BatchIndex) -> Any:
        key = repr(index)
        with lock:
            # Rows of one batch element follow each other: one for each worker, and the one it comes from. The
            # first is the one that was not asked for longest.
            found = held.pop(key, None)
            if found is None:
                while len(held) >= most:
                    held.pop(next(iter(held)))
                found = made(index)
            held[key] = found
            return found

    return get


class Whole:
    """The arrays of all queries, written piece by piece."""

    def __init__(self, call: BoundCall) -> None:
        self._place, self._lock = call.tile, Lock()
        self.pieces: list[Tensor] = []

    def write(self, index: BatchIndex, rows: Limits, pieces: Sequence[Tensor]) -> None:
        """Copy what belongs to some batch elements and queries."""
        with self._lock:
            if not self.pieces:
                lead = (*self._place.batch, self._place.q_total)
                self.pieces = [x.new_empty((*lead, x.shape[-1])) for x in pieces]
        # In place: small results left between large temporaries would keep the heap from shrinking.
        for room, x in zip(self.pieces, pieces, strict=True):
            side(take_batch(room, index, 2), rows).copy_(x)
