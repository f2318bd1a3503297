"""Additive attention with its parameters.

logit(q, k) = vᵀ tanh(W₁ q + W₂ k + b)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import LearnedScore

__all__ = ["Additive"]


class Additive(LearnedScore):
    """`scores.Additive` with learned W₁, W₂, b and v.

    W₁ and W₂ start uniform as Glorot and Bengio (2010), https://proceedings.mlr.press/v9/glorot10a.html, have
    it for tanh, b at 0, v uniform with variance 1/hidden, so that logits start with variance at most 1
    (Bahdanau et al. (2015), https://arxiv.org/abs/1409.0473, start v at 0, which leaves W₁ and W₂ without a
    gradient at first).

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`.
        hidden: units; the wider width where None.
        bias: whether there is b.

    Example:
        >>> import torch, qkv
        >>> score = Additive(4, 6, hidden=8)
        >>> qkv.attend(torch.randn(3, 4), torch.randn(5, 6), torch.randn(5, 2), score=score()).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        hidden: int | None = None,
        bias: bool = True,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.hidden = max(self.query_width, self.key_width) if hidden is None else hidden
        self.query_weight = self.parameter(self.hidden, self.query_width)
        self.key_weight = self.parameter(self.hidden, self.key_width)
        self.vector = self.parameter(self.hidden)
        if bias:
            self.bias = self.parameter(self.hidden)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        for weight in (self.query_weight, self.key_weight):
            bound = math.sqrt(6 / (weight.shape[-1] + self.hidden))
            torch.nn.init.uniform_(weight, -bound, bound)
        bound = math.sqrt(3 / self.hidden)
        torch.nn.init.uniform_(self.vector, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Additive(self.query_weight, self.key_weight, self.bias, self.vector)
