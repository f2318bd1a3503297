"""ALiBi with a slope for each head.

logit = score(q_i, k_j) − slope · |i − j|
"""

from __future__ import annotations

import math
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import ScoreLike, WrapperScore

__all__ = ["ALiBi", "slopes"]


class ALiBi(WrapperScore):
    """`scores.ALiBi` with a slope for each head, kept positive as its logarithm.

    Start: 2^(−8/heads), 2^(−16/heads), … as Press et al. (2022), https://arxiv.org/abs/2108.12409, section 3,
    have it; they do not learn them (`learned=False`). One head, or one slope for all: 2^(−4).

    Args:
        query_width, key_width, score, heads, device, dtype: as in `WrapperScore`.
        learned: whether slopes get a gradient.

    Example:
        >>> ALiBi(4, heads=4)().slope
        tensor([0.2500, 0.0625, 0.0156, 0.0039], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        score: ScoreLike = None,
        learned: bool = True,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, score=score, heads=heads, device=device, dtype=dtype)
        self.log_slope = self.parameter(learned=learned)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        self.reset_within()
        with torch.no_grad():
            self.log_slope.copy_(torch.tensor(slopes(self.heads)).log())

    def forward(self) -> scores.Score:
        """The score."""
        return scores.ALiBi(self.within(), self.log_slope.exp())


def slopes(heads: int | None) -> Any:
    """The slopes to start from: one, or a list of one for each head."""
    if heads is None or heads == 1:
        return 2.0**-4 if heads is None else [2.0**-4]
    return [math.pow(2.0, -8.0 * (n + 1) / heads) for n in range(heads)]
