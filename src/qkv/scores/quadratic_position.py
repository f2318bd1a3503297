"""Quadratic position bias: another score minus a coefficient times the squared distance of positions.

    logit = score(q_i, k_j) − c · (i − j)²

Under softmax this is a Gaussian window around the query's own place, of standard deviation 1 / √(2c).
"""

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, cast, namespace
from qkv.core.parts import axes, over_pairs
from qkv.core.positions import Place
from qkv.scores.base import Lift, PointwiseScore, Score
from qkv.scores.sum_of import joined

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
    coefficient: Array | float = axes(default=1.0)
    moves: ClassVar[bool] = True

    @property
    def lift_fact(self) -> Lift | None:
        """Fact: c·i² is a term of the query; the rest is two more axes."""
        return "up_to_query_constant" if self.score.lift_fact else None

    def lift(self, query: Array, key: Array, place: Place) -> tuple[Array, Array]:
        """Two more axes: −c(i − j)² = −c·i² + 2c·i·j − c·j²."""
        left, right = self.score.lift(query, key, place)
        # From the middle of the keys: squares of large positions lose digits.
        middle = place.k_total // 2
        i = cast(place.query_positions(left) - middle, left.dtype)
        j = cast(place.key_positions(right) - middle, right.dtype)[:, None]
        c = over_pairs(self.coefficient)
        one = namespace(left).ones_like(i)
        return joined([left, 2 * c * i, one]), joined([right, j, -c * j * j])

    def point(self, logits: Array, place: Place) -> Array:
        """logit − c · (i − j)²"""
        distance = cast(place.query_positions(logits) - place.key_positions(logits), logits.dtype)
        return logits - over_pairs(self.coefficient) * distance * distance
