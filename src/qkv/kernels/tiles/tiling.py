"""How a call is cut into tiles, and who works on which: batch elements first, then rows of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from qkv.core.arrays import Array
from qkv.core.batch import Index, indices, take
from qkv.core.equation import Ready, side
from qkv.kernels.fold import spans
from qkv.kernels.tiles.exponentials import Exponentials, bound_of, is_exponential
from qkv.kernels.tiles.folded import Folded
from qkv.kernels.tiles.pairs import Gradients
from qkv.kernels.tiles.seen import Seen
from qkv.kernels.tiles.workers import Room, chunks, run, threads
from qkv.plan.cost import tile_sides
from qkv.plan.problem import Problem

__all__ = ["Tiling", "backward", "forward", "tile_alive", "tiling_of"]

Limits = tuple[int, int]
Task = tuple[Index, Limits]


@dataclass(frozen=True)
class Tiling:
    """Sizes of a tile.

    Attributes:
        rows, cols: queries and keys of a tile.
        most: batch elements in a tile.
    """

    rows: int
    cols: int
    most: int


def tiling_of(problem: Problem, budget: int, careful: bool = False) -> Tiling:
    """Tiles of at most `budget` numbers in their widest array.

    One batch element after the other, so that a tile is a plain matrix; small ones together. `careful`: for
    data that is not finite, whose tiles take the way of every score.
    """
    axes = problem.axes
    # Half of the memory allowed is for tiles.
    allowed = problem.memory // 2 // (problem.itemsize * tile_alive(problem, careful))
    elements = _elements_of(problem, careful)
    by_units = problem.score.unit == "tanh" and elements == 1
    pairs = max(1, min(budget // elements, allowed))
    if axes.q * axes.k <= pairs:
        most = 1 if by_units else pairs // max(1, axes.q * axes.k)
        return Tiling(max(1, axes.q), max(1, axes.k), max(1, most))
    rows = _narrowed(problem, tile_sides(axes.q, axes.k, pairs)[0])
    if rows >= 128:
        rows = 2 ** (rows.bit_length() - 1)
    cols = max(1, pairs // rows)
    # Whole vectors of the processor: odd lengths cost matrix products a tenth.
    return Tiling(rows, min(axes.k, cols - cols % 64 if cols > 64 else cols), 1)


_TILE_OVERHEAD = 25_000
"""What starting a tile costs, in pairs computed."""


def _narrowed(problem: Problem, rows: int) -> int:
    """Fewer rows to a tile where a mask reaches few keys: what a tile holds too much is computed too."""
    mask, q = problem.spec.mask, problem.axes.q
    if mask is None or rows < 128:
        return rows

    def cost(rows: int) -> float:
        middle = (q - rows) // 2
        start, stop = mask.reach(problem.place.cut((middle, middle + rows), (0, problem.axes.k)))
        return max(1, stop - start) + _TILE_OVERHEAD / rows

    return min((rows, rows // 2, rows // 4, rows // 8), key=cost)


def tile_alive(problem: Problem, careful: bool = False) -> int:
    """Numbers in memory at once for each pair of a tile."""
    elements = _elements_of(problem, careful)
    return (8 + 4 * elements) if problem.gradient else (4 + 2 * elements)


def _elements_of(problem: Problem, careful: bool) -> int:
    """Numbers in memory at once for each logit."""
    axes, normalizer = problem.axes, problem.normalizer
    # `units.py` never holds the hidden units of a tile, but takes one batch element after the other.
    tiles = normalizer.log_sum_exp and normalizer.scale is not None and not careful
    if problem.score.unit == "gate" and tiles:
        return 1
    by_units = problem.score.unit == "tanh" and tiles and axes.q * axes.k >= 64 * 64
    return 1 if by_units else problem.elements_per_logit


def forward(ready: Ready, tiling: Tiling, notes: list[str], seen: Seen | None = None) -> list[Array]:
    """Output, and what the normalizer keeps of each query.

    `notes` gets how guards on the data went, `seen` what is read of the weights on the way.
    """
    place, out = ready.place, Whole(ready)
    elements = _elements(ready, tiling, seen)

    def work(tasks: Sequence[Task]) -> Callable[[Room], None]:
        def on_worker(room: Room) -> None:
            for index, rows in tasks:
                element = elements(index)
                output, summary = element.fold(rows, room)
                notes.extend(note for note in element.notes() if note not in notes)
                out.write(index, rows, (output, *summary))

        return on_worker

    if seen is None:
        shares = chunks(_tasks(ready, tiling), threads(ready.value))
    else:
        # What is read of one batch element is put together by one worker.
        every = list(indices(place.batch, tiling.most))
        shares = [
            [(index, rows) for index in some for rows in _rows(ready, tiling)]
            for some in chunks(every, threads(ready.value) if seen.many_workers else 1)
        ]
    run([work(some) for some in shares])
    return out.pieces


def backward(
    ready: Ready,
    tiling: Tiling,
    output: Array,
    summary: Sequence[Array],
    gradient: Array,
    logits_wanted: bool,
) -> list[Array]:
    """Gradients of query, key, value, the score's arrays and the normalizer's arrays."""
    row_dot = (gradient * output).sum(dim=-1, keepdim=True)
    elements = _elements(ready, tiling)
    shares = chunks(_tasks(ready, tiling), threads(ready.value))
    # Each worker adds into arrays of its own, so that the sum does not depend on who is first.
    sums = [Gradients.zeros(ready) for _ in shares]

    def work(tasks: Sequence[Task], own: Gradients) -> Callable[[Room], None]:
        def on_worker(room: Room) -> None:
            last, there = None, own
            for index, rows in tasks:
                if index != last:
                    last, there = index, own.at(index)
                elements(index).unfold(
                    rows,
                    tuple(side(take(x, index, 2), rows) for x in summary),
                    side(take(row_dot, index, 2), rows),
                    side(take(gradient, index, 2), rows),
                    there,
                    room,
                    logits_wanted,
                )

        return on_worker

    run([work(some, own) for some, own in zip(shares, sums, strict=True)])
    total = sums[0] if sums else Gradients.zeros(ready)
    for more in sums[1:]:
        for target, x in zip(total.tensors(), more.tensors(), strict=True):
            target += x
    if is_exponential(ready) and ready.normalizer.scale != 1:
        for target in (total.query, total.key, *total.score.arrays()):
            if target.is_floating_point():  # not the indices that a score holds
                target *= ready.normalizer.scale
    per_row = ready.normalizer.array_gradients(tuple(summary), row_dot)
    for target, x in zip(total.normalizer.arrays(), per_row, strict=True):
        if x is not None:
            target = target[..., None, None] if target.ndim else target
            target += x.sum_to_size(target.shape)
    found = total.tensors()
    del total, sums
    for n, x in enumerate(found):  # one after the other, so that only one is there twice
        found[n] = x.contiguous()
    return found


def _tasks(ready: Ready, tiling: Tiling) -> list[Task]:
    every = indices(ready.place.batch, tiling.most)
    return [(index, rows) for index in every for rows in _rows(ready, tiling)]


def _rows(ready: Ready, tiling: Tiling) -> list[Limits]:
    return list(spans(ready.place.q_total, tiling.rows))


def _elements(ready: Ready, tiling: Tiling, seen: Seen | None = None) -> Callable[[Index], Any]:
    """What folds and unfolds the batch elements at an index."""
    if is_exponential(ready):
        bound = bound_of(ready)

        def made(index: Index) -> Any:
            return Exponentials(ready.at(index), tiling.cols, bound, index, seen)

    else:

        def made(index: Index) -> Any:
            return Folded(ready.at(index), tiling.cols)

    held: dict[Any, Any] = {}
    lock = Lock()

    def get(index: Index) -> Any:
        key = repr(index)
        with lock:
            if key not in held:
                # Rows of one batch element follow each other: the last few are enough.
                while len(held) > 8:
                    held.pop(next(iter(held)))
                held[key] = made(index)
            return held[key]

    return get


class Whole:
    """The arrays of all queries, written piece by piece."""

    def __init__(self, ready: Ready) -> None:
        self._place, self._lock = ready.place, Lock()
        self.pieces: list[Array] = []

    def write(self, index: Index, rows: Limits, pieces: Sequence[Array]) -> None:
        """Copy what belongs to some batch elements and queries."""
        with self._lock:
            if not self.pieces:
                lead = (*self._place.batch, self._place.q_total)
                self.pieces = [x.new_empty((*lead, x.shape[-1])) for x in pieces]
        # In place: small results left between large temporaries would keep the heap from shrinking.
        for room, x in zip(self.pieces, pieces, strict=True):
            side(take(room, index, 2), rows).copy_(x)
