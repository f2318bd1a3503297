"""Quadratic position bias with a coefficient for each head.

logit = score(q_i, k_j) − c · (i − j)²
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.alibi import slopes
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["QuadraticPosition"]


class QuadraticPosition(WrapperScore):
    """`scores.QuadraticPosition` with a coefficient for each head, kept positive as its logarithm.

    Start: c = s²/2 with the slopes s of `ALiBi`: Gaussian windows of standard deviations 2^(8/heads),
    2^(16/heads), …

    Args:
        query_width, key_width, score, heads, device, dtype: as in `WrapperScore`.

    Example:
        >>> (QuadraticPosition(4, heads=4)().coefficient.rsqrt() / 2**0.5).round().tolist()
        [4.0, 16.0, 64.0, 256.0]
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        score: ScoreLike = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, score=score, heads=heads, device=device, dtype=dtype)
        self.log_coefficient = self.parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        with torch.no_grad():
            self.log_coefficient.copy_((torch.tensor(slopes(self.heads)) ** 2 / 2).log())

    def forward(self) -> scores.Score:
        """The score."""
        return scores.QuadraticPosition(self.within(), self.log_coefficient.exp())
