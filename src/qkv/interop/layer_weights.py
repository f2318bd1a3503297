"""The attention weights of one call of a layer of a Keras or Flax model."""

from __future__ import annotations

from typing import Literal, NamedTuple

from qkv.core.typing import Array, Float


class LayerWeights(NamedTuple):
    """The attention weights of one call of a layer.

    Attributes:
        name: name of the layer, or its path in the model.
        kind: `"self"` if query and key come from the same array, otherwise `"cross"`.
        weights: `(batch, heads, q, k)`.
    """

    name: str
    kind: Literal["self", "cross"]
    weights: Float[Array, "batch heads q k"]
