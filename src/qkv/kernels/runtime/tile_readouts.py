"""Computation of readouts tile by tile, which needs no array of all weights, in NumPy and PyTorch.

Gradients are not supported.

An online normalizer can compute the weights of any tile from its summary of the rows. Readouts are therefore computed
in a second pass over the tiles:

    accumulator = ReadoutAccumulator(readouts, tile)      once per call
    for each batch element and row block:
        for each tile of its keys, after the output of the rows is computed:
            accumulator.update(logits, weights, normalizer, tile, index)
    accumulator.results()

Only the accumulated results and the results of one tile are in memory. Readouts that need no second pass are in
`tiled/pooled_map.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkv.core.arrays import Array, zeros
from qkv.core.batch import BatchIndex
from qkv.core.tile import Tile
from qkv.normalizers.base import Normalizer
from qkv.readouts import Readout
from qkv.readouts.base import flatten, unflatten

__all__ = [
    "ReadoutAccumulator",
    "readable_by_tile",
    "readable_in_forward",
    "result_batch",
    "result_indices",
]


def readable_by_tile(readouts: Sequence[Readout], normalizer: Normalizer) -> bool:
    """Return whether all readouts can be computed tile by tile from the weights of a normalizer."""
    return normalizer.online and all(readout.accepts_tiles for readout in readouts)


def readable_in_forward(readouts: Sequence[Readout], normalizer: Normalizer) -> bool:
    """Return whether PyTorch kernels can compute all readouts during a forward pass without gradient."""
    return normalizer.log_sum_exp and readable_by_tile(readouts, normalizer)


def result_batch(readout: Readout, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch shape of a readout's result. Its last axis is shorter if the readout selects heads."""
    return batch if readout.head_indices is None else (*batch[:-1], len(readout.head_indices))


def result_indices(readout: Readout, batch: tuple[int, ...], index: BatchIndex) -> list[BatchIndex]:
    """Return the indices in a readout's result to which one batch element of the call contributes.

    Args:
        readout: the readout.
        batch: batch shape of the call.
        index: index of the batch element.
    """
    if readout.head_indices is None:
        return [index]
    return [(*index[:-1], n) for n, head in enumerate(readout.head_indices) if head % batch[-1] == index[-1]]


class ReadoutAccumulator:
    """Accumulator of the results of readouts over the tiles of a call.

    Args:
        readouts: the readouts.
        tile: the tile that covers the whole call.
    """

    def __init__(self, readouts: Sequence[Readout], tile: Tile) -> None:
        self._accumulators = [_Accumulator(readout, tile) for readout in readouts]

    def update(self, logits: Array, weights: Array, normalizer: Normalizer, tile: Tile, index: BatchIndex = ()) -> None:
        """Compute the readouts of one tile and merge them into the results.

        Args:
            logits: logits of the tile, −inf where a key is masked.
            weights: weights of the tile, before dropout.
            normalizer: the normalizer of the tile's batch elements.
            tile: the tile.
            index: index of the tile's batch elements in the call; () if the tile holds all batch elements.
        """
        for accumulator in self._accumulators:
            accumulator.update(logits, weights, normalizer, tile, index)

    def add(self, results: Sequence[Any], tile: Tile) -> None:
        """Merge readouts that were already computed for a tile of all batch elements into the results.

        Args:
            results: result of each readout for the tile.
            tile: the tile.
        """
        for accumulator, result in zip(self._accumulators, results, strict=True):
            accumulator.add(accumulator.readout, flatten(result), tile, (), type(result))

    def skip(self, tile: Tile, index: BatchIndex = ()) -> None:
        """Merge a fully masked tile into the results, without computing its logits.

        The first tile of a row must be passed to `update`, which allocates the results.
        """
        for accumulator in self._accumulators:
            accumulator.skip(tile, index)

    def results(self) -> tuple[Any, ...]:
        """Return the results of the readouts, in the order of the readouts."""
        return tuple(accumulator.result() for accumulator in self._accumulators)


class _Accumulator:
    """Accumulator of the result of one readout, whose arrays are allocated at the first tile."""

    def __init__(self, readout: Readout, tile: Tile) -> None:
        self.readout, self.tile = readout, tile
        self.heads = readout.head_indices
        self.batch = result_batch(readout, tile.batch)
        self.arrays: list[Any] = []
        self.kind: type = object

    def update(self, logits: Array, weights: Array, normalizer: Normalizer, tile: Tile, index: BatchIndex) -> None:
        if self.heads is None or not index:
            result = self.readout.read(logits, weights, normalizer, tile)
            self.add(self.readout, flatten(result), tile, index, type(result))
            return
        inner = self.readout.per_head
        for target, position in self._selected_heads(index):
            if position is None:
                result = inner.read(logits, weights, normalizer, tile)
            else:
                before: BatchIndex = tuple(slice(None) for _ in tile.batch[:-1])
                one: BatchIndex = (*before, position)
                cut = (*before, position, slice(None), slice(None))
                # Readouts use no random numbers, so the position of the tile in the call is not needed.
                here = replace(tile.select_batch(one), batch_origin=None)
                result = inner.read(logits[cut], weights[cut], normalizer.select_batch(one), here)
            self.add(inner, flatten(result), tile, target, type(result))

    def _selected_heads(self, index: BatchIndex) -> list[tuple[BatchIndex, int | None]]:
        """Return, for each selected head of the tile, its index in the result and its position on the tile's head axis.

        The position is None if the tile holds a single head without a head axis.
        """
        assert self.heads is not None
        count, at = self.tile.batch[-1], index[-1]
        selected: list[tuple[BatchIndex, int | None]] = []
        for n, head in enumerate(self.heads):
            head %= count
            if isinstance(at, int):
                if head == at:
                    selected.append(((*index[:-1], n), None))
            elif head in (here := range(*at.indices(count))):
                selected.append(((*index[:-1], n), here.index(head)))
        return selected

    def add(self, readout: Readout, arrays: tuple[Array, ...], tile: Tile, index: BatchIndex, kind: type) -> None:
        reductions = readout.reductions(tile)
        if not self.arrays:
            self.kind = kind
            self.arrays = [reduction.allocate(x, self.batch) for reduction, x in zip(reductions, arrays, strict=True)]
        targets: tuple[Any, ...] = tuple(
            reduction.slice(whole[index]) for reduction, whole in zip(reductions, self.arrays, strict=True)
        )
        if any(reduction.op != "set" for reduction in reductions):
            arrays = readout.merge(targets, arrays, tile)
        for target, x in zip(targets, arrays, strict=True):
            target[...] = x

    def skip(self, tile: Tile, index: BatchIndex) -> None:
        all_heads = self.heads is None or not index
        indices = [index] if all_heads else [target for target, _ in self._selected_heads(index)]
        for n, reduction in enumerate(self.readout.reductions(tile)):
            if reduction.masked is None:
                continue
            for at in indices:
                target: Any = reduction.slice(self.arrays[n][at])
                target[...] = reduction.combine(target, zeros(target, target.shape) + reduction.masked)

    def result(self) -> Any:
        return self.readout.finalize(unflatten(tuple(self.arrays), self.kind), self.tile)
