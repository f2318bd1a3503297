"""Additive score: a neural network with one hidden layer that computes a logit from a query and a key.

    logit(q, k) = vᵀ tanh(W₁ q + W₂ k + b)

Source: Bahdanau, Cho, Bengio (2015), Neural machine translation by jointly learning to align and translate,
appendix A.1.2, https://arxiv.org/abs/1409.0473.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import is_ndarray, namespace
from qkv.core.batch import with_equal_batch
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, KeyArray, Num, QueryArray
from qkv.errors import ShapeError
from qkv.scores.base import GeneralScore
from qkv.scores.forms import Form, SavedArrays, Tanh
from qkv.scores.projected import linear_map

__all__ = ["Additive"]

_SAVED = SavedArrays(logits=2.0)


@dataclass(frozen=True, eq=False)
class Additive(GeneralScore):
    """Score vᵀ tanh(W₁ q + W₂ k + b), for queries q and keys k that may differ in width.

    Args:
        query_weight: W₁ `(hidden, query_width)`, the layout of `torch.nn.Linear.weight`; None: no projection.
        key_weight: W₂ `(hidden, key_width)`, or None for keys that are projected once for many calls.
        bias: b `(hidden,)`, or None for 0.
        vector: v `(hidden,)`.

    Shapes:
        query `(*batch, q, query_width)`, key `(*batch, k, key_width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the shapes of the weights do not match query and key, or each other.

    Example:
        >>> import numpy as np
        >>> one = np.ones((1, 1))
        >>> Additive(one, one, None, np.ones(1))(np.array([[0.5]]), np.array([[-0.5], [100.0]]))
        array([[0., 1.]])
    """

    query_weight: Array | None = array_field("hidden", "query_width", default=None)
    key_weight: Array | None = array_field("hidden", "key_width", default=None)
    bias: Array | None = array_field("hidden", default=None)
    vector: Array = array_field("hidden", default=None)

    @property
    def form(self) -> Form:  # type: ignore[override]
        return Tanh(self.vector, (self.query_weight, self.key_weight, self.bias), saved=_SAVED)

    def check_widths(self, query_width: int, key_width: int) -> None:
        if self.vector is None:
            raise ShapeError(
                "vector of Additive must be an array of shape (hidden,), got None. "
                "Pass the vector that multiplies the hidden units."
            )
        hidden = {} if self.bias is None else {"bias": self.bias.shape[-1]}
        for side, weight, width in (("query", self.query_weight, query_width), ("key", self.key_weight, key_width)):
            if weight is not None and weight.shape[-1] != width:
                raise ShapeError(
                    f"{side} of width {width} must match {side}_weight of Additive, got a weight for width "
                    f"{weight.shape[-1]}. Give {side}_weight of shape (hidden, {width})."
                )
            hidden |= {side: width} if weight is None else {f"{side}_weight": weight.shape[-2]}
        hidden["vector"] = self.vector.shape[-1]
        if len(set(hidden.values())) > 1:
            counts = ", ".join(f"{count} in {name}" for name, count in hidden.items())
            raise ShapeError(
                f"all weights of Additive must have the same number of hidden units, got {counts}. "
                "Weights have shape (hidden, width), and bias has shape (hidden,)."
            )

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        return int(self.vector.shape[-1])

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return 13 operations per hidden unit: an addition, a tanh counted as 10, a product and an addition."""
        return 13 * int(self.vector.shape[-1])

    def compare(self, query: QueryArray, key: KeyArray) -> Num[Array, "*#batch q k"]:
        """Return the logits vᵀ tanh(W₁ q + W₂ k + b) of all pairs of a query q and a key k."""
        return self.projected_logits(*self.project(query, key))

    def project(
        self, query: QueryArray, key: KeyArray, tile: Tile | None = None
    ) -> tuple[Num[Array, "*#batch q hidden"], Num[Array, "*#batch k hidden"]]:
        """Return the projected queries W₁ q + b and the projected keys W₂ k."""
        left = linear_map(query, self.query_weight)
        return (left if self.bias is None else left + self.bias[..., None, :]), linear_map(key, self.key_weight)

    def projected_logits(
        self, left: Num[Array, "*#batch q hidden"], right: Num[Array, "*#batch k hidden"], tile: Tile | None = None
    ) -> Num[Array, "*#batch q k"]:
        """Return the logits vᵀ tanh(left_i + right_j) of all pairs of a projected query and a projected key."""
        xp = namespace(left)
        left, right = with_equal_batch(left, right)
        both = left[..., :, None, :] + right[..., None, :, :]
        hidden = np.tanh(both, out=both) if is_ndarray(both) and both.dtype.kind == "f" else xp.tanh(both)
        return xp.matmul(hidden, self.vector[..., None, :, None])[..., 0]
