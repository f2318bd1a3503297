"""Gaussian kernel of the distance: near keys count, far keys fade with the square.

    logit(q, k) = −‖q − k‖² / 2h²

Softmax over it is the Nadaraya–Watson estimate with a Gaussian kernel.
Source: Nadaraya (1964), On estimating regression, https://doi.org/10.1137/1109020; Watson (1964), Smooth
regression analysis.
"""

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, namespace, stop_gradient
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.scores.base import InnerProductScore, LiftKind, concat_features

__all__ = ["Gaussian"]


@dataclass(frozen=True, eq=False)
class Gaussian(InnerProductScore):
    """Minus the squared distance over twice the squared bandwidth.

    Args:
        bandwidth: h > 0, in the unit of the keys: a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.

    Example:
        >>> import numpy as np
        >>> Gaussian(0.5)(np.array([[1.0]]), np.array([[1.0], [2.0], [0.0]]))
        array([[ 0., -2., -2.]])
    """

    bandwidth: Array | float = array_field(default=1.0)
    fact: ClassVar[LiftKind] = "up_to_query_constant"

    def validate(self) -> None:
        """h is positive."""
        require_number("Gaussian", "bandwidth", self.bandwidth, lambda h: h > 0, "a positive number")

    def centre(self, key: Array) -> Array:
        """The mean key: squared lengths of vectors far from the origin cancel badly, those near it do not."""
        xp = namespace(key)
        if key.shape[-2] == 0:
            return xp.zeros((*key.shape[:-2], 1, key.shape[-1]), dtype=key.dtype)
        return stop_gradient(xp.mean(key, axis=-2, keepdims=True))

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Fact: up to ‖q‖²/2h², which softmax does not see. One more axis carries ‖k‖²."""
        xp = namespace(query)
        query, key = self._measured(query, tile), self._measured(key, tile)
        length = -0.5 * xp.sum(key * key, axis=-1, keepdims=True)
        return concat_features([query, xp.ones_like(query[..., :1])]), concat_features([key, length])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: one more axis, of the squared length."""
        return max(query_width, key_width) + 1

    def lift_description(self) -> str:
        """Fact: in words."""
        return "mean key subtracted, one more axis for −‖k‖²/2h²"

    def query_term(self, query: Array, tile: Tile) -> Array:
        """−‖q‖² / 2h²"""
        query = self._measured(query, tile)
        return -0.5 * namespace(query).sum(query * query, axis=-1)

    def _measured(self, x: Array, tile: Tile) -> Array:
        return (x if tile.centre is None else x - tile.centre) / expand_to_pairs(self.bandwidth)
