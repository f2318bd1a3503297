"""Listed keys: each query names the keys, or blocks of keys, that it may attend to.

What models with an indexer say: DeepSeek V3.2 chooses keys, MiniMax M3 blocks of keys.
Source: DeepSeek-AI (2025), DeepSeek-V3.2, section 2, https://arxiv.org/abs/2512.02556.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qkv.core.arrays import Array
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.masks.base import Mask

__all__ = ["IndexedMask"]


@dataclass(frozen=True, eq=False)
class IndexedMask(Mask):
    """Key j may be attended to by query i where ⌊j / size⌋ is in `indices[i]`.

    Args:
        indices: integers `(*batch, q, n)`; negative ones name nothing.
        size: keys in a block.

    Example:
        >>> from qkv.core.tile import Tile
        >>> IndexedMask(torch.tensor([[0, -1], [1, 0]]), size=2).allowed(Tile.whole(2, 4), torch.zeros(()))
        tensor([[ True,  True, False, False],
                [ True,  True,  True,  True]])
    """

    indices: Array = array_field("q", "n")
    size: int = 1

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """A table of the tile's blocks, with those that are named marked."""
        first, last = tile.cols[0] // self.size, (tile.cols[1] - 1) // self.size
        count = last - first + 1
        at = self.indices.to(torch.int64) - first
        # What is named outside the tile goes to one more column, which is cut off.
        at = torch.where((at < 0) | (at >= count) | (self.indices < 0), count, at)
        marked = torch.zeros((*at.shape[:-1], count + 1), dtype=torch.bool, device=at.device)
        marked = marked.scatter(-1, at, True)
        cols = torch.arange(*tile.cols, device=at.device) // self.size - first
        return marked[..., cols]
