"""Readouts of tiles: put together as tiles come, without whole rows; NumPy and PyTorch, without gradients.

A normalizer that folds in one pass gives the weights of any tile once its summary of the rows is known; so
readouts are a second pass over the tiles:

    reading = Reading(readouts, place)                                  once for the call
    for each batch element, some queries:
        read_rows(reading, call, summary, rows, cols, index)           after they were folded
    reading.results()

Nothing is held but the results and what one tile shows. What can be had in the first pass, the one that makes
the output, is in `tiled/pooled_map.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkv.core.arrays import Array, zeros
from qkv.core.batch import BatchIndex
from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.kernels.runtime.tile_loop import Limits, fully_masked, ranges
from qkv.normalizers.base import Summary
from qkv.readouts import Readout
from qkv.readouts.base import flatten, unflatten

__all__ = ["ReadoutAccumulator", "read_rows", "readable_by_tile", "readable_in_forward"]


def readable_by_tile(readouts: Sequence[Readout], normalizer: Any) -> bool:
    """Whether these readouts can be had tile by tile."""
    return normalizer.online and all(readout.accepts_tiles for readout in readouts)


def readable_in_forward(readouts: Sequence[Readout], normalizer: Any) -> bool:
    """Whether they can be read on the way to an output without a gradient, in PyTorch."""
    return bool(normalizer.log_sum_exp and readable_by_tile(readouts, normalizer))


class ReadoutAccumulator:
    """The results of readouts while they are put together.

    Args:
        readouts: what is read.
        place: of the whole call.
    """

    def __init__(self, readouts: Sequence[Readout], tile: Tile) -> None:
        self.tile = tile
        self.parts = [_Part(readout, tile) for readout in readouts]

    def absorb(self, logits: Array, weights: Array, normalizer: Any, tile: Tile, index: BatchIndex = ()) -> None:
        """Read a tile.

        Args:
            logits: of the tile, −inf where a key is excluded.
            weights: of the tile, before dropout.
            normalizer: that of the tile's batch elements.
            place: of the tile.
            index: of the tile's batch elements in the call; (): all of them.
        """
        for part in self.parts:
            part.absorb(logits, weights, normalizer, tile, index)

    def add(self, found: Sequence[Any], tile: Tile) -> None:
        """What each readout has read of a tile of all batch elements."""
        for part, result in zip(self.parts, found, strict=True):
            part.add(part.readout, flatten(result), tile, (), type(result))

    def skip(self, tile: Tile, index: BatchIndex = ()) -> None:
        """Pass over a tile in which the mask allows nothing. The first tile of a row must not be skipped."""
        for part in self.parts:
            part.skip(tile, index)

    def results(self) -> tuple[Any, ...]:
        """What all tiles show together, in the order of the readouts."""
        return tuple(part.result() for part in self.parts)


class _Part:
    """One readout: its arrays of the whole, made when the first tile comes."""

    def __init__(self, readout: Readout, tile: Tile) -> None:
        self.readout, self.tile = readout, tile
        self.heads = readout.head_indices
        self.batch = tile.batch if self.heads is None else (*tile.batch[:-1], len(self.heads))
        self.rooms: list[Array] = []
        self.kind: Any = None

    def absorb(self, logits: Array, weights: Array, normalizer: Any, tile: Tile, index: BatchIndex) -> None:
        if self.heads is None or not index:
            result = self.readout.read(logits, weights, normalizer, tile)
            self.add(self.readout, flatten(result), tile, index, type(result))
            return
        inner = self.readout.per_head
        for to, at in self._of_heads(index):
            if at is None:
                arguments = (logits, weights, normalizer, tile)
            else:
                one: BatchIndex = (*(slice(None) for _ in tile.batch[:-1]), at)
                cut = (*(slice(None) for _ in tile.batch[:-1]), at, slice(None), slice(None))
                arguments = (logits[cut], weights[cut], normalizer.select_batch(one), _again(tile, one))
            result = inner.read(*arguments)
            self.add(inner, flatten(result), tile, to, type(result))

    def _of_heads(self, index: BatchIndex) -> list[tuple[BatchIndex, int | None]]:
        """For each head that is here: where it goes, and which of the tile's heads it is (None: its only)."""
        assert self.heads is not None
        count, at = self.tile.batch[-1], index[-1]
        found: list[tuple[BatchIndex, int | None]] = []
        for n, head in enumerate(self.heads):
            head %= count
            if isinstance(at, int):
                if head == at:
                    found.append(((*index[:-1], n), None))
            elif head in (here := range(*at.indices(count))):
                found.append(((*index[:-1], n), here.index(head)))
        return found

    def add(self, readout: Readout, found: tuple[Array, ...], tile: Tile, index: BatchIndex, kind: Any) -> None:
        fields = readout.reductions(tile)
        if not self.rooms:
            self.kind = kind
            self.rooms = [field.allocate(x, self.batch) for field, x in zip(fields, found, strict=True)]
        there = tuple(field.slice(_element(room, index)) for field, room in zip(fields, self.rooms, strict=True))
        if any(field.op != "set" for field in fields):
            found = readout.merge(there, found, tile)
        for room, x in zip(there, found, strict=True):
            room[...] = x

    def skip(self, tile: Tile, index: BatchIndex) -> None:
        fields = self.readout.reductions(tile)
        for n, field in enumerate(fields):
            if field.masked is None:
                continue
            for to in [index] if self.heads is None or not index else [to for to, _ in self._of_heads(index)]:
                there = field.slice(_element(self.rooms[n], to))
                there[...] = field.combine(there, zeros(there, there.shape) + field.masked)

    def result(self) -> Any:
        return self.readout.finalize(unflatten(tuple(self.rooms), self.kind), self.tile)


def _element(x: Array, index: BatchIndex) -> Array:
    return x[index] if index else x


def _again(tile: Tile, index: BatchIndex) -> Tile:
    """The place of some elements of a place that is already of some: for readouts, which draw nothing."""
    return replace(tile.select_batch(index), batch_batch_batch_batch_batch_origin=None)


def read_rows(
    reading: ReadoutAccumulator, call: BoundCall, summary: Summary, rows: Limits, cols: int, index: BatchIndex = ()
) -> None:
    """Read some queries of a call, tile by tile.

    A normalizer that chooses finds its keys again by their logits, bit for bit: read the rows, tiles and
    batch elements that were folded.

    Args:
        reading: what is put together.
        call: the call of the batch elements at `index`.
        summary: what the normalizer's `finish` gave of these queries.
        rows: the queries.
        cols: keys of a tile.
        index: of the batch elements in the whole call; (): all of them.
    """
    normalizer = call.normalizer
    for limits in ranges(call.tile.k_total, cols):
        tile = call.tile.restrict(rows, limits)
        logits = call.logits(rows, limits)
        if logits is None:
            if limits[0] > 0:
                reading.skip(tile, index)
                continue
            # The first tile is always read: results are made of it, and the sink is counted there.
            logits = fully_masked(call, rows, limits[1])
        weights = normalizer.tile_weights(normalizer.prepare(logits), summary, tile)
        reading.absorb(logits, weights, normalizer, tile, index)
