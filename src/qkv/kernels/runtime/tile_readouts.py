"""Computation of readouts tile by tile, which needs no array of all weights, in NumPy and PyTorch.

Gradients are not supported.

An online normalizer can compute the weights of any tile from its summary of the rows. Readouts are therefore computed
in a second pass over the tiles:

    accumulators = [ReadoutAccumulator(readout, tile)]    one per readout of a call
    for each batch element and row block, after the output of the rows is computed:
        accumulate_rows(accumulators, rows, the tiles that the mask does not exclude, normalizer)
    [accumulator.result()]

Only the accumulated results and the results of one tile are in memory. Readouts that need no second pass are in
`tiled/readouts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.core.arrays import zeros
from qkv.core.batch import BatchIndex
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Int, PairArray, ReadoutResult
from qkv.normalizers.base import Normalizer
from qkv.readouts import Readout
from qkv.readouts.base import Result, flatten, unflatten

SPARE_KEYS = 8
"""Number of keys that are collected beyond those of a readout, as weights may be equal where logits differ."""


def include_largest(
    weights: Float[np.ndarray, "*batch q n"], logits: Float[np.ndarray, "*batch q n"], count: int
) -> bool:
    """Return whether the `count` largest weights of each query are among those of the keys of largest logits.

    Every other key has at most the last of these logits, and its weight may be that of the last key. False for NaN.

    Args:
        weights: weights of the keys, in descending order of their logits.
        logits: their logits, −inf for missing keys.
        count: number of weights, less than n.
    """
    least = weights[..., count - 1]
    tied = logits[..., count - 1] == logits[..., -1]  # ties of logits went to the lowest index
    return bool(((least > weights[..., -1]) | (least == 0) | (tied & (least == least))).all())


def readable_by_tile(readouts: Sequence[Readout], normalizer: Normalizer) -> bool:
    """Return whether all readouts can be computed tile by tile from the weights of a normalizer."""
    return normalizer.online and all(readout.accepts_tiles for readout in readouts)


def readable_in_forward(readouts: Sequence[Readout], normalizer: Normalizer) -> bool:
    """Return whether PyTorch kernels can compute all readouts during a forward pass without gradient."""
    return normalizer.log_sum_exp and readable_by_tile(readouts, normalizer)


def result_batch(readout: Readout, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch shape of a readout's result. Its last axis is shorter if the readout selects heads."""
    return batch if readout.head_indices is None else (*batch[:-1], len(readout.head_indices))


def selected_heads(readout: Readout, batch: tuple[int, ...], index: BatchIndex) -> list[tuple[BatchIndex, int | None]]:
    """Return where a readout's result receives contributions from some batch elements, and from which of their heads.

    Args:
        batch: batch shape of the call.
        index: index of the batch elements in the call; () for all of them.

    Returns:
        Pairs of an index in the result and a position on the head axis of the batch elements at `index`; the position
        is None if the result takes these elements as a whole.
    """
    if readout.head_indices is None or not index:
        return [(index, None)]
    count, at = batch[-1], index[-1]
    positions: dict[int, int | None] = (
        {head: n for n, head in enumerate(range(*at.indices(count)))} if isinstance(at, slice) else {at: None}
    )
    heads = [head % count for head in readout.head_indices]
    return [((*index[:-1], n), positions[head]) for n, head in enumerate(heads) if head in positions]


class ReadoutAccumulator:
    """Accumulator of the result of one readout over the tiles of a call, allocated at the first tile.

    Args:
        tile: the tile that covers the whole call.
    """

    def __init__(self, readout: Readout, tile: Tile) -> None:
        self.readout, self.tile = readout, tile
        self.batch = result_batch(readout, tile.batch)
        self.arrays: list[Any] = []
        self.kind: type = object

    def update(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile, index: BatchIndex = ()
    ) -> None:
        """Compute the readout of one tile and add it to the result.

        Args:
            logits: logits of the tile, −inf where a key is masked.
            weights: weights of the tile, before dropout.
            normalizer: the normalizer of the tile's batch elements.
            index: index of the tile's batch elements in the call; () if the tile holds all batch elements.
        """
        readout = self.readout.per_head if index else self.readout
        for target, position in selected_heads(self.readout, self.tile.batch, index):
            selected = logits, weights, normalizer, tile
            if position is not None:
                one: BatchIndex = (*(slice(None) for _ in tile.batch[:-1]), position)
                cut = (*one, slice(None), slice(None))
                # Readouts use no random numbers, so the position of the tile in the call is not needed.
                here = replace(tile.select_batch(one), batch_origin=None)
                selected = logits[cut], weights[cut], normalizer.select_batch(one), here
            self.add(readout.read(*selected), tile, target)

    def add(self, result: Result, tile: Tile, index: BatchIndex = ()) -> None:
        """Add a readout that was already computed for a tile.

        Args:
            result: result of the readout for the tile.
            index: index in the result of the call; () if the tile holds all batch elements.
        """
        arrays, reductions = flatten(result), self.readout.reductions(tile)
        if not self.arrays:
            self.kind = type(result)
            self.arrays = [reduction.allocate(x, self.batch) for reduction, x in zip(reductions, arrays, strict=True)]
        targets: tuple[Any, ...] = tuple(
            reduction.slice(whole[index]) for reduction, whole in zip(reductions, self.arrays, strict=True)
        )
        if any(reduction.op != "set" for reduction in reductions):
            arrays = self.readout.merge(targets, arrays, tile)
        for target, x in zip(targets, arrays, strict=True):
            target[...] = x

    def add_result(self, result: Result, rows: tuple[int, int], index: BatchIndex) -> None:
        """Add a readout that was computed for all keys of a range of queries of the batch elements at `index`."""
        here = self.tile.restrict(rows, (0, self.tile.k_total))
        for target, _ in selected_heads(self.readout, self.tile.batch, index):
            self.add(result, here, target)

    def add_candidates(
        self,
        weights: Float[Array, "*batch q n"],
        keys: Int[Array, "*batch q n"],
        rows: tuple[int, int],
        index: BatchIndex,
    ) -> None:
        """Add a readout that is computed from the weights of some keys; see `Readout.of_candidates`."""
        self.add_result(self.readout.per_head.of_candidates(weights, keys), rows, index)

    def skip(self, tile: Tile, normalizer: Normalizer, like: Array, index: BatchIndex = ()) -> None:
        """Merge a fully masked tile into the result, without computing its logits.

        Args:
            like: an array of the library, device and dtype of the weights.
        """
        if not tile.cols[0]:
            # The tile of the first key allocates the result, and some readouts include the sink in it.
            first = tile.restrict(tile.rows, (0, min(1, tile.cols[1])))
            weights = zeros(like, (*tile.batch, tile.rows[1] - tile.rows[0], first.cols[1]))
            self.update(weights - math.inf, weights, normalizer, first, index)
        for n, reduction in enumerate(self.readout.reductions(tile)):
            if reduction.masked is None:
                continue
            for at, _ in selected_heads(self.readout, self.tile.batch, index):
                target: Any = reduction.slice(self.arrays[n][at])
                target[...] = reduction.combine(target, zeros(target, target.shape) + reduction.masked)

    def result(self) -> ReadoutResult:
        """Return the result of the call."""
        return self.readout.finalize(unflatten(tuple(self.arrays), self.kind), self.tile)


def accumulate_rows(
    accumulators: Sequence[ReadoutAccumulator],
    rows: Tile,
    weighed: Iterable[tuple[PairArray, PairArray, Tile]],
    normalizer: Normalizer,
    like: Array,
    index: BatchIndex = (),
) -> None:
    """Add the tiles of some queries to readouts, and the keys before, between and after them as masked ones.

    Args:
        rows: tile of the queries and of all keys.
        weighed: logits, weights and tile of each range of keys, in ascending order.
        like: an array of the library, device and dtype of the weights.
        normalizer, index: as for `ReadoutAccumulator.update`.
    """
    end = 0

    def skip(stop: int) -> None:
        for accumulator in accumulators:
            accumulator.skip(rows.restrict(rows.rows, (end, stop)), normalizer, like, index)

    for logits, weights, tile in weighed:
        if end < tile.cols[0]:
            skip(tile.cols[0])
        for accumulator in accumulators:
            accumulator.update(logits, weights, normalizer, tile, index)
        end = tile.cols[1]
    if end < rows.k_total or not end:
        skip(rows.k_total)
