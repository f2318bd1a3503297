"""Biased: another score plus learned numbers for pairs, or for keys.

logit = score(q_i, k_j) + B_ij          or          + b_j
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["Biased"]


class Biased(WrapperScore):
    """`scores.Biased` with a learned bias for sequences of one length.

    Start: normal with standard deviation 0.02, cut at twice that, as position biases in the code of Liu
    et al. (2021), Swin transformer, https://arxiv.org/abs/2103.14030.

    Args:
        query_width, key_width, score, heads, device, dtype: as in `WrapperScore`.
        k: how many keys there are.
        q: how many queries; None: one number per key, the same for all queries.

    Example:
        >>> Biased(4, k=3)().per_key.shape, Biased(4, k=3, q=2, heads=8)().bias.shape
        (torch.Size([3]), torch.Size([8, 2, 3]))
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        k: int,
        q: int | None = None,
        score: ScoreLike = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, score=score, heads=heads, device=device, dtype=dtype)
        self.bias = self.parameter(k) if q is None else self.parameter(q, k)
        self.per_key = q is None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        torch.nn.init.trunc_normal_(self.bias, std=0.02, a=-0.04, b=0.04)

    def forward(self) -> scores.Score:
        """The score."""
        if self.per_key:
            return scores.Biased(self.within(), per_key=self.bias)
        return scores.Biased(self.within(), self.bias)
