"""Softmax over tiles in NumPy, in one pass over the keys, whatever the number of queries.

Tiles of keys are the outer loop: a memory-mapped key is read once and projected once, for all queries (for as many
as their sums fit the memory). The data is not checked for NaN and Inf beforehand, which would be another pass:
where the sums turn out not to be finite, those queries are computed again by `attend_rows`, which never reads what
is masked.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from qkv.core.arrays import cast
from qkv.core.batch import BatchIndex, batch_indices
from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.core.typing import Float, Shaped
from qkv.kernels.numpy_blocks.accumulator import ExponentialAccumulator
from qkv.kernels.numpy_blocks.logits import BlockLogits, ProjectedQueries, block_logits
from qkv.kernels.numpy_blocks.tile_shapes import SoftmaxTiles
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, ranges
from qkv.masks.base import Mask

__all__ = ["attend_softmax"]


def attend_softmax(call: BoundCall, sizes: SoftmaxTiles) -> Float[np.ndarray, "*batch q value_width"]:
    """Return the output of a call under softmax without dropout."""
    tile = call.tile
    output = np.empty((*tile.batch, tile.q_total, call.value.shape[-1]), dtype=call.out_dtype)
    for index in batch_indices(tile.batch, sizes.batch):
        part = _unchecked(call, index) if index else call
        for group in ranges(tile.q_total, sizes.group):
            _attend_group(part, group, sizes, output[index])
    return output


def _unchecked(call: BoundCall, index: BatchIndex) -> BoundCall:
    """Return some batch elements of the call, each of which is checked for NaN and Inf when that is needed."""
    # `select_batch` checks the whole call, which would be a pass over all keys.
    unchecked = dataclasses.replace(call, finite=(False, False))
    return dataclasses.replace(unchecked.select_batch(index), finite=None)


@dataclass
class _Block:
    """Some queries, their projections (None where there is no key), and their sums so far."""

    rows: Limits
    queries: ProjectedQueries | None
    sums: ExponentialAccumulator


@dataclass
class _BlockTile:
    """A block and some keys, with the mask where it allows some of the pairs."""

    block: _Block
    cols: Limits
    tile: Tile
    mask: Mask | None


def _attend_group(
    call: BoundCall, group: Limits, sizes: SoftmaxTiles, output: Float[np.ndarray, "*batch q value_width"]
) -> None:
    """Write the output of some queries."""
    logits = block_logits(call)
    blocks = []
    for start, stop in ranges(group[1] - group[0], sizes.rows):
        rows = (group[0] + start, group[0] + stop)
        sums = ExponentialAccumulator(call.batch, rows[1] - rows[0], call.value.shape[-1], logits.dtype, logits.exp)
        blocks.append(_Block(rows, logits.project_queries(rows) if call.tile.k_total else None, sums))
    buffer = np.empty(math.prod(call.batch) * sizes.rows * sizes.cols, dtype=logits.dtype)
    ones = np.ones((sizes.cols, 1), dtype=logits.dtype)
    for cols in ranges(call.tile.k_total, sizes.cols):
        keys: np.ndarray | None = None
        value: np.ndarray | None = None
        for block in blocks:
            tile = _visible_tile(call, block, cols)
            if tile is None:
                continue
            if keys is None or value is None:  # projected for the first block that may attend to them
                keys, value = logits.project_keys(cols, sizes.rows), np.asarray(call.values(cols))
            block.sums.update(partial(_write_logits, logits, keys, tile, buffer), value, ones)
    for block in blocks:
        output[..., slice(*block.rows), :] = _finalize(call, block, sizes)


def _visible_tile(call: BoundCall, block: _Block, cols: Limits) -> _BlockTile | None:
    if block.sums.non_finite or cols[0] == cols[1] or block.rows[0] == block.rows[1]:
        return None
    if call.mask is None:
        return _BlockTile(block, cols, call.tile, None)
    tile = call.tile.restrict(block.rows, cols)
    coverage = call.mask.coverage(tile)
    if coverage == "none":
        return None
    mask = call.mask.slice(slice(*block.rows), slice(*cols)) if coverage == "part" else None
    return _BlockTile(block, cols, tile, mask)


def _write_logits(
    logits: BlockLogits,
    keys: Shaped[np.ndarray, " ..."],
    tile: _BlockTile,
    buffer: Float[np.ndarray, " size"],
    shift: Float[np.ndarray, "*batch q 1"] | None,
) -> Float[np.ndarray, "*batch q k"]:
    """Return the logits of the tile minus the shift, −inf where the mask excludes a key."""
    block, batch = tile.block, tile.tile.batch
    shape = (*batch, tile.cols[1] - tile.cols[0], block.rows[1] - block.rows[0])
    e: np.ndarray = buffer[: math.prod(shape)].reshape(shape).swapaxes(-1, -2)
    assert block.queries is not None
    logits.write(block.queries, keys, block.rows, tile.cols, shift, e)
    if tile.mask is not None:
        np.copyto(e, -np.inf, where=~np.asarray(tile.mask.allowed(tile.tile, e)))
    return e


def _finalize(call: BoundCall, block: _Block, sizes: SoftmaxTiles) -> Float[np.ndarray, "*batch q value_width"]:
    sums = block.sums.result()
    if sums is None:
        output = attend_rows(call, block.rows, sizes.cols)[0]
    else:
        output, _ = call.normalizer.finalize(sums, call.tile.restrict(block.rows, (0, 0)), 0.0)
    return np.asarray(cast(output, call.out_dtype))
