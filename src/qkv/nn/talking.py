"""Talking heads: heads mix their logits before the normalizer, and their weights after it.

    logits'_h = Σ_g L_hg logits_g          weights'_h = Σ_g W_hg weights_g

Source: Shazeer, Lan, Cheng, Ding, Hou (2020), Talking-heads attention, https://arxiv.org/abs/2003.02436.
A tile of one head needs those of all, so it runs dense alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qkv.core.arrays import Array
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.normalizers import Normalizer
from qkv.normalizers.base import excluded
from qkv.scores import PointwiseScore, Score

__all__ = ["MixedLogits", "MixedWeights"]


@dataclass(frozen=True, eq=False)
class MixedLogits(PointwiseScore):
    """Another score whose logits are mixed over the last batch axis.

    Args:
        score: the score within.
        mix: L `(heads, heads)`: from the second axis to the first.

    Example:
        >>> from qkv.scores import Dot
        >>> one = torch.ones(2, 1, 1)
        >>> MixedLogits(Dot(), torch.tensor([[1.0, 2.0], [0.0, 5.0]]))(one, one).flatten()
        tensor([3., 5.])
    """

    score: Score
    mix: Any = array_field("heads", "other_heads", default=None)

    def point(self, logits: Array, tile: Tile) -> Array:
        """L · logits; a pair that the score within excludes adds nothing, and stays excluded."""
        return _mixed(self.mix, logits, excluded(logits), -torch.inf)


@dataclass(frozen=True, eq=False)
class MixedWeights(Normalizer):
    """Another normalizer whose weights are mixed over the last batch axis.

    Args:
        normalizer: the normalizer within.
        mix: W `(heads, heads)`: from the second axis to the first.
    """

    normalizer: Normalizer
    mix: Any = array_field("heads", "other_heads", default=None)
    online = False
    sums_to_one = False

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        """Fact: as the normalizer within."""
        return self.normalizer.stochastic

    def weights(self, logits: Array, tile: Tile | None = None) -> Array:
        """W · weights; a key that is excluded for a head has weight 0 there."""
        return _mixed(self.mix, self.normalizer.weights(logits, tile), excluded(logits), 0.0)


def _mixed(mix: Any, x: Any, out: Any, otherwise: float) -> Any:
    clean = torch.where(out, torch.zeros_like(x), x)
    mixed = torch.einsum("hg,...gqk->...hqk", mix, clean)
    return torch.where(out, torch.full_like(mixed, otherwise), mixed)
