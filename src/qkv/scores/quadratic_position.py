"""Quadratic position bias: another score minus a coefficient times the squared distance of positions.

    logit = score(q_i, k_j) − c · (i − j)²

Under softmax this is a Gaussian window around the query's own place, of standard deviation 1 / √(2c).
"""

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, cast, namespace
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.scores.base import LiftKind, PointwiseScore, Score, concat_features

__all__ = ["QuadraticPosition"]


@dataclass(frozen=True, eq=False)
class QuadraticPosition(PointwiseScore):
    """Another score with a penalty quadratic in the distance of positions.

    Args:
        score: the score within.
        coefficient: c, per squared unit of position: a number, or one per batch element.

    Raises:
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant
        >>> QuadraticPosition(Constant(), 0.5)(np.ones((2, 1)), np.ones((2, 1)))
        array([[ 0. , -0.5],
               [-0.5,  0. ]])
    """

    score: Score
    coefficient: Array | float = array_field(default=1.0)
    uses_positions: ClassVar[bool] = True

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: c·i² is a term of the query; the rest is two more axes."""
        return "up_to_query_constant" if self.score.lift_kind else None

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Two more axes: −c(i − j)² = −c·i² + 2c·i·j − c·j²."""
        left, right = self.score.lift(query, key, tile)
        i = self._measured(tile.query_positions(left), tile, left)
        j = self._measured(tile.key_positions(right), tile, right)[:, None]
        c = expand_to_pairs(self.coefficient)
        one = namespace(left).ones_like(i)
        return concat_features([left, 2 * c * i, one]), concat_features([right, j, -c * j * j])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: two more axes, of the position."""
        return self.score.lifted_width(query_width, key_width) + 2

    def lift_description(self) -> str:
        """Fact: and two axes."""
        return ", ".join(said for said in (self.score.lift_description(), "two more axes for 2c·i·j and −c·j²") if said)

    def query_term(self, query: Array, tile: Tile) -> Array | None:
        """−c·i², and that of the score within."""
        i = self._measured(tile.query_positions(query), tile, query)
        own = (-expand_to_pairs(self.coefficient) * i * i)[..., 0]
        inner = self.score.query_term(query, tile)
        return own if inner is None else own + inner

    def _measured(self, positions: Array, tile: Tile, reference: Array) -> Array:
        # From the middle of the keys: squares of large positions lose digits.
        return cast(positions - tile.k_total // 2, reference.dtype)

    def offset(self, tile: Tile, reference: Array) -> Array:
        """−c · (i − j)²"""
        coefficient = expand_to_pairs(self.coefficient)

        def penalty(distance: Array) -> Array:
            distance = cast(distance, reference.dtype)
            return -coefficient * distance * distance

        return tile.map_relative_positions(reference, penalty)
