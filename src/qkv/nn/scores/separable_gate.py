"""Separable gate with its parameters.

logit(q, k) = σ(<w_q, q> + b_q) · σ(<w_k, k> + b_k) · <q, k>
"""

from __future__ import annotations

from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import LearnedScore
from qkv.nn.scores.gated import opening

__all__ = ["SeparableGate"]


class SeparableGate(LearnedScore):
    """`scores.SeparableGate` with a learned gate on each side.

    Start: w at 0 and b such that both gates together are 1/√width: the score starts as `ScaledDot`.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.

    Example:
        >>> x, y = torch.randn(3, 4), torch.randn(5, 4)
        >>> torch.allclose(SeparableGate(4)()(x, y), scores.ScaledDot()(x, y), atol=1e-6)
        True
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.query_weight = self.parameter(self.query_width)
        self.key_weight = self.parameter(self.key_width)
        self.query_bias = self.parameter()
        self.key_bias = self.parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        torch.nn.init.zeros_(self.query_weight)
        torch.nn.init.zeros_(self.key_weight)
        for bias in (self.query_bias, self.key_bias):
            torch.nn.init.constant_(bias, opening(self.query_width**-0.25))

    def forward(self) -> scores.Score:
        """The score."""
        return scores.SeparableGate(self.query_weight, self.key_weight, self.query_bias, self.key_bias)
