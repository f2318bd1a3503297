"""Gated score with its parameters.

logit(q, k) = σ(<w_q, q> + <w_k, k> + b) · <q, k>
"""

from __future__ import annotations

import math
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import LearnedScore

__all__ = ["Gated", "opening"]


class Gated(LearnedScore):
    """`scores.Gated` with a learned gate.

    Start: w at 0 and b such that every gate is 1/√width: the score starts as `ScaledDot`.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.

    Example:
        >>> x, y = torch.randn(3, 4), torch.randn(5, 4)
        >>> torch.allclose(Gated(4)()(x, y), scores.ScaledDot()(x, y), atol=1e-6)
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
        self.bias = self.parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        torch.nn.init.zeros_(self.query_weight)
        torch.nn.init.zeros_(self.key_weight)
        torch.nn.init.constant_(self.bias, opening(self.query_width**-0.5))

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Gated(self.query_weight, self.key_weight, self.bias)


def opening(gate: float) -> float:
    """The b whose sigmoid is the gate; of a gate near 1, that of 0.9, where it can still learn."""
    gate = min(gate, 0.9)
    return math.log(gate / (1 - gate))
