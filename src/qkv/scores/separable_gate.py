"""Separable gate: the inner product of query and key, times a sigmoid gate of each of them.

    logit(q, k) = σ(<w_q, q> + b_q) · σ(<w_k, k> + b_k) · <q, k>

Unlike `Gated`, this score is an inner product of gated vectors, so fused kernels and vector indices support it.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import sigmoid
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import InnerProductScore
from qkv.scores.forms import Form, GatedSides
from qkv.scores.gated import GateWeights, gate_logits

__all__ = ["SeparableGate"]


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
        """An inner product of gated queries and keys."""
        return GatedSides((self.query_weight, self.key_weight, self.query_bias, self.key_bias))

    def lift_description(self) -> str:
        """Return a description of the gates that `lift` applies, for the printed plan."""
        return "query and key multiplied by their gates"

    def lift(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]:
        """Return queries and keys, each vector multiplied by its sigmoid gate."""
        return _gated(query, self.query_weight, self.query_bias), _gated(key, self.key_weight, self.key_bias)


def _gated(
    x: Num[Array, "*#batch n width"], weight: Num[Array, "*#batch width"], bias: Num[Array, "*#batch"] | float
) -> Num[Array, "*#batch n width"]:
    return x * sigmoid(gate_logits(x, weight)[..., None] + expand_to_pairs(bias))
