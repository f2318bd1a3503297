"""Gated score: a gate that sees query and key decides how much of their inner product counts.

    logit(q, k) = σ(W_g [q; k] + b) · <q, k>          W_g [q; k] = <w_q, q> + <w_k, k>

Source: Dhingra et al. (2017), Gated-attention readers for text comprehension,
https://arxiv.org/abs/1606.01549, for gates on attention; here the gate is a scalar per pair.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, namespace, sigmoid
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.errors import ShapeError
from qkv.scores.base import GeneralScore, Score, check_same_width, concat_features, product_bound

__all__ = ["Gated"]


@dataclass(frozen=True, eq=False)
class Gated(GeneralScore):
    """Inner product times a sigmoid of both sides.

    Args:
        query_weight: the query part of W_g, `(width,)`.
        key_weight: the key part of W_g, `(width,)`.
        bias: b, a number.

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

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Equal widths, and the gate fits them."""
        check_same_width(self, query_width, key_width)
        check_gate(self, (self.query_weight, self.key_weight), query_width)

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: the gate and the product."""
        return 2

    def compare(self, query: Array, key: Array) -> Array:
        """σ(<w_q, q> + <w_k, k> + b) <q, k>"""
        return self._meet(*self._gates(query, key))

    def project(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Query and key, each with its part of the gate as one more column."""
        return self._gates(query, key)

    def projected_logits(self, left: Array, right: Array, tile: Tile) -> Array:
        """σ(last columns, added) <the others>"""
        return self._meet(left, right)

    def bound(self, left: Array, right: Array) -> Array:
        """The longest query times the longest key: the gate is at most 1."""
        return product_bound(left[..., :-1], right[..., :-1])

    def _gates(self, query: Array, key: Array) -> tuple[Array, Array]:
        gate = project(query, self.query_weight)[..., None] + expand_to_pairs(self.bias)
        return concat_features([query, gate]), concat_features([key, project(key, self.key_weight)[..., None]])

    def _meet(self, left: Array, right: Array) -> Array:
        xp = namespace(left)
        gate = left[..., :, -1:] + xp.matrix_transpose(right[..., :, -1:])
        return sigmoid(gate) * xp.matmul(left[..., :-1], xp.matrix_transpose(right[..., :-1]))


def project(x: Array, weight: Array) -> Array:
    """<weight, x> for rows `(*batch, length, width)` and a weight `(width,)` or `(*batch, width)`."""
    return namespace(x).matmul(x, weight[..., :, None])[..., 0]


def check_gate(score: Score, weights: tuple[Array, ...], width: int) -> None:
    """Raise a `ShapeError` where a gate is not for this width."""
    for weight in weights:
        if weight.shape[-1] != width:
            raise ShapeError(
                f"query and key have width {width}; this {type(score).__name__} has a gate for width "
                f"{weight.shape[-1]}. Give gate weights of shape ({width},)."
            )
