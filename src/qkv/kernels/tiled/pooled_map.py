"""Pooled maps of softmax weights in the pass that computes the output, in PyTorch, without gradients.

A tile of exponentials e = exp(l − m), with m the largest logit of each row so far, is summed cell by cell into a row
of a small table. When the row block ends, each entry is scaled by exp(its m − m at the end) and divided by the total,
and only then added to the cells of the map:

    cell += Σ_rows (Σ_keys exp(l − m_tile)) · exp(m_tile − m_end) / total

For maxima, the largest exponential of each cell replaces the sum. The loop over tiles calls:

    maps = PooledMaps(readouts, tile, like=value)           once per call
    for each batch element:
        element = maps.element(index)
        for each row block:
            element.start(rows)
            for each tile of keys:                          except those that the mask excludes
                element.update(e, cols, maximum)            e before dropout, 0 where excluded
            element.finalize(shift, total)
    maps.results()

Tiles whose sides are multiples of the cells' are summed fastest: `align_to_cells` returns such a side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import cast

from qkv.core.batch import BatchIndex
from qkv.core.tile import Tile
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.tile_loop import Limits
from qkv.normalizers.base import Normalizer
from qkv.readouts import PooledMap, Readout
from qkv.readouts.cells import cell_range, cell_start, pool_cells

__all__ = ["ElementMaps", "PooledMaps", "align_to_cells", "supports_pooling"]


def supports_pooling(readout: Readout, normalizer: Normalizer) -> bool:
    """Return whether a readout can be pooled in the pass that computes the output, without gradient."""
    return readout.pooling is not None and normalizer.log_sum_exp and normalizer.online


def align_to_cells(side: int, length: int, readouts: Sequence[Readout]) -> int:
    """Return the side of a tile, of at most `side` entries of an axis, that cuts as few cells as possible.

    Example:
        >>> from qkv.readouts import PooledMap
        >>> align_to_cells(500, 16_384, [PooledMap(512)])
        480
    """
    for readout in readouts:
        size = _pooled_map(readout).size
        width = length // min(size, length) if length else 1
        if length % max(1, width) == 0 and 1 < width <= side:
            return side - side % width
    return side


def _pooled_map(readout: Readout) -> PooledMap:
    return cast("PooledMap", readout.per_head)  # `pooling` says so


class PooledMaps:
    """The pooled maps of a call while they are summed.

    Args:
        readouts: readouts for which `supports_pooling` is true.
        tile: the tile that covers the whole call.
        like: an array with the dtype and device of accumulation.
    """

    def __init__(self, readouts: Sequence[Readout], tile: Tile, like: Tensor) -> None:
        self.readouts, self.tile = tuple(readouts), tile
        self.whole = []
        for readout in self.readouts:
            batch = tile.batch
            if readout.head_indices is not None:
                batch = (*batch[:-1], len(readout.head_indices))
            sides = _pooled_map(readout).sides(tile.q_total, tile.k_total)
            self.whole.append(like.new_zeros((*batch, *sides)))

    def element(self, index: BatchIndex) -> ElementMaps:
        """Return the maps of the batch element at `index`; elements may be computed at the same time."""
        maps = []
        for readout, whole in zip(self.readouts, self.whole, strict=True):
            if readout.head_indices is None:
                maps.append(_Map(readout.pooling == "mean", [whole[index]], self.tile))
                continue
            count = self.tile.batch[-1]
            heads = [n for n, head in enumerate(readout.head_indices) if head % count == index[-1]]
            if heads:
                targets = [whole[(*index[:-1], n)] for n in heads]
                maps.append(_Map(readout.pooling == "mean", targets, self.tile))
        return ElementMaps(maps)

    def results(self) -> tuple[Tensor, ...]:
        """Return the maps in the order of the readouts."""
        pairs = zip(self.readouts, self.whole, strict=True)
        return tuple(cast("Tensor", readout.finalize(whole, self.tile)) for readout, whole in pairs)


class ElementMaps:
    """The pooled maps of one batch element."""

    def __init__(self, maps: list[_Map]) -> None:
        self.maps = maps

    def start(self, rows: Limits) -> None:
        """Start a block of rows."""
        for one in self.maps:
            one.start(rows)

    def update(self, e: Float[Tensor, "q k"], cols: Limits, maximum: Float[Tensor, "q 1"] | None = None) -> None:
        """Add a tile.

        Args:
            e: exponentials of the prepared logits; it may be overwritten afterwards.
            cols: range of the tile's keys; every row block must be cut at the same keys.
            maximum: m of each row in e = exp(l − m). None: it is the `shift` of `finalize`, for all tiles.
        """
        for one in self.maps:
            one.update(e, cols, maximum)

    def finalize(
        self,
        shift: Float[Tensor, "q 1"],
        total: Float[Tensor, "q 1"],
        exp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """End the block of rows.

        Args:
            shift: a finite number for each row.
            total: Σ exp(l − shift), including the sink; 0 for a row without keys.
            exp: `torch.exp2` if logits are in base 2; None: `torch.exp`.
        """
        import torch

        for one in self.maps:
            one.finalize(shift, total, exp or torch.exp)


class _TileCells:
    """The table entries of a tile's cells: `count` of them from `first` on."""

    def __init__(self, number: int, first: int, cells: Limits, edges: list[int]) -> None:
        self.number, self.first, self.cells, self.edges = number, first, cells, edges
        self.count = cells[1] - cells[0]
        self.even = len({stop - start for start, stop in itertools.pairwise(edges)}) <= 1
        self.indicator: Tensor | None = None


class _Map:
    """One map of one batch element, written to all of `targets`."""

    def __init__(self, mean: bool, targets: list[Tensor], tile: Tile) -> None:
        self.mean, self.targets, self.tile = mean, targets, tile
        self.sides = tuple(targets[0].shape)
        self.tiles: dict[Limits, _TileCells] = {}
        self.width = 0
        self.table: Tensor | None = None
        self.maxima: Tensor | None = None
        self.rows: Limits = (0, 0)
        self.has_maxima = False

    def start(self, rows: Limits) -> None:
        self.rows, self.has_maxima = rows, False
        if self.table is not None and self.maxima is not None:
            # Entries of tiles that are skipped stay so.
            self.table.zero_()
            self.maxima.fill_(-math.inf)

    def update(self, e: Tensor, cols: Limits, maximum: Tensor | None) -> None:
        import torch

        if not len(e):
            return
        cells = self.tiles.get(cols) or self._new_tile(cols)
        entries = self._entries(e, cells)
        if not cells.even:
            entries.copy_(self._pool_unevenly(e, cols, cells))
        elif self.mean:
            torch.sum(e.view(len(e), cells.count, -1), -1, out=entries)
        else:
            torch.amax(e.view(len(e), cells.count, -1), -1, out=entries)
        if maximum is not None and self.maxima is not None:
            self.has_maxima = True
            self.maxima[: len(e), cells.number] = maximum[:, 0]

    def finalize(self, shift: Tensor, total: Tensor, exp: Callable[[Tensor], Tensor]) -> None:
        import torch

        if self.table is None or self.maxima is None:
            return
        rows = self.rows[1] - self.rows[0]
        table = self.table[:rows, : self.width]
        scale = total.where(total != 0, 1.0).reciprocal()
        if self.has_maxima:
            counts = [cells.count for cells in self.tiles.values()]
            scale = exp(self.maxima[:rows, : len(counts)] - shift).mul_(scale)
            scale = scale.repeat_interleave(torch.tensor(counts, device=table.device), 1, output_size=self.width)
        table.mul_(scale)
        at = cell_range(self.rows, self.sides[0], self.tile.q_total)
        pooled = cast(
            "Tensor", pool_cells(table, -2, self.rows, self.sides[0], self.tile.q_total, "sum" if self.mean else "max")
        )
        for target in self.targets:
            for cells in self.tiles.values():
                # One tile after the other, because two tiles may cut one cell.
                old = target[slice(*at), slice(*cells.cells)]
                new = pooled[:, cells.first : cells.first + cells.count]
                old.copy_(old + new if self.mean else old.maximum(new))

    def _new_tile(self, cols: Limits) -> _TileCells:
        length, count = self.tile.k_total, self.sides[1]
        cells = cell_range(cols, count, length)
        edges = [min(max(cell_start(c, count, length), cols[0]), cols[1]) for c in range(cells[0], cells[1] + 1)]
        tile = self.tiles[cols] = _TileCells(len(self.tiles), self.width, cells, edges)
        self.width += tile.count
        return tile

    def _entries(self, e: Tensor, cells: _TileCells) -> Tensor:
        """Return the tile's part of the table, which grows on first use."""
        stop = cells.first + cells.count
        if self.table is None or self.table.shape[0] < len(e) or self.table.shape[1] < stop:
            tiles = -(-self.tile.k_total // max(1, e.shape[1])) + 1
            # Each cell, and one more entry for each cell that two tiles cut.
            width = max(stop, self.sides[1] + tiles)
            table, maxima = e.new_zeros((len(e), width)), e.new_full((len(e), width), -math.inf)
            if self.table is not None and self.maxima is not None:
                old = self.table.shape
                table[: old[0], : old[1]], maxima[: old[0], : old[1]] = self.table, self.maxima
            self.table, self.maxima = table, maxima
        return self.table[: len(e), cells.first : stop]

    def _pool_unevenly(self, e: Tensor, cols: Limits, cells: _TileCells) -> Tensor:
        if not self.mean:
            return cast("Tensor", pool_cells(e, -1, cols, self.sides[1], self.tile.k_total, "max"))
        if cells.indicator is None:
            cells.indicator = e.new_zeros((e.shape[1], cells.count))
            for n, (start, stop) in enumerate(itertools.pairwise(cells.edges)):
                cells.indicator[start - cols[0] : stop - cols[0], n] = 1
        # NaN and Inf spread to the whole row, as they do in the total.
        return e @ cells.indicator
