"""Quadratic position bias: a penalty quadratic in the distance of positions, subtracted from another score.

    logit = score(q_i, k_j) − c · (i − j)²

Under softmax this is a Gaussian window around the query's position, with standard deviation 1 / √(2c).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from qkv.core.arrays import cast, namespace
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Int, Num
from qkv.scores.base import Score
from qkv.scores.forms import LiftKind
from qkv.scores.lifted_vectors import LIFT_RANGES, concat_features
from qkv.scores.wrapper import PointwiseScore

__all__ = ["QuadraticPosition"]


@dataclass(frozen=True, eq=False)
class QuadraticPosition(PointwiseScore):
    """Score that subtracts c · (i − j)² from an inner score, for a query at position i and a key at position j.

    Args:
        score: the inner score.
        coefficient: c, the penalty per squared unit of distance, a number or one number per batch element.
        lifted: whether kernels for inner products may compute the penalty as one, which the planner decides.

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
    lifted: bool = True
    uses_positions: ClassVar[bool] = True

    @property
    def lift_kind(self) -> LiftKind | None:
        """The value "up_to_query_constant", because `lift` omits −c·i², or None if `offset` is used instead.

        That is if the inner score has no lift, and for an array of coefficients, whose elements are unknown.
        """
        numeric = self.lifted and isinstance(self.coefficient, (int, float))
        return "up_to_query_constant" if numeric and self.score.form.lift else None

    def simplify(self, q: int, k: int) -> Score:
        """Return this score without its lift if 2c·i·j − c·j² − c·i² would lose digits for positions up to `k`."""
        if self.lift_kind is None or abs(float(self.coefficient)) * (k / 2) ** 2 <= LIFT_RANGES["float32"][0]:
            return self
        return replace(self, lifted=False)

    def lift(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]:
        """Return the vectors of the inner score's `lift` and two more columns, with inner product 2c·i·j − c·j²."""
        left, right = self.score.lift(query, key, tile)
        i = _center_positions(tile.query_positions(left), tile, left)
        j = _center_positions(tile.key_positions(right), tile, right)[:, None]
        c = expand_to_pairs(self.coefficient)
        one = namespace(left).ones_like(i)
        return concat_features(left, 2 * c * i, one), concat_features(right, j, -c * j * j)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Return the lifted width of the inner score plus 2, for the additional columns of `lift`."""
        return self.score.lifted_width(query_width, key_width) + 2

    def lift_description(self) -> str:
        """Return the inner score's description of its lift, extended by the two additional columns."""
        return self._lift_description_with("two additional columns for 2c·i·j and −c·j²")

    def query_term(self, query: Num[Array, "*#batch q query_width"], tile: Tile) -> Num[Array, "*#batch q"] | None:
        """Return −c·i², with query position i relative to the middle key, plus the inner score's `query_term`."""
        i = _center_positions(tile.query_positions(query), tile, query)
        term = (-expand_to_pairs(self.coefficient) * i * i)[..., 0]
        inner = self.score.query_term(query, tile)
        return term if inner is None else term + inner

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch q k"]:
        """Return −c · (i − j)² for each pair of a query at position i and a key at position j of a tile."""
        coefficient = expand_to_pairs(self.coefficient)

        def penalty(distance: Array) -> Array:
            distance = cast(distance, reference.dtype)
            return -coefficient * distance * distance

        return tile.map_relative_positions(reference, penalty)


def _center_positions(positions: Int[Array, "*shape"], tile: Tile, reference: Array) -> Num[Array, "*shape"]:
    # Relative to the middle key, because squares of large positions lose digits.
    return cast(positions - tile.k_total // 2, reference.dtype)
