"""Bilinear score with its parameters.

logit(q, k) = qᵀ W k            or, low rank,            logit(q, k) = qᵀ U Vᵀ k
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import LearnedScore

__all__ = ["Bilinear"]


class Bilinear(LearnedScore):
    """`scores.Bilinear` with a learned W, or U and V.

    Start: normal, so wide that logits of unit-variance inputs start with variance 1, as those of `ScaledDot`
    do (Vaswani et al. (2017), https://arxiv.org/abs/1706.03762, footnote 4). This is
    Luong's general score.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`.
        rank: of U and V; None: a full W.

    Example:
        >>> Bilinear(4, 6)().weight.shape
        torch.Size([4, 6])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        rank: int | None = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.rank = rank
        self.weight = self.parameter(self.query_width, self.key_width if rank is None else rank)
        if rank is None:
            self.register_parameter("key_factor", None)
        else:
            self.key_factor = self.parameter(self.key_width, rank)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        if self.key_factor is None or self.rank is None:
            torch.nn.init.normal_(self.weight, std=(self.query_width * self.key_width) ** -0.5)
            return
        torch.nn.init.normal_(self.weight, std=self.query_width**-0.5 * self.rank**-0.25)
        torch.nn.init.normal_(self.key_factor, std=self.key_width**-0.5 * self.rank**-0.25)

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Bilinear(self.weight, self.key_factor)
