"""Softmax over tiles in NumPy, in one pass over the keys, whatever the number of queries.

Tiles of keys are the outer loop: a memory-mapped key is read once, and its side of the score is computed
once, for all queries (for as many as their sums fit the memory). Whether the data is finite is not looked up
beforehand, which would be a pass of its own: where the sums turn out not to be finite, those queries are run
again on the way that reads nothing that is masked.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from qkv.core.arrays import Array, cast
from qkv.core.batch import indices
from qkv.core.equation import Ready
from qkv.core.positions import Place
from qkv.kernels.fold import Limits, fold_rows, spans
from qkv.kernels.stream.logits import Logits, Side, logits_of
from qkv.kernels.stream.sizes import Sizes
from qkv.kernels.stream.sums import Sums
from qkv.masks import Mask

__all__ = ["attend_softmax"]


def attend_softmax(ready: Ready, sizes: Sizes) -> Array:
    """Output `(*batch, q, value_width)`; the normalizer keeps sums of exponentials and has no dropout."""
    place = ready.place
    output = np.empty((*place.batch, place.q_total, ready.value.shape[-1]), dtype=ready.out_dtype)
    for index in indices(place.batch, sizes.batch):
        part = _element(ready, index) if index else ready
        for group in spans(place.q_total, sizes.group):
            _group(part, group, sizes, output[index])
    return output


def _element(ready: Ready, index: tuple[int | slice, ...]) -> Ready:
    known = dataclasses.replace(ready)
    # `at` hands on what is known of the data; to look it up would be a pass over all keys.
    known.__dict__.update(clean_pairs=False, clean_value=False)
    part = known.at(index)
    for name in ("clean_pairs", "clean_value"):
        part.__dict__.pop(name)
    return part


@dataclass
class _Block:
    """Some queries: their side of the logits (None where there is no key), and what they have met so far."""

    rows: Limits
    left: Side | None
    sums: Sums


@dataclass
class _Tile:
    """A block and some keys, with the mask, and its place, where it allows some of the pairs."""

    block: _Block
    cols: Limits
    place: Place
    mask: Mask | None


def _group(ready: Ready, group: Limits, sizes: Sizes, output: Array) -> None:
    """The answers of some queries, written into the output."""
    logits = logits_of(ready)
    blocks = []
    for start, stop in spans(group[1] - group[0], sizes.rows):
        rows = (group[0] + start, group[0] + stop)
        sums = Sums(ready.batch, rows[1] - rows[0], ready.value.shape[-1], logits.dtype, logits.exp)
        blocks.append(_Block(rows, logits.left(rows) if ready.place.k_total else None, sums))
    room = np.empty(math.prod(ready.batch) * sizes.rows * sizes.cols, dtype=logits.dtype)
    ones = np.ones((sizes.cols, 1), dtype=logits.dtype)
    for cols in spans(ready.place.k_total, sizes.cols):
        right: Array | None = None
        value: Array | None = None
        for block in blocks:
            tile = _tile(ready, block, cols)
            if tile is None:
                continue
            if right is None:  # some query meets these keys
                right, value = logits.right(cols, sizes.rows), ready.values(cols)
            block.sums.absorb(partial(_meet, logits, right, tile, room), value, ones)
    for block in blocks:
        output[..., slice(*block.rows), :] = _finished(ready, block, sizes)


def _tile(ready: Ready, block: _Block, cols: Limits) -> _Tile | None:
    if block.sums.lost or cols[0] == cols[1] or block.rows[0] == block.rows[1]:
        return None
    if ready.mask is None:
        return _Tile(block, cols, ready.place, None)
    place = ready.place.cut(block.rows, cols)
    cover = ready.mask.cover(place)
    if cover == "none":
        return None
    mask = ready.mask.slice(slice(*block.rows), slice(*cols)) if cover == "part" else None
    return _Tile(block, cols, place, mask)


def _meet(logits: Logits, right: Array, tile: _Tile, room: Array, shift: Array | None) -> Array:
    """Logits `(*batch, rows, cols)` of the tile minus the shift, −inf where the mask does not allow."""
    block, batch = tile.block, tile.place.batch
    shape = (*batch, tile.cols[1] - tile.cols[0], block.rows[1] - block.rows[0])
    e: Array = room[: math.prod(shape)].reshape(shape).swapaxes(-1, -2)
    assert block.left is not None
    logits.meet(block.left, right, block.rows, tile.cols, shift, e)
    if tile.mask is not None:
        np.copyto(e, -np.inf, where=~tile.mask.allowed(tile.place, e))
    return e


def _finished(ready: Ready, block: _Block, sizes: Sizes) -> Array:
    sums = block.sums.partial()
    if sums is None:
        return cast(fold_rows(ready, block.rows, sizes.cols)[0], ready.out_dtype)
    output, _ = ready.normalizer.finish(sums, ready.place.cut(block.rows, (0, 0)), 0.0)
    return cast(output, ready.out_dtype)
