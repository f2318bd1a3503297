"""The normalizer `Sigmoid`, in which the weight of a key depends only on the logit of this key.

    w_j = σ(l_j + b)

Source: Ramapuram et al. (2024), Theory, analysis and best practices for sigmoid self-attention,
https://arxiv.org/abs/2409.04431. The authors recommend b = −log(number of keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import is_array, sigmoid, where
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.normalizers.base import Summary, excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Sigmoid"]


@dataclass(frozen=True, eq=False)
class Sigmoid(LinearNormalizer):
    """Normalizer that computes the sigmoid of each logit plus a bias; the weights need not sum to 1.

    Args:
        bias: b, a number or one number per batch element.

    Example:
        >>> import numpy as np
        >>> Sigmoid().weights(np.array([[0.0, 100.0, -np.inf]]))
        array([[0.5, 1. , 0. ]])
    """

    bias: Array | float = array_field(default=0.0)
    divides = False
    sums_to_one = False
    is_sigmoid: ClassVar[bool] = True

    def prepare(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return logits + expand_to_pairs(self.bias) if is_array(self.bias) or self.bias else logits

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        out = excluded(logits)
        return where(out, 0.0, sigmoid(where(out, 0.0, logits)))

    def logit_gradient(
        self,
        logits: Float[Array, "*batch q k"],
        weights: Float[Array, "*batch q k"],
        weight_gradient: Float[Array, "*batch q k"],
        row_dot: Float[Array, "*batch q 1"],
        summary: Summary,
        tile: Tile,
    ) -> Float[Array, "*batch q k"]:
        return weights * (1 - weights) * weight_gradient
