"""A pass over tiles of rows, which gives the logits and the values of consecutive rows to an accumulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.core.progress import checkpoint
from qkv.core.typing import Bool, Float, Shaped
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.running_aggregates import StreamedAggregator
from qkv.database.execute.scan import CellLogits, Logits, NumberLogits, VectorLogits, excluded_rows

__all__ = ["ROWS_AT_ONCE", "TILE_NUMBERS", "Consumer", "TilePass"]

TILE_NUMBERS = 2**20
"""Number of logits that are computed at a time."""

# Logits, exponentials and values of this many rows fit a cache of 2 MB.
ROWS_AT_ONCE = 2**17
"""Largest number of rows whose logits are computed at a time."""

Consumer = Callable[[Float[np.ndarray, "q n"], int, Shaped[np.ndarray, "n ..."] | None], None]
"""A function of the logits of some rows, the index of the first row, and the values of the rows or None."""


class TilePass:
    """The logits of a group of queries, and which rows take part, with which tiles are read.

    Args:
        cell_logits: the logits of any tile.
        fast: faster logits of the tiles that it supports; None for none.
        plain_values: an aggregator, by which missing values are found if values are not accumulated.
        queries: number of queries.
        elements: number of array elements per logit of `cell_logits`.
        present: True for the selected rows of the table; None for all.
    """

    def __init__(
        self,
        cell_logits: CellLogits,
        fast: VectorLogits | NumberLogits | None,
        plain_values: StreamedAggregator,
        queries: int,
        elements: int,
        present: Bool[np.ndarray, " rows"] | None = None,
    ) -> None:
        self.cell_logits, self.fast, self.plain_values = cell_logits, fast, plain_values
        self.queries, self.elements, self.present = queries, elements, present

    def run(self, tile: RowTile, complete: bool, consume: Consumer, aggregator: StreamedAggregator | None) -> None:
        """Call `consume` with the logits of consecutive rows and, if there is an aggregator, with their values.

        Rows are skipped if all of them are excluded.

        Args:
            tile: the tile.
            complete: whether it is known that no cell of the tile is missing.
            consume: called for consecutive rows.
            aggregator: reads the values.
        """
        logits_of: Logits[Any] | None = self.fast
        values = aggregator if aggregator is not None else self.plain_values
        rows: Any = None
        if complete and self.fast is not None:
            rows = self.fast.load(tile)
        if logits_of is None or rows is None:
            logits_of, rows = self.cell_logits, self.cell_logits.load(tile)
        count = tile.table.num_rows
        reads = aggregator is not None or not complete
        cells, missing_values = values.read(tile.table, complete) if reads else (None, None)
        excluded = excluded_rows(self.present, tile.number, count, logits_of.missing(rows), missing_values)
        if excluded is not None and cells is not None and cells.dtype.kind == "f":
            cells = np.where(excluded.reshape(-1, *(1,) * (cells.ndim - 1)), cells.dtype.type(0), cells)
        step = max(1, TILE_NUMBERS // (self.queries * (self.elements if logits_of is self.cell_logits else 1)))
        step = min(step, ROWS_AT_ONCE)
        for start in range(0, count, step):
            checkpoint()
            stop = min(start + step, count)
            if excluded is not None and excluded[start:stop].all():
                continue
            logits = logits_of.compute(rows, start, stop)
            if excluded is not None:
                logits[:, excluded[start:stop]] = -np.inf
            consume(logits, tile.number + start, None if cells is None else cells[start:stop])
