"""What kernels share that go over the pairs tile by tile, forward: one loop, for every library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.core.arrays import Array, library, namespace, zeros
from qkv.core.equation import BoundCall, drop
from qkv.core.guard import apply_weights
from qkv.core.online_softmax import PartialResult
from qkv.core.tile import Tile
from qkv.normalizers.base import Normalizer, Summary
from qkv.readouts import Readout

__all__ = ["attend_rows", "fully_masked", "visible_tiles", "row_logits", "ranges", "weigh_rows", "row_weights"]

Limits = tuple[int, int]


def ranges(length: int, step: int) -> Iterator[Limits]:
    """`(start, stop)` of consecutive pieces; one empty piece where the length is 0."""
    for start in range(0, max(length, 1), step):
        yield start, min(start + step, length)


def visible_tiles(call: BoundCall, rows: Limits, cols: int, whole: bool = False) -> Iterator[Limits]:
    """Keys of the tiles that the mask lets these queries reach; tiles between them may still be empty.

    `whole`: tiles are cut at the same keys for all queries.
    """
    start, stop = 0, call.tile.k_total
    if call.mask is not None:
        start, stop = call.mask.key_range(call.tile.restrict(rows, (0, stop)))
    if start >= stop:
        return
    if whole:
        start -= start % cols
        stop = min(call.tile.k_total, stop + -stop % cols)
    for first, last in ranges(stop - start, cols):
        yield start + first, start + last


def attend_rows(call: BoundCall, rows: Limits, cols: int) -> tuple[Array, Summary]:
    """Output and summary of some queries, from partials of tiles of `cols` keys. Empty tiles are skipped."""
    partial: PartialResult | None = None
    for limits in visible_tiles(call, rows, cols, whole=True):
        logits = call.logits(rows, limits)
        if logits is not None:
            partial = _merged(partial, _fold(call, logits, rows, limits))
    if partial is None:
        # No tile holds a pair: the fold of no key at all.
        partial = _fold(call, fully_masked(call, rows, 0), rows, (0, 0))
    output, summary = call.normalizer.finalize(partial, call.tile.restrict(rows, (0, 0)), call.dropout)
    return output, summary


def _fold(call: BoundCall, logits: Array, rows: Limits, cols: Limits) -> PartialResult:
    normalizer = call.normalizer
    value = call.values(cols)
    tile = call.tile.restrict(rows, cols)
    folded: PartialResult = normalizer.accumulate(
        normalizer.prepare(logits), value, tile, call.dropout, call.finite_value
    )
    return folded


def _merged(partial: Any, new: PartialResult) -> PartialResult:
    return new if partial is None else partial.merge(new)


def fully_masked(call: BoundCall, rows: Limits, keys: int) -> Array:
    """Logits of some queries that may attend to none of so many keys."""
    shape = (*call.batch, rows[1] - rows[0], keys)
    return zeros(call.value, shape, call.dtype) - namespace(call.value).inf


def row_logits(call: BoundCall, rows: Limits, cols: int) -> Array:
    """Whole rows of logits, put together from tiles of `cols` keys."""
    tiles = []
    for limits in ranges(call.tile.k_total, cols):
        logits = call.logits(rows, limits)
        tiles.append(fully_masked(call, rows, limits[1] - limits[0]) if logits is None else logits)
    return tiles[0] if len(tiles) == 1 else namespace(call.value).concat(tiles, axis=-1)


def weigh_rows(
    call: BoundCall,
    rows: Limits,
    logits: Array,
    readouts: tuple[Readout, ...],
    with_output: bool = True,
    cols: Limits | None = None,
) -> tuple[Array | None, tuple[Any, ...]]:
    """Output and readouts of some queries, from their whole rows of logits.

    `cols`: the only keys that the mask allows; logits and the call's values are those of these keys.
    """
    normalizer = call.normalizer
    tile = call.tile.restrict(rows, (0, call.tile.k_total) if cols is None else cols)
    weights = row_weights(normalizer, logits, tile)
    output = None
    if with_output:
        dropped = drop(weights, tile, call.dropout)
        # Which values are read matters only where one is not finite.
        support = None if call.finite_value else normalizer.support(logits, weights)
        output = apply_weights(dropped, call.value, support, call.finite_value)
    return output, tuple(readout.read(logits, weights, normalizer, tile) for readout in readouts)


def row_weights(normalizer: Normalizer, logits: Array, tile: Tile) -> Array:
    """The normalizer's weights of whole rows; sparse projections of long rows without sorting, in PyTorch."""
    if normalizer.power is not None and library(logits) == "torch":
        from qkv.kernels.row_blocks.thresholds import sparse_weights

        return sparse_weights(logits, normalizer.power, normalizer.scale)
    return normalizer.weights(logits, tile)
