"""Relative position bias with its table.

logit = score(q_i, k_j) + table[bucket(j − i)]
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["RelativePosition"]


class RelativePosition(WrapperScore):
    """`scores.RelativePosition` with a learned table of buckets, one for each head.

    Start: normal with variance 1/query_width, as T5's (Raffel et al. (2020),
    https://arxiv.org/abs/1910.10683) published code has it, of the model's width there.

    Args:
        query_width, key_width, score, heads, device, dtype: as in `WrapperScore`.
        buckets, bidirectional, max_distance: as in `scores.RelativePosition`.

    Example:
        >>> RelativePosition(4, heads=2)().table.shape
        torch.Size([2, 32])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        score: ScoreLike = None,
        buckets: int = 32,
        bidirectional: bool = True,
        max_distance: int = 128,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, score=score, heads=heads, device=device, dtype=dtype)
        self.table = self.parameter(buckets)
        self.bidirectional, self.max_distance = bidirectional, max_distance
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        torch.nn.init.normal_(self.table, std=self.query_width**-0.5)

    def forward(self) -> scores.Score:
        """The score."""
        return scores.RelativePosition(self.within(), self.table, self.bidirectional, self.max_distance)
