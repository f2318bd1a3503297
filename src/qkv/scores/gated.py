"""Gated score: the inner product times a sigmoid gate of query and key.

    logit(q, k) = σ(W_g [q; k] + b) · <q, k>          W_g [q; k] = <w_q, q> + <w_k, k>

Source: Dhingra et al. (2017), Gated-attention readers for text comprehension,
https://arxiv.org/abs/1606.01549, for gates on attention; here the gate is one number per pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace, sigmoid
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.errors import ShapeError
from qkv.scores.base import GeneralScore, Score, check_same_width, concat_features, product_bound

__all__ = ["GateWeights", "Gated", "gate_logits"]


class GateWeights(Score):
    """Base class of scores with a gate that is a linear function of each side."""

    query_weight: Array
    key_weight: Array

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Raise a `ShapeError` if the widths differ or a gate is for another width."""
        check_same_width(self, query_width, key_width)
        for weight in (self.query_weight, self.key_weight):
            if weight.shape[-1] != query_width:
                raise ShapeError(
                    f"query and key have width {query_width}; this {type(self).__name__} has a gate for width "
                    f"{weight.shape[-1]}. Give gate weights of shape ({query_width},)."
                )


@dataclass(frozen=True, eq=False)
class Gated(GateWeights, GeneralScore):
    """Inner product times a sigmoid of both sides.

    Args:
        query_weight: the part w_q of W_g for the query, `(width,)`.
        key_weight: the part w_k of W_g for the key, `(width,)`.
        bias: b, a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths differ, or the gate is for another width.

    Example:
        >>> import numpy as np
        >>> Gated(np.zeros(2), np.zeros(2))(np.array([[2.0, 0.0]]), np.array([[3.0, 1.0]]))
        array([[3.]])
    """

    query_weight: Array = array_field("width")
    key_weight: Array = array_field("width")
    bias: Array | float = array_field(default=0.0)
    gated_product = True

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return 2: the gate and the product."""
        return 2

    def compare(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
    ) -> Num[Array, "*#batch q k"]:
        """Return σ(<w_q, q> + <w_k, k> + b) <q, k>."""
        return self.projected_logits(*self.project(query, key))

    def project(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile | None = None
    ) -> tuple[Num[Array, "*#batch q columns"], Num[Array, "*#batch k columns"]]:
        """Return query and key, each with its part of the gate's logit as one more column."""
        gate = gate_logits(query, self.query_weight)[..., None] + expand_to_pairs(self.bias)
        return concat_features(query, gate), concat_features(key, gate_logits(key, self.key_weight)[..., None])

    def projected_logits(
        self, left: Num[Array, "*#batch q columns"], right: Num[Array, "*#batch k columns"], tile: Tile | None = None
    ) -> Num[Array, "*#batch q k"]:
        """Return σ(sum of the last columns) times the inner product of the others."""
        xp = namespace(left)
        gate = left[..., :, -1:] + xp.matrix_transpose(right[..., :, -1:])
        return sigmoid(gate) * xp.matmul(left[..., :-1], xp.matrix_transpose(right[..., :-1]))

    def bound(self, left: Num[Array, "*#batch q columns"], right: Num[Array, "*#batch k columns"]) -> Num[Array, ""]:
        """Return the bound of the inner product, because the gate is at most 1."""
        return product_bound(left[..., :-1], right[..., :-1])


def gate_logits(x: Num[Array, "*#batch n width"], weight: Num[Array, "*#batch width"]) -> Num[Array, "*#batch n"]:
    """Return <weight, x> for each row of x."""
    return namespace(x).matmul(x, weight[..., :, None])[..., 0]
