"""Cosine: the angle between query and key, whatever their lengths.

    logit(q, k) = <q, k> / (‖q‖ ‖k‖ T)

A zero vector has cosine 0 with everything.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, namespace, stop_gradient
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.scores.base import InnerProductScore

__all__ = ["Cosine", "unit"]


@dataclass(frozen=True, eq=False)
class Cosine(InnerProductScore):
    """Cosine of the angle between query and key, over a temperature.

    Args:
        temperature: T > 0, a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the temperature is not positive.

    Example:
        >>> import numpy as np
        >>> Cosine()(np.array([[3.0, 0.0]]), np.array([[9.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]))
        array([[ 1.,  0., -1.]])
    """

    temperature: Array | float = array_field(default=1.0)

    def validate(self) -> None:
        """T is positive."""
        require_number("Cosine", "temperature", self.temperature, lambda t: t > 0, "a positive number")

    def lift_description(self) -> str:
        """Fact: in words."""
        return "both sides brought to length 1"

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Fact: exact. Both sides are brought to length 1."""
        return unit(query) / expand_to_pairs(self.temperature), unit(key)


def unit(x: Array) -> Array:
    """Rows of length 1; a row of zeros stays, with gradient 0."""
    xp = namespace(x)
    largest = xp.max(xp.abs(stop_gradient(x)), axis=-1, keepdims=True) if x.shape[-1] else xp.ones_like(x[..., :1])
    # Divide by the largest entry first: squares of 1e30 or 1e-30 leave float32.
    x = x / xp.where(largest > 0, largest, xp.ones_like(largest))
    square = xp.sum(x * x, axis=-1, keepdims=True)
    # A row of zeros is divided by infinity: its gradient is too.
    none, one = square == 0, xp.ones_like(square)
    return x / xp.where(none, xp.inf * one, xp.sqrt(xp.where(none, one, square)))
