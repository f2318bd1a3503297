"""Pooled maps of softmax in the pass that makes the output, in PyTorch, without gradients.

A tile of exponentials e = exp(l − m), with m the largest logit of each row so far, is summed block by block
into a row of a small table; when the row block ends, each block is scaled by exp(m of its time − m at the
end) and divided by the total, and only then added to the cells:

    cell += Σ_rows (Σ_block exp(l − m_tile)) · exp(m_tile − m_end) / total

For maxima, the largest of each block in place of its sum. The loop over tiles calls:

    maps = OnePass(readouts, place, like=value)             once for the call
    for each batch element:
        blocks = maps.element(index)
        for each row block:
            blocks.begin(rows)
            for each tile of keys:                          those that the mask forbids are passed over
                blocks.absorb(e, cols, maximum)             e before dropout, 0 where excluded
            blocks.finish(shift, total)
    maps.results()

Tiles whose sides are multiples of the cells' are summed fastest: `cells_aligned` gives such a side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from qkv.core.batch import BatchIndex
from qkv.core.tile import Tile
from qkv.core.typing import Tensor
from qkv.readouts import Readout
from qkv.readouts.cells import cell_range, cell_start, pool_cells

__all__ = ["Blocks", "OnePass", "cells_aligned", "one_pass"]

Limits = tuple[int, int]


def one_pass(readout: Readout, normalizer: Any) -> bool:
    """Whether this readout can be had in the pass that makes the output, where no gradient is wanted."""
    return bool(readout.pooling) and normalizer.log_sum_exp and normalizer.online


def cells_aligned(side: int, length: int, readouts: Sequence[Readout]) -> int:
    """The side of a tile, of at most `side` entries of an axis, that cuts as few cells as can be.

    Example:
        >>> from qkv.readouts import PooledMap
        >>> cells_aligned(500, 16_384, [PooledMap(512)])
        480
    """
    for readout in readouts:
        size = readout.per_head.size
        width = length // min(size, length) if length else 1
        if length % max(1, width) == 0 and 1 < width <= side:
            return side - side % width
    return side


class OnePass:
    """The maps of a call while they are put together.

    Args:
        readouts: `one_pass` is true of each.
        place: of the whole call.
        like: an array of the dtype and device of accumulation.
    """

    def __init__(self, readouts: Sequence[Readout], tile: Tile, like: Tensor) -> None:
        self.readouts, self.tile = tuple(readouts), tile
        self.whole = []
        for readout in self.readouts:
            batch = tile.batch
            if readout.head_indices is not None:
                batch = (*batch[:-1], len(readout.head_indices))
            sides = readout.per_head.sides(tile.q_total, tile.k_total)
            self.whole.append(like.new_zeros((*batch, *sides)))

    def element(self, index: BatchIndex) -> Blocks:
        """What the loop over the tiles of one batch element calls; elements may run at the same time."""
        found = []
        for readout, whole in zip(self.readouts, self.whole, strict=True):
            if readout.head_indices is None:
                found.append(_Map(readout.pooling, [whole[index]], self.tile))
                continue
            count = self.tile.batch[-1]
            to = [n for n, head in enumerate(readout.head_indices) if head % count == index[-1]]
            if to:
                found.append(_Map(readout.pooling, [whole[(*index[:-1], n)] for n in to], self.tile))
        return Blocks(found)

    def results(self) -> tuple[Tensor, ...]:
        """The maps, in the order of the readouts."""
        both = zip(self.readouts, self.whole, strict=True)
        return tuple(readout.finalize(whole, self.tile) for readout, whole in both)


class Blocks:
    """The maps of one batch element."""

    def __init__(self, maps: list[_Map]) -> None:
        self.maps = maps

    def begin(self, rows: Limits) -> None:
        """Begin a block of rows."""
        for one in self.maps:
            one.begin(rows)

    def absorb(self, e: Tensor, cols: Limits, maximum: Tensor | None = None) -> None:
        """Take in a tile.

        Args:
            e: exponentials of the prepared logits, `(rows, cols)`; may be overwritten afterwards.
            cols: of the tile; the same cuts for every block of rows.
            maximum: of each row, `(rows, 1)`: e = exp(l − maximum). None: it is the `shift` of `finish`; then
                so for all tiles.
        """
        for one in self.maps:
            one.absorb(e, cols, maximum)

    def finish(self, shift: Tensor, total: Tensor, exp: Callable[[Tensor], Tensor] | None = None) -> None:
        """End the block of rows.

        Args:
            shift: `(rows, 1)`, finite; total = Σ exp(l − shift), with the sink.
            total: `(rows, 1)`; 0 where no key is left.
            exp: `torch.exp2` where logits are in base 2.
        """
        import torch

        for one in self.maps:
            one.finish(shift, total, exp or torch.exp)


class _Tile:
    """Where the blocks of a tile stand in the table: from `first` on, `count` of them."""

    def __init__(self, number: int, first: int, cells: Limits, edges: list[int]) -> None:
        self.number, self.first, self.cells, self.edges = number, first, cells, edges
        self.count = cells[1] - cells[0]
        lengths = {b - a for a, b in itertools.pairwise(edges)}
        self.even = len(lengths) <= 1
        self.sums: Any = None


class _Map:
    """One map of one batch element; `targets` are its places in the result."""

    def __init__(self, how: str, targets: list[Tensor], tile: Tile) -> None:
        self.how, self.targets, self.tile = how, targets, tile
        self.sides = tuple(targets[0].shape)
        self.tiles: dict[Limits, _Tile] = {}
        self.width = 0
        self.table: Any = None
        self.maxima: Any = None
        self.rows: Limits = (0, 0)
        self.measured = False

    def begin(self, rows: Limits) -> None:
        self.rows, self.measured = rows, False
        if self.table is not None:
            # What is passed over stays so.
            self.table.zero_()
            self.maxima.fill_(-math.inf)

    def absorb(self, e: Tensor, cols: Limits, maximum: Tensor | None) -> None:
        import torch

        if not len(e):
            return
        tile = self.tiles.get(cols) or self._new(cols)
        here = self._room(e, tile)
        if not tile.even:
            here.copy_(self._uneven(e, cols, tile))
        elif self.how == "mean":
            torch.sum(e.view(len(e), tile.count, -1), -1, out=here)
        else:
            torch.amax(e.view(len(e), tile.count, -1), -1, out=here)
        if maximum is not None:
            self.measured = True
            self.maxima[: len(e), tile.number] = maximum[:, 0]

    def finish(self, shift: Tensor, total: Tensor, exp: Callable[[Tensor], Tensor]) -> None:
        if self.table is None:
            return
        rows = self.rows[1] - self.rows[0]
        table = self.table[:rows, : self.width]
        scale = total.where(total != 0, 1.0).reciprocal()
        if self.measured:
            counts = [tile.count for tile in self.tiles.values()]
            scale = exp(self.maxima[:rows, : len(counts)] - shift).mul_(scale)
            scale = scale.repeat_interleave(table.new_tensor(counts, dtype=int), 1, output_size=self.width)
        table.mul_(scale)
        at = cell_range(self.rows, self.sides[0], self.tile.q_total)
        how = "sum" if self.how == "mean" else "max"
        lanes = pool_cells(table, -2, self.rows, self.sides[0], self.tile.q_total, how)
        for target in self.targets:
            for tile in self.tiles.values():
                # A cell may be cut by tiles: one of them after the other.
                there = target[slice(*at), slice(*tile.cells)]
                new = lanes[:, tile.first : tile.first + tile.count]
                there.copy_(there + new if self.how == "mean" else there.maximum(new))

    def _new(self, cols: Limits) -> _Tile:
        length, count = self.tile.k_total, self.sides[1]
        cells = cell_range(cols, count, length)
        edges = [min(max(cell_start(c, count, length), cols[0]), cols[1]) for c in range(cells[0], cells[1] + 1)]
        tile = self.tiles[cols] = _Tile(len(self.tiles), self.width, cells, edges)
        self.width += tile.count
        return tile

    def _room(self, e: Tensor, tile: _Tile) -> Tensor:
        """The tile's part of the table, which grows when it first goes that far."""
        upto = tile.first + tile.count
        if self.table is None or self.table.shape[0] < len(e) or self.table.shape[1] < upto:
            tiles = -(-self.tile.k_total // max(1, e.shape[1])) + 1
            # Each cell, and one more for each cut of a cell by a tile.
            wide = max(upto, self.sides[1] + tiles)
            table, maxima = e.new_zeros((len(e), wide)), e.new_full((len(e), wide), -math.inf)
            if self.table is not None:
                old = self.table.shape
                table[: old[0], : old[1]], maxima[: old[0], : old[1]] = self.table, self.maxima
            self.table, self.maxima = table, maxima
        return self.table[: len(e), tile.first : upto]

    def _uneven(self, e: Tensor, cols: Limits, tile: _Tile) -> Tensor:
        if self.how == "max":
            return pool_cells(e, -1, cols, self.sides[1], self.tile.k_total, "max")
        if tile.sums is None:
            tile.sums = e.new_zeros((e.shape[1], tile.count))
            for n, (start, stop) in enumerate(itertools.pairwise(tile.edges)):
                tile.sums[start - cols[0] : stop - cols[0], n] = 1
        # What is not finite makes its whole row so, here as in the total.
        return e @ tile.sums
