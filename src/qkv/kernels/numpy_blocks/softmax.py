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

from qkv.core.arrays import cast
from qkv.core.batch import batch_indices
from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.kernels.numpy_blocks.accumulator import ExponentialAccumulator
from qkv.kernels.numpy_blocks.logits import Logits, Side, logits_of
from qkv.kernels.numpy_blocks.tile_shapes import Sizes
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, ranges
from qkv.masks import Mask

__all__ = ["attend_softmax"]


def attend_softmax(call: BoundCall, sizes: Sizes) -> np.ndarray:
    """Output `(*batch, q, value_width)`; the normalizer keeps sums of exponentials and has no dropout."""
    tile = call.tile
    output = np.empty((*tile.batch, tile.q_total, call.value.shape[-1]), dtype=call.out_dtype)
    for index in batch_indices(tile.batch, sizes.batch):
        part = _element(call, index) if index else call
        for group in ranges(tile.q_total, sizes.group):
            _group(part, group, sizes, output[index])
    return output


def _element(call: BoundCall, index: tuple[int | slice, ...]) -> BoundCall:
    # `select_batch` checks the whole call, which passes over all keys; here elements are checked when needed.
    return dataclasses.replace(dataclasses.replace(call, finite=(False, False)).select_batch(index), finite=None)


@dataclass
class _Block:
    """Some queries: their side of the logits (None where there is no key), and what they have met so far."""

    rows: Limits
    left: Side | None
    sums: ExponentialAccumulator


@dataclass
class _TileOfKeys:
    """A block and some keys, with the mask, and its place, where it allows some of the pairs."""

    block: _Block
    cols: Limits
    tile: Tile
    mask: Mask | None


def _group(call: BoundCall, group: Limits, sizes: Sizes, output: np.ndarray) -> None:
    """The answers of some queries, written into the output."""
    logits = logits_of(call)
    blocks = []
    for start, stop in ranges(group[1] - group[0], sizes.rows):
        rows = (group[0] + start, group[0] + stop)
        sums = ExponentialAccumulator(call.batch, rows[1] - rows[0], call.value.shape[-1], logits.dtype, logits.exp)
        blocks.append(_Block(rows, logits.left(rows) if call.tile.k_total else None, sums))
    room = np.empty(math.prod(call.batch) * sizes.rows * sizes.cols, dtype=logits.dtype)
    ones = np.ones((sizes.cols, 1), dtype=logits.dtype)
    for cols in ranges(call.tile.k_total, sizes.cols):
        right: np.ndarray | None = None
        value: np.ndarray | None = None
        for block in blocks:
            tile = _tile(call, block, cols)
            if tile is None:
                continue
            if right is None:  # some query meets these keys
                right, value = logits.right(cols, sizes.rows), call.values(cols)
            block.sums.update(partial(_meet, logits, right, tile, room), value, ones)
    for block in blocks:
        output[..., slice(*block.rows), :] = _finished(call, block, sizes)


def _tile(call: BoundCall, block: _Block, cols: Limits) -> _TileOfKeys | None:
    if block.sums.lost or cols[0] == cols[1] or block.rows[0] == block.rows[1]:
        return None
    if call.mask is None:
        return _TileOfKeys(block, cols, call.tile, None)
    tile = call.tile.restrict(block.rows, cols)
    cover = call.mask.coverage(tile)
    if cover == "none":
        return None
    mask = call.mask.slice(slice(*block.rows), slice(*cols)) if cover == "part" else None
    return _TileOfKeys(block, cols, tile, mask)


def _meet(
    logits: Logits, right: np.ndarray, tile: _TileOfKeys, room: np.ndarray, shift: np.ndarray | None
) -> np.ndarray:
    """Logits `(*batch, rows, cols)` of the tile minus the shift, −inf where the mask does not allow."""
    block, batch = tile.block, tile.tile.batch
    shape = (*batch, tile.cols[1] - tile.cols[0], block.rows[1] - block.rows[0])
    e: np.ndarray = room[: math.prod(shape)].reshape(shape).swapaxes(-1, -2)
    assert block.left is not None
    logits.meet(block.left, right, block.rows, tile.cols, shift, e)
    if tile.mask is not None:
        np.copyto(e, -np.inf, where=~tile.mask.allowed(tile.tile, e))
    return e


def _finished(call: BoundCall, block: _Block, sizes: Sizes) -> np.ndarray:
    sums = block.sums.result()
    if sums is None:
        return cast(attend_rows(call, block.rows, sizes.cols)[0], call.out_dtype)
    output, _ = call.normalizer.finalize(sums, call.tile.restrict(block.rows, (0, 0)), 0.0)
    return cast(output, call.out_dtype)
