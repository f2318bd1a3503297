"""Projected: learned maps bring query and key to one width before another score compares them.

logit(q, k) = score(W_Q q, W_K k)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["Projected"]


class Projected(WrapperScore):
    """`scores.Projected` with learned maps, for sides of different widths.

    Start: uniform as Glorot and Bengio (2010), https://proceedings.mlr.press/v9/glorot10a.html, have it.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`.
        hidden: the width that both are brought to; the narrower one where None.
        score: compares what the maps give; made for that width.

    Example:
        >>> score = Projected(4, 6, hidden=3)()
        >>> score(torch.randn(2, 4), torch.randn(5, 6)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        hidden: int | None = None,
        score: ScoreLike = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        width = query_width if key_width is None else key_width
        hidden = min(query_width, width) if hidden is None else hidden
        super().__init__(hidden, hidden, score=score, heads=heads, device=device, dtype=dtype)
        self.query_width, self.key_width, self.hidden = query_width, width, hidden
        self.query_weight = self.parameter(hidden, query_width)
        self.key_weight = self.parameter(hidden, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        for weight in (self.query_weight, self.key_weight):
            bound = math.sqrt(6 / (weight.shape[-1] + self.hidden))
            torch.nn.init.uniform_(weight, -bound, bound)

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Projected(self.within(), self.query_weight, self.key_weight)
