"""Sigmoid: each key is judged by itself.

    w_j = σ(l_j + b)

Source: Ramapuram et al. (2024), Theory, analysis and best practices for sigmoid self-attention,
https://arxiv.org/abs/2409.04431; they recommend b = −log of the number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array, is_array, namespace, sigmoid
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Sigmoid"]


@dataclass(frozen=True, eq=False)
class Sigmoid(LinearNormalizer):
    """Weights between 0 and 1 that need not add up to anything: the answer lies in the cone of the values.

    Args:
        bias: b, a number, or one per batch element.

    Example:
        >>> import numpy as np
        >>> Sigmoid().weights(np.array([[0.0, 100.0, -np.inf]]))
        array([[0.5, 1. , 0. ]])
    """

    bias: Array | float = array_field(default=0.0)
    divides = False
    sums_to_one = False

    def prepare(self, logits: Array) -> Array:
        """logits + b"""
        return logits + expand_to_pairs(self.bias) if is_array(self.bias) or self.bias else logits

    def mass(self, logits: Array) -> Array:
        """σ(l), 0 at −inf."""
        xp = namespace(logits)
        out = excluded(logits)
        return xp.where(out, xp.zeros_like(logits), sigmoid(xp.where(out, xp.zeros_like(logits), logits)))

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """w (1 − w) dw"""
        return weights * (1 - weights) * weight_gradient
