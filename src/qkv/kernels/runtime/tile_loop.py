"""Functions that kernels of all array libraries share: the forward loop over tiles, and weights of row blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

from qkv.core.arrays import library, namespace, zeros
from qkv.core.equation import BoundCall, apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.partial import PartialResult
from qkv.core.progress import checkpoint
from qkv.core.tile import Tile
from qkv.core.typing import OutputArray, PairArray, Tensor
from qkv.kernels.runtime.sparse_weights import sparse_weights
from qkv.normalizers.base import Normalizer, Summary

AnyResult = TypeVar("AnyResult")
Limits = tuple[int, int]
"""Index of the first query or key of a range, and one past the index of the last."""


def ranges(length: int, step: int) -> Iterator[Limits]:
    """Yield consecutive ranges of at most `step` indices that cover `length`. Yield (0, 0) for length 0."""
    for start in range(0, max(length, 1), step):
        yield start, min(start + step, length)


def visible_tiles(call: BoundCall, rows: Limits, cols: int, aligned: bool = False) -> Iterator[Limits]:
    """Yield the range of keys of each tile in the key range of the mask. Some of the tiles may be fully masked.

    Args:
        rows: range of the queries.
        cols: largest number of keys in a tile.
        aligned: start tiles at multiples of `cols`, so that the boundaries are the same for all queries.
    """
    start, stop = 0, call.tile.k_total
    if call.mask is not None:
        start, stop = call.mask.key_range(call.tile.restrict(rows, (0, stop)))
    if start >= stop:
        return
    if aligned:
        start -= start % cols
        stop = min(call.tile.k_total, stop + -stop % cols)
    for first, last in ranges(stop - start, cols):
        yield start + first, start + last


def attend_rows(call: BoundCall, rows: Limits, cols: int) -> tuple[OutputArray, Summary]:
    """Return the output of a range of queries and the normalizer's summary, computed in tiles of `cols` keys."""
    partial = partial_rows(call, rows, cols)
    return call.normalizer.finalize(partial, call.tile.restrict(rows, (0, 0)), call.dropout)


def partial_rows(call: BoundCall, rows: Limits, cols: int) -> PartialResult:
    """Return the partial result of a range of queries over all keys of a call, in tiles of `cols` keys."""
    partial: PartialResult | None = None
    for limits in visible_tiles(call, rows, cols):
        logits = call.logits(rows, limits)
        if logits is not None:
            more = _accumulate(call, logits, rows, limits)
            partial = more if partial is None else partial.merge(more)
    if partial is None:
        partial = _accumulate(call, fully_masked(call, rows, 0), rows, (0, 0))
    return partial


def _accumulate(call: BoundCall, logits: PairArray, rows: Limits, cols: Limits) -> PartialResult:
    normalizer, tile = call.normalizer, call.tile.restrict(rows, cols)
    return normalizer.accumulate(normalizer.prepare(logits), call.values(cols), tile, call.dropout, call.finite_value)


def fully_masked(call: BoundCall, rows: Limits, keys: int) -> PairArray:
    """Return an array of −inf, as the logits of a range of queries and a number of masked keys."""
    shape = (*call.batch, rows[1] - rows[0], keys)
    return zeros(call.value, shape, call.dtype) - math.inf


def row_logits(call: BoundCall, rows: Limits, cols: int, keys: Limits | None = None) -> PairArray:
    """Return the logits of a range of queries and of keys (None: all), concatenated from tiles of `cols` keys."""
    tiles, (first, last) = [], (0, call.tile.k_total) if keys is None else keys
    for start, stop in ranges(last - first, cols):
        checkpoint()
        logits = call.logits(rows, (first + start, first + stop))
        tiles.append(fully_masked(call, rows, stop - start) if logits is None else logits)
    return tiles[0] if len(tiles) == 1 else namespace(call.value).concat(tiles, axis=-1)


def weigh_rows(
    call: BoundCall,
    rows: Limits,
    logits: PairArray,
    readers: Iterable[Callable[..., AnyResult]],
    with_output: bool = True,
    cols: Limits | None = None,
) -> tuple[OutputArray | None, tuple[AnyResult, ...]]:
    """Return the output of a range of queries, computed from all their logits, and the results of readouts.

    Args:
        rows: range of the queries.
        logits: logits of these queries, −inf where a key is masked.
        readers: functions with the arguments of `Readout.read`.
        with_output: whether to compute the output; if False, it is returned as None.
        cols: range of keys to which `logits` are restricted, because the mask excludes all others, and the values of
            the call may be; None if they hold all keys.
    """
    normalizer = call.normalizer
    tile = call.tile.restrict(rows, (0, call.tile.k_total) if cols is None else cols)
    weights = row_weights(normalizer, logits, tile)
    output = None
    if with_output:
        dropped = apply_dropout(weights, tile, call.dropout)
        value = call.value if call.value.shape[-2] == logits.shape[-1] else call.values(tile.cols)
        output = apply_weights(dropped, value, lambda: normalizer.support(logits, weights), call.finite_value)
    return output, tuple(read(logits, weights, normalizer, tile) for read in readers)


def row_weights(normalizer: Normalizer, logits: PairArray, tile: Tile) -> PairArray:
    """Return the weights of queries, computed from their logits for all keys.

    Sparsemax and entmax in PyTorch do not sort long rows.
    """
    if normalizer.power is not None and library(logits) == "torch":
        assert normalizer.scale is not None
        return sparse_weights(cast("Tensor", logits), normalizer.power, normalizer.scale)
    return normalizer.weights(logits, tile)
