"""Collection of the readouts of a call during the forward pass over its tiles, in PyTorch, without gradients.

The log-sum-exp of each query is a result of the pass that computes the output. Pooled maps are accumulated in it, and
the keys of the largest logits are collected, whose weights are known at its end: weights increase with logits. Other
readouts need a second pass over the tiles of a row block, immediately after its output is computed
(`kernels/runtime/tile_readouts.py`).

For a pooled map each tile of exponentials e = exp(l − m), where m is the running maximum of each row, is summed cell by
cell into a table with one row per query. After the last tile of a row block, each entry is multiplied by
exp(m_tile − m_end), divided by the total of its row, and added to its cell of the map:

    cell += Σ_rows (Σ_keys exp(l − m_tile)) · exp(m_tile − m_end) / total

For maximum pooling, the largest exponential of each cell replaces the sum. The loop over tiles calls:

    for each batch element:
        element_map = ElementMap(mean, targets, tile)       for each pooled map
        for each row block:
            element_map.start(rows)
            for each tile of keys:                          except fully masked tiles
                element_map.update(e, cols, maximum)        e before dropout, 0 where masked
            element_map.finalize(shift, total)

Pooling is fastest if the side of a tile is a multiple of that of a cell; `align_to_cells` returns such a side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from qkv.core.arrays import dtype_name
from qkv.core.batch import BatchIndex
from qkv.core.ordering import RunningTopK
from qkv.core.tile import Tile
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.tile_readouts import (
    SPARE_KEYS,
    ReadoutAccumulator,
    include_largest,
    result_batch,
    selected_heads,
)
from qkv.readouts import PooledMap, Readout
from qkv.readouts.cells import cell_edges, cell_range, pool_cells


def align_to_cells(side: int, length: int, readouts: Sequence[Readout]) -> int:
    """Return the largest tile length up to `side` at which tiles split no cell of a pooled map, or else `side`.

    Example:
        >>> from qkv.readouts import PooledMap
        >>> align_to_cells(500, 16_384, [PooledMap(512)])
        480
    """
    for readout in readouts:
        size = cast("PooledMap", readout.per_head).size  # guaranteed by `readout.pooling`
        width = length // min(size, length) if length else 1
        if length % max(1, width) == 0 and 1 < width <= side:
            return side - side % width
    return side


@dataclass
class _TileCells:
    """Cells of a pooled map that overlap a tile of keys.

    Attributes:
        number: number of the tile.
        entries: range of the columns of the table that belong to the tile, one for each cell.
        cells: range of the cells in the map.
        edges: index of the first key of each cell within the tile, and one past the last key.
        indicator: 1 where a key belongs to a cell, else 0, `(keys, cells)`; computed on first use.
    """

    number: int
    entries: Limits
    cells: Limits
    edges: list[int]
    indicator: Tensor | None = None


class ElementMap:
    """Accumulator of one pooled attention map of one batch element.

    Args:
        mean: whether cells hold the mean weight; otherwise they hold the largest weight.
        targets: views of the results to which the map is written.
        tile: the tile that covers the whole call.
    """

    def __init__(self, mean: bool, targets: list[Float[Tensor, "rows cols"]], tile: Tile) -> None:
        self.mean, self.targets, self.tile = mean, targets, tile
        self.sides = tuple(targets[0].shape)
        self.tiles: dict[Limits, _TileCells] = {}
        self.width = 0
        self.table = targets[0].new_zeros((0, 0))
        self.maxima = self.table
        self.rows: Limits = (0, 0)
        self.has_maxima = False

    def start(self, rows: Limits) -> None:
        """Set the range of queries of the next row block, and clear the table of exponentials."""
        self.rows, self.has_maxima = rows, False
        # Entries of skipped tiles keep these initial values.
        self.table.zero_()
        self.maxima.fill_(-math.inf)

    def update(self, e: Float[Tensor, "q k"], cols: Limits, maximum: Float[Tensor, "q 1"] | None = None) -> None:
        """Pool the exponentials of a tile over its keys and write the result to the table of the row block.

        Args:
            e: exponentials e^(l − m) of the logits of the tile. The caller may overwrite them afterwards.
            cols: range of the tile's keys. All row blocks must use the same ranges.
            maximum: maximum m of each row in e = exp(l − m); None if m is the `shift` of `finalize` for all tiles.
        """
        if not len(e):
            return
        cells = self.tiles.get(cols) or self._new_tile(cols)
        entries = self._entries(e, cells)
        if len({stop - start for start, stop in itertools.pairwise(cells.edges)}) > 1:
            entries.copy_(self._pool_unevenly(e, cols, cells))
        elif self.mean:
            torch.sum(e.view(len(e), entries.shape[1], -1), -1, out=entries)
        elif e.shape[1] < 32 * entries.shape[1]:  # where `torch.amax` takes two to three times as long
            entries.copy_(torch.nn.functional.max_pool1d(e, e.shape[1] // entries.shape[1]))
        else:
            torch.amax(e.view(len(e), entries.shape[1], -1), -1, out=entries)
        if maximum is not None:
            self.has_maxima = True
            self.maxima[: len(e), cells.number] = maximum[:, 0]

    def finalize(
        self,
        shift: Float[Tensor, "q 1"],
        total: Float[Tensor, "q 1"],
        exp: Callable[[Float[Tensor, "*shape"]], Float[Tensor, "*shape"]] | None = None,
    ) -> None:
        """Normalize the table of the row block, pool it over the queries, and merge it into the map.

        Args:
            shift: finite shift of each row.
            total: Σ exp(l − shift) of each row, including the sink; 0 for a row without keys.
            exp: exponential function, `torch.exp2` if logits are in base 2. The default is `torch.exp`.
        """
        if not self.tiles:
            return
        rows = self.rows[1] - self.rows[0]
        table = self.table[:rows, : self.width]
        scale = total.where(total != 0, 1.0).reciprocal()
        if self.has_maxima:
            counts = [stop - start for start, stop in (cells.entries for cells in self.tiles.values())]
            scale = (exp or torch.exp)(self.maxima[:rows, : len(counts)] - shift).mul_(scale)
            scale = scale.repeat_interleave(torch.tensor(counts, device=table.device), 1, output_size=self.width)
        table.mul_(scale)
        at = cell_range(self.rows, self.sides[0], self.tile.q_total)
        how = "sum" if self.mean else "max"
        pooled = cast("Tensor", pool_cells(table, -2, self.rows, self.sides[0], self.tile.q_total, how))
        for target in self.targets:
            for cells in self.tiles.values():
                # Add one tile at a time, because two tiles may overlap the same cell.
                old = target[slice(*at), slice(*cells.cells)]
                new = pooled[:, slice(*cells.entries)]
                old.copy_(old + new if self.mean else old.maximum(new))

    def _new_tile(self, cols: Limits) -> _TileCells:
        length, count = self.tile.k_total, self.sides[1]
        cells = cell_range(cols, count, length)
        entries = (self.width, self.width + cells[1] - cells[0])
        tile = self.tiles[cols] = _TileCells(len(self.tiles), entries, cells, cell_edges(cols, count, length))
        self.width = entries[1]
        return tile

    def _entries(self, e: Float[Tensor, "q k"], cells: _TileCells) -> Float[Tensor, "q cells"]:
        """Return the part of the table that belongs to a tile, after enlarging the table if necessary."""
        old = self.table
        if old.shape[0] < len(e) or old.shape[1] < cells.entries[1]:
            tiles = -(-self.tile.k_total // max(1, e.shape[1])) + 1
            # One entry for each cell, and one more for each cell that overlaps two tiles.
            shape = (len(e), max(cells.entries[1], self.sides[1] + tiles))
            self.table = e.new_zeros(shape)
            maxima = e.new_full(shape, -math.inf)
            self.table[: old.shape[0], : old.shape[1]], maxima[: old.shape[0], : old.shape[1]] = old, self.maxima
            self.maxima = maxima
        return self.table[: len(e), slice(*cells.entries)]

    def _pool_unevenly(self, e: Float[Tensor, "q k"], cols: Limits, cells: _TileCells) -> Float[Tensor, "q cells"]:
        if not self.mean:
            return cast("Tensor", pool_cells(e, -1, cols, self.sides[1], self.tile.k_total, "max"))
        if cells.indicator is None:
            cells.indicator = e.new_zeros((e.shape[1], len(cells.edges) - 1))
            for n, (start, stop) in enumerate(itertools.pairwise(cells.edges)):
                cells.indicator[start - cols[0] : stop - cols[0], n] = 1
        # NaN and infinity spread to the whole row, as they do in the total.
        return e @ cells.indicator


class ReadoutCollector:
    """Collector that computes the readouts of a call row block by row block during the forward pass.

    Args:
        tile: the tile that covers the whole call.
        like: tensor with the dtype and device of accumulation.

    Attributes:
        accumulators: accumulators of the readouts that need a second pass over the tiles.
        selections: accumulators of the readouts that are computed from the keys of the largest logits.
        largest: number of these keys, 0 if there is no such readout.
    """

    def __init__(self, readouts: Sequence[Readout], tile: Tile, like: Float[Tensor, "*_"]) -> None:
        self._tile = tile
        self._results: list[tuple[Readout, Tensor | ReadoutAccumulator]] = []
        self.accumulators: list[ReadoutAccumulator] = []
        self.selections: list[ReadoutAccumulator] = []
        for readout in readouts:
            result: Tensor | ReadoutAccumulator | None = _allocate(readout, tile, like)
            if result is None:
                result = ReadoutAccumulator(readout, tile)
                selects = readout.largest and like.device.type == "cpu" and 0 not in tile.batch  # by NumPy
                (self.selections if selects else self.accumulators).append(result)
            self._results.append((readout, result))
        self.largest = max((each.readout.largest or 0 for each in self.selections), default=0)

    def element_maps(self, index: BatchIndex) -> list[ElementMap]:
        """Return the accumulators of the pooled maps for the batch element at `index`."""
        maps = []
        for readout, whole in self._results:
            if readout.pooling and 0 not in self._tile.batch and not isinstance(whole, ReadoutAccumulator):
                targets = [whole[at] for at, _ in selected_heads(readout, self._tile.batch, index)]
                if targets:
                    maps.append(ElementMap(readout.pooling == "mean", targets, self._tile))
        return maps

    def add_log_totals(
        self, index: BatchIndex, rows: tuple[int, int], log_total: Callable[[], Float[Tensor, "q 1"]]
    ) -> None:
        """Store the log-sum-exp of a range of queries if a readout of the call needs it.

        Args:
            index: index of the batch element.
            rows: range of the queries.
            log_total: function that computes the log-sum-exp of each query.
        """
        for readout, whole in self._results:
            if readout.is_log_sum_exp and not isinstance(whole, ReadoutAccumulator):
                for at, _ in selected_heads(readout, self._tile.batch, index):
                    whole[(*at, slice(*rows))] = log_total()[..., 0]

    def start_selection(self, rows: Limits, like: Float[Tensor, "*_"]) -> RunningTopK | None:
        """Return an object that selects the keys of the largest logits of a range of queries, if a readout needs it."""
        if not self.largest:
            return None
        return RunningTopK((rows[1] - rows[0],), self.largest + SPARE_KEYS, np.dtype(dtype_name(like)))

    def select(self, index: BatchIndex, rows: Limits, selected: RunningTopK, weights: Float[Tensor, "q keys"]) -> bool:
        """Store the readouts of a range of queries that are computed from the keys of the largest logits.

        Args:
            index: index of the batch element.
            rows: range of the queries.
            selected: the keys and their logits.
            weights: their weights.

        Returns:
            Whether these keys have the largest weights; otherwise nothing is stored.
        """
        if not include_largest(weights.numpy(), selected.rank, self.largest):
            return False
        keys = torch.from_numpy(selected.index)
        for accumulator in self.selections:
            accumulator.add_candidates(weights, keys, rows, index)
        return True

    def results(self) -> tuple[object, ...]:
        """Return the results of the readouts, in the order of the readouts."""
        return tuple(
            whole.result() if isinstance(whole, ReadoutAccumulator) else readout.finalize(whole, self._tile)
            for readout, whole in self._results
        )


def _allocate(readout: Readout, tile: Tile, like: Float[Tensor, "*_"]) -> Float[Tensor, "*_result"] | None:
    """Return the result of a readout that the first pass over the tiles fills, or None if it needs a second pass."""
    if not (readout.pooling or readout.is_log_sum_exp):
        return None
    (reduction,) = readout.reductions(tile)
    return like.new_zeros((*result_batch(readout, tile.batch), *reduction.shape))
