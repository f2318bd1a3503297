"""Sum of scores, some of them learned.

logit(q, k) = Σ_s score_s(q, k)
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.errors import OptionError
from qkv.nn.scores.base import LearnedScore, ScoreLike, made

__all__ = ["SumOf"]


class SumOf(LearnedScore):
    """`scores.SumOf` of scores that may be learned. Each starts as it does by itself.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`.
        score: two or more: scores, learned scores, or what makes them.

    Raises:
        OptionError: none is given.

    Example:
        >>> score = SumOf(4, score=(scores.ScaledDot, scores.Gaussian(2.0)))()
        >>> score(torch.randn(2, 4), torch.randn(5, 4)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        score: tuple[ScoreLike, ...],
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        if not isinstance(score, (tuple, list)) or not score:
            raise OptionError(f"SumOf was given {score!r}. Give a tuple of scores.")
        self.score = torch.nn.ModuleList(
            [made(one, self.query_width, self.key_width, heads, **self.made_as) for one in score]
        )

    def reset_parameters(self) -> None:
        """Each as it does."""
        for one in self.score:
            reset: Any = one
            reset.reset_parameters()

    def forward(self) -> scores.Score:
        """The score."""
        return scores.SumOf(tuple([one() for one in self.score]))
