"""Forward pass of softmax over tiles in NumPy, which reads the keys once for each group of queries.

The outer loop runs over tiles of keys, so a memory-mapped key is read and projected once for all queries whose sums
fit the memory limit. The data is not checked for NaN and infinity beforehand, because that would be another pass. If
the sums of some queries are not finite, these queries are computed again by `attend_rows`, which ignores masked values.
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
from qkv.core.progress import checkpoint
from qkv.core.tile import Tile
from qkv.core.typing import Float, Shaped
from qkv.kernels.numpy_blocks.accumulator import ExponentialAccumulator
from qkv.kernels.numpy_blocks.logits import BlockLogits, ProjectedQueries, block_logits
from qkv.kernels.numpy_blocks.tile_shapes import SoftmaxTileSizes
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, ranges, restrict_mask
from qkv.masks.base import Mask

__all__ = ["attend_softmax"]


def attend_softmax(call: BoundCall, sizes: SoftmaxTileSizes) -> Float[np.ndarray, "*batch q value_width"]:
    """Return the output of a call with softmax and without dropout."""
    tile = call.tile
    output = np.empty((*tile.batch, tile.q_total, call.value.shape[-1]), dtype=call.out_dtype)
    for index in batch_indices(tile.batch, sizes.batch):
        part = _unchecked(call, index) if index else call
        for group in ranges(tile.q_total, sizes.group):
            _attend_group(part, group, sizes, output[index])
    return output


def _unchecked(call: BoundCall, index: BatchIndex) -> BoundCall:
    """Return a call restricted to a batch element, without checking it for NaN and infinity.

    The check is deferred until it is needed.
    """
    # `select_batch` would check the whole call first, in a pass over all keys.
    unchecked = dataclasses.replace(call, finite=(False, False))
    return dataclasses.replace(unchecked.select_batch(index), finite=None)


@dataclass
class _Block:
    """Block of queries with their projections and their accumulated sums of exponentials.

    The projections are None if the call has no keys.
    """

    rows: Limits
    queries: ProjectedQueries | None
    sums: ExponentialAccumulator


def _attend_group(
    call: BoundCall, group: Limits, sizes: SoftmaxTileSizes, output: Float[np.ndarray, "*batch q value_width"]
) -> None:
    """Compute the output of a range of queries and write it to `output`."""
    logits = block_logits(call)
    blocks = []
    for start, stop in ranges(group[1] - group[0], sizes.rows):
        rows = (group[0] + start, group[0] + stop)
        sums = ExponentialAccumulator(call.batch, rows[1] - rows[0], call.value.shape[-1], logits.dtype, logits.exp)
        blocks.append(_Block(rows, logits.project_queries(rows) if call.tile.k_total else None, sums))
    buffer = np.empty(math.prod(call.batch) * sizes.rows * sizes.cols, dtype=logits.dtype)
    ones = np.ones((sizes.cols, 1), dtype=logits.dtype)
    for cols in ranges(call.tile.k_total, sizes.cols):
        checkpoint()
        keys: np.ndarray | None = None
        value: np.ndarray | None = None
        for block in blocks:
            if block.queries is None or block.sums.non_finite or block.rows[0] == block.rows[1]:
                continue
            tile = call.tile.restrict(block.rows, cols)
            coverage, mask = restrict_mask(call.mask, tile)
            if coverage == "none":
                continue
            if keys is None or value is None:  # project these keys for the first block that may attend to them
                keys, value = logits.project_keys(cols, sizes.rows), np.asarray(call.values(cols))
            # Do not assign the function to a variable, which would keep these keys alive while the next are projected.
            block.sums.update(partial(_write_logits, logits, block.queries, keys, mask, tile, buffer), value, ones)
    for block in blocks:
        output[..., slice(*block.rows), :] = _finalize(call, block, sizes)


def _write_logits(
    logits: BlockLogits,
    queries: ProjectedQueries,
    keys: Shaped[np.ndarray, " ..."],
    mask: Mask | None,
    tile: Tile,
    buffer: Float[np.ndarray, " size"],
    shift: Float[np.ndarray, "*batch q 1"] | None,
) -> Float[np.ndarray, "*batch q k"]:
    """Write the logits of a tile minus the shift, −inf where a key is masked, to `buffer` and return them."""
    shape = (*tile.batch, tile.cols[1] - tile.cols[0], tile.rows[1] - tile.rows[0])
    e: np.ndarray = buffer[: math.prod(shape)].reshape(shape).swapaxes(-1, -2)
    logits.write(queries, keys, tile.rows, tile.cols, shift, e)
    if mask is not None:
        np.copyto(e, -np.inf, where=~np.asarray(mask.allowed(tile, e)))
    return e


def _finalize(call: BoundCall, block: _Block, sizes: SoftmaxTileSizes) -> Float[np.ndarray, "*batch q value_width"]:
    sums = block.sums.result()
    if sums is None:
        output = attend_rows(call, block.rows, sizes.cols)[0]
    else:
        output, _ = call.normalizer.finalize(sums, call.tile.restrict(block.rows, (0, 0)), 0.0)
    return np.asarray(cast(output, call.out_dtype))
