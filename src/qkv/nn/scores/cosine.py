"""Cosine with a learned temperature.

logit(q, k) = <q, k> / (‖q‖ ‖k‖ T)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import LearnedScore

__all__ = ["Cosine"]


class Cosine(LearnedScore):
    """`scores.Cosine` with a learned temperature, kept positive as its logarithm.

    Start: T = 1/√width, the standard deviation of the cosine of random vectors, so that logits start with
    variance 1. Liu et al. (2022), Swin transformer V2, https://arxiv.org/abs/2111.09883, section 3.2, learn T
    likewise, for each head.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.
        temperature: to start from; None: as above.

    Example:
        >>> Cosine(16)().temperature.item()
        0.25
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        temperature: float | None = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.start = self.positive("temperature", temperature, self.query_width**-0.5)
        self.log_temperature = self.parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        torch.nn.init.constant_(self.log_temperature, math.log(self.start))

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Cosine(self.log_temperature.exp())
