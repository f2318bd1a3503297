"""Gated scores: the inner product of query and key, times a sigmoid gate of the pair or a gate of each of them.

    Gated             logit(q, k) = σ(W_g [q; k] + b) · <q, k>          W_g [q; k] = <w_q, q> + <w_k, k>
    SeparableGate     logit(q, k) = σ(<w_q, q> + b_q) · σ(<w_k, k> + b_k) · <q, k>

`SeparableGate` is an inner product of gated vectors, so fused kernels and vector indices support it.

Source: Dhingra et al. (2017), Gated-attention readers for text comprehension,
https://arxiv.org/abs/1606.01549, for gates on attention. In this module the gate is a scalar for each pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import library, namespace, sigmoid
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, KeyArray, LiftedArrays, Num, QueryArray
from qkv.errors import ShapeError
from qkv.scores import forms
from qkv.scores.base import GeneralScore, InnerProductScore, Score, check_same_width
from qkv.scores.forms import Form, GatedSides, concat_features

__all__ = ["Gated", "SeparableGate"]


_SAVED = forms.SavedArrays(logits=2.0, copies=2.0, sides=(1.0, 1.0))


class GateWeights(Score):
    """Base class of scores with sigmoid gates, which checks the widths of the gates' weight vectors."""

    query_weight: Array
    key_weight: Array

    def check_widths(self, query_width: int, key_width: int) -> None:
        check_same_width(self, query_width, key_width)
        for weight in (self.query_weight, self.key_weight):
            if weight.shape[-1] != query_width:
                raise ShapeError(
                    f"query_weight and key_weight of {type(self).__name__} must have width {query_width}, like query "
                    f"and key, got width {weight.shape[-1]}. Give gate weights of shape ({query_width},)."
                )


@dataclass(frozen=True, eq=False)
class Gated(GateWeights, GeneralScore):
    """Inner product of query and key, times a sigmoid gate that depends on both.

    Args:
        query_weight: w_q `(width,)`, the part of W_g that multiplies the query.
        key_weight: w_k `(width,)`, the part of W_g that multiplies the key.
        bias: b, a number or one number per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query, key and gate weights differ.

    Example:
        >>> import numpy as np
        >>> Gated(np.zeros(2), np.zeros(2))(np.array([[2.0, 0.0]]), np.array([[3.0, 1.0]]))
        array([[3.]])
    """

    query_weight: Array = array_field("width")
    key_weight: Array = array_field("width")
    bias: Array | float = array_field(default=0.0)

    @property
    def form(self) -> forms.Form:  # type: ignore[override]
        return forms.Gated((self.query_weight, self.key_weight, self.bias, 0.0), saved=_SAVED)

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return 2 array elements per logit, one for the gate and one for the inner product."""
        return 2

    def compare(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
    ) -> Num[Array, "*#batch q k"]:
        """Return the logits σ(<w_q, q> + <w_k, k> + b) · <q, k> of all pairs of a query q and a key k."""
        xp, bias = namespace(query), expand_to_pairs(self.bias)
        of_query = gate_logits(query, self.query_weight)[..., :, None] + bias
        gate = sigmoid(of_query + gate_logits(key, self.key_weight)[..., None, :])
        return gate * xp.matmul(query, xp.matrix_transpose(key))

    def project(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile | None = None
    ) -> tuple[Num[Array, "*#batch q columns"], Num[Array, "*#batch k columns"]]:
        """Return queries with the additional column <w_q, q> + b, and keys with the additional column <w_k, k>."""
        gate = gate_logits(query, self.query_weight)[..., None] + expand_to_pairs(self.bias)
        return concat_features(query, gate), concat_features(key, gate_logits(key, self.key_weight)[..., None])

    def projected_logits(
        self, left: Num[Array, "*#batch q columns"], right: Num[Array, "*#batch k columns"], tile: Tile | None = None
    ) -> Num[Array, "*#batch q k"]:
        """Return σ(sum of the last columns of `left` and `right`) times the inner product of the other columns."""
        xp = namespace(left)
        gate = left[..., :, -1:] + xp.matrix_transpose(right[..., :, -1:])
        return sigmoid(gate) * xp.matmul(left[..., :-1], xp.matrix_transpose(right[..., :-1]))


def gate_logits(x: Num[Array, "*#batch n width"], weight: Num[Array, "*#batch width"]) -> Num[Array, "*#batch n"]:
    """Return the inner product of `weight` and each row of `x`, `(*batch, n)`."""
    if (
        weight.ndim == 1 and library(x) == "torch"
    ):  # PyTorch multiplies by one vector about four times as fast as by a matrix of one column
        return namespace(x).matmul(x, weight)
    return namespace(x).matmul(x, weight[..., :, None])[..., 0]


@dataclass(frozen=True, eq=False)
class SeparableGate(GateWeights, InnerProductScore):
    """Inner product of query and key, times a sigmoid gate of the query and a sigmoid gate of the key.

    Args:
        query_weight: w_q `(width,)`.
        key_weight: w_k `(width,)`.
        query_bias: b_q, a number or one number per batch element.
        key_bias: b_k, a number or one number per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query, key and gate weights differ.

    Example:
        >>> import numpy as np
        >>> SeparableGate(np.zeros(2), np.zeros(2))(np.array([[2.0, 0.0]]), np.array([[6.0, 1.0]]))
        array([[3.]])
    """

    query_weight: Array = array_field("width")
    key_weight: Array = array_field("width")
    query_bias: Array | float = array_field(default=0.0)
    key_bias: Array | float = array_field(default=0.0)

    @property
    def form(self) -> Form:  # type: ignore[override]
        return GatedSides((self.query_weight, self.key_weight, self.query_bias, self.key_bias))

    def lift_description(self) -> str:
        return "query and key multiplied by their gates"

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        return _gated(query, self.query_weight, self.query_bias), _gated(key, self.key_weight, self.key_bias)


def _gated(
    x: Num[Array, "*#batch n width"], weight: Num[Array, "*#batch width"], bias: Num[Array, "*#batch"] | float
) -> Num[Array, "*#batch n width"]:
    return x * sigmoid(gate_logits(x, weight)[..., None] + expand_to_pairs(bias))
