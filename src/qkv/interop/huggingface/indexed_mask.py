"""Masks that list, for each query, the indices of the keys or blocks of keys that the query may attend to.

Models with an indexer use such masks: DeepSeek V3.2 selects keys, MiniMax M3 selects blocks of keys.
Source: DeepSeek-AI (2025), DeepSeek-V3.2, section 2, https://arxiv.org/abs/2512.02556.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Tensor
from qkv.masks.base import Mask

__all__ = ["IndexedMask"]


@dataclass(frozen=True, eq=False)
class IndexedMask(Mask):
    """Mask that allows query i to attend to key j if ⌊j / size⌋ is in `indices[i]`.

    Args:
        indices: integers `(*batch, q, n)`; negative entries are ignored.
        size: number of keys per block.

    Example:
        >>> from qkv.core.tile import Tile
        >>> IndexedMask(torch.tensor([[0, -1], [1, 0]]), size=2).allowed(Tile.whole(2, 4), torch.zeros(()))
        tensor([[ True,  True, False, False],
                [ True,  True,  True,  True]])
    """

    indices: Array = array_field("q", "n")
    size: int = 1

    def allowed(self, tile: Tile, reference: Array) -> Bool[Tensor, "*batch #q k"]:
        """Return a boolean array that is True for the allowed pairs of a tile."""
        indices = cast(torch.Tensor, self.indices)
        first, last = tile.cols[0] // self.size, (tile.cols[1] - 1) // self.size
        count = last - first + 1
        column = indices.to(torch.int64) - first
        # Blocks outside the tile go to one extra column, which is then cut off.
        column = torch.where((column < 0) | (column >= count) | (indices < 0), count, column)
        table = torch.zeros((*column.shape[:-1], count + 1), dtype=torch.bool, device=column.device)
        table = table.scatter(-1, column, True)
        blocks = torch.arange(*tile.cols, device=column.device) // self.size - first
        return table[..., blocks]
