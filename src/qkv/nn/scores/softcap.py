"""Soft cap with a learned bound.

logit = cap · tanh(score(q, k) / cap)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["Softcap"]


class Softcap(WrapperScore):
    """`scores.Softcap` with a learned cap, kept positive as its logarithm.

    Start: 50, as Gemma Team (2024), Gemma 2, https://arxiv.org/abs/2408.00118, section 2, has it, unlearned.

    Args:
        query_width, key_width, score, heads, device, dtype: as in `WrapperScore`.
        cap: to start from.

    Example:
        >>> score = Softcap(4, cap=2.0)
        >>> bool((score()(9 * torch.ones(1, 4), 9 * torch.ones(1, 4)) <= 2).all())
        True
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        score: ScoreLike = None,
        cap: float = 50.0,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, score=score, heads=heads, device=device, dtype=dtype)
        self.start = self.positive("cap", cap, 50.0)
        self.log_cap = self.parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        torch.nn.init.constant_(self.log_cap, math.log(self.start))

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Softcap(self.within(), self.log_cap.exp())
