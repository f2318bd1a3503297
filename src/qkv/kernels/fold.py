"""What kernels share that go over the pairs tile by tile, forward: one loop, for every library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.core.arrays import Array, library, namespace, zeros
from qkv.core.equation import Ready, drop
from qkv.core.guard import weigh
from qkv.core.partial import Partial
from qkv.core.positions import Place
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.sparse import SparseNormalizer
from qkv.readouts import Readout

__all__ = ["fold_rows", "nothing", "reached", "row_logits", "spans", "weigh_rows", "weights_of"]

Limits = tuple[int, int]


def spans(length: int, step: int) -> Iterator[Limits]:
    """`(start, stop)` of consecutive pieces; one empty piece where the length is 0."""
    for start in range(0, max(length, 1), step):
        yield start, min(start + step, length)


def reached(ready: Ready, rows: Limits, cols: int, whole: bool = False) -> Iterator[Limits]:
    """Keys of the tiles that the mask lets these queries reach; tiles between them may still be empty.

    `whole`: tiles are cut at the same keys for all queries.
    """
    start, stop = 0, ready.place.k_total
    if ready.mask is not None:
        start, stop = ready.mask.reach(ready.place.cut(rows, (0, stop)))
    if start >= stop:
        return
    if whole:
        start -= start % cols
        stop = min(ready.place.k_total, stop + -stop % cols)
    for first, last in spans(stop - start, cols):
        yield start + first, start + last


def fold_rows(ready: Ready, rows: Limits, cols: int) -> tuple[Array, Summary]:
    """Output and summary of some queries, from partials of tiles of `cols` keys. Empty tiles are skipped."""
    partial: Partial | None = None
    for limits in reached(ready, rows, cols, whole=True):
        logits = ready.tile(rows, limits)
        if logits is not None:
            partial = _merged(partial, _fold(ready, logits, rows, limits))
    if partial is None:
        # No tile holds a pair: the fold of no key at all.
        partial = _fold(ready, nothing(ready, rows, 0), rows, (0, 0))
    output, summary = ready.normalizer.finish(partial, ready.place.cut(rows, (0, 0)), ready.dropout)
    return output, summary


def _fold(ready: Ready, logits: Array, rows: Limits, cols: Limits) -> Partial:
    normalizer = ready.normalizer
    value = ready.values(cols)
    place = ready.place.cut(rows, cols)
    folded: Partial = normalizer.fold(
        normalizer.prepare(logits), value, place, ready.dropout, ready.clean_value
    )
    return folded


def _merged(partial: Any, new: Partial) -> Partial:
    return new if partial is None else partial.merge(new)


def nothing(ready: Ready, rows: Limits, keys: int) -> Array:
    """Logits of some queries that may attend to none of so many keys."""
    shape = (*ready.batch, rows[1] - rows[0], keys)
    return zeros(ready.value, shape, ready.dtype) - namespace(ready.value).inf


def row_logits(ready: Ready, rows: Limits, cols: int) -> Array:
    """Whole rows of logits, put together from tiles of `cols` keys."""
    tiles = []
    for limits in spans(ready.place.k_total, cols):
        logits = ready.tile(rows, limits)
        tiles.append(nothing(ready, rows, limits[1] - limits[0]) if logits is None else logits)
    return tiles[0] if len(tiles) == 1 else namespace(ready.value).concat(tiles, axis=-1)


def weigh_rows(
    ready: Ready, rows: Limits, logits: Array, readouts: tuple[Readout, ...], with_output: bool = True
) -> tuple[Array | None, tuple[Any, ...]]:
    """Output and readouts of some queries, from their whole rows of logits."""
    normalizer = ready.normalizer
    place = ready.place.cut(rows, (0, ready.place.k_total))
    weights = weights_of(normalizer, logits, place)
    output = None
    if with_output:
        dropped = drop(weights, place, ready.dropout)
        # Which values are read matters only where one is not finite.
        takes_part = None if ready.clean_value else normalizer.takes_part(logits, weights)
        output = weigh(dropped, ready.value, takes_part, ready.clean_value)
    return output, tuple(readout.read(logits, weights, normalizer, place) for readout in readouts)


def weights_of(normalizer: Normalizer, logits: Array, place: Place) -> Array:
    """The normalizer's weights of whole rows; sparse projections of long rows without sorting, in PyTorch."""
    if isinstance(normalizer, SparseNormalizer) and library(logits) == "torch":
        from qkv.kernels.strips.thresholds import sparse_weights

        return sparse_weights(logits, normalizer.power, normalizer.scale)
    return normalizer.weights(logits, place)
