"""Position biases: scores that add a function of the positions of query and key to another score.

    ALiBi                 logit = score(q_i, k_j) − slope · |i − j|
    RelativePosition      logit = score(q_i, k_j) + table[bucket(j − i)]
    QuadraticPosition     logit = score(q_i, k_j) − c · (i − j)²

In T5's buckets each small distance has its own bucket; larger distances share buckets whose size grows logarithmically.
Under softmax the quadratic bias is a Gaussian window around the query's position, with standard deviation 1 / √(2c).

Sources: Press, Smith, Lewis (2022), Train short, test long, https://arxiv.org/abs/2108.12409, which combines ALiBi with
a causal mask; Raffel et al. (2020), Exploring the limits of transfer learning (T5), section 2.1,
https://arxiv.org/abs/1910.10683, for relative positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from qkv.core.arrays import cast, gather, namespace
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Int, KeyArray, LiftedArrays, Num, QueryArray
from qkv.scores.base import Score
from qkv.scores.forms import LIFT_RANGES, LiftKind, concat_features
from qkv.scores.wrapper import PointwiseScore

__all__ = ["ALiBi", "QuadraticPosition", "RelativePosition"]


@dataclass(frozen=True, eq=False)
class ALiBi(PointwiseScore):
    """Score that subtracts slope · |i − j| from an inner score, for a query at position i and a key at position j.

    Args:
        score: the inner score.
        slope: penalty per unit of distance, a number or one number per batch element (heads are a batch axis).

    Raises:
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant
        >>> ALiBi(Constant(), slope=0.5)(np.ones((2, 1)), np.ones((2, 1)))
        array([[ 0. , -0.5],
               [-0.5,  0. ]])
    """

    score: Score
    slope: Array | float = array_field(default=1.0)
    uses_positions: ClassVar[bool] = True

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch q k"]:
        """Return −slope · |i − j| for each pair of a query at position i and a key at position j of a tile."""
        slope, xp = expand_to_pairs(self.slope), namespace(reference)
        # Integer distances: slope · i − slope · j would cancel at long range.
        return tile.map_relative_positions(reference, lambda d: -slope * cast(xp.abs(d), reference.dtype))


@dataclass(frozen=True, eq=False)
class RelativePosition(PointwiseScore):
    """Score that adds a learned bias for the bucket of the relative position j − i to an inner score.

    Args:
        score: the inner score.
        table: bias of each bucket, `(buckets,)`, or `(*batch, buckets)` for one table per head, with all batch axes of
            the call: `(1, heads, buckets)` for queries `(batch, heads, q, width)`.
        bidirectional: if True, half of the buckets are for keys after the query; if False, all keys after the query
            are in bucket 0.
        max_distance: distance from which on all pairs share the last bucket.

    Raises:
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant
        >>> RelativePosition(Constant(), np.arange(8.0))(np.ones((3, 1)), np.ones((3, 1)))
        array([[0., 5., 6.],
               [1., 0., 5.],
               [2., 1., 0.]])
    """

    score: Score
    table: Array = array_field("buckets")
    bidirectional: bool = True
    max_distance: int = 128
    uses_positions: ClassVar[bool] = True

    def validate(self) -> None:
        require_number("RelativePosition", "max_distance", self.max_distance, lambda d: d > 1, "larger than 1")

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch q k"]:
        """Return the bias table[bucket(j − i)] for each pair of a query at position i and a key at position j."""
        buckets = (self.table.shape[-1], self.bidirectional, self.max_distance)
        return tile.map_relative_positions(reference, lambda d: gather(self.table, bucket(d, *buckets)))


def bucket(relative: Int[Array, "*axes"], buckets: int, bidirectional: bool, max_distance: int) -> Int[Array, "*axes"]:
    """Return the bucket of each relative position j − i, numbered from 0 to buckets − 1 as in T5."""
    xp = namespace(relative)
    first = xp.zeros_like(relative)
    if bidirectional:
        buckets //= 2
        first = xp.where(relative > 0, first + buckets, first)
        distance = xp.abs(relative)
    else:
        distance = xp.maximum(-relative, xp.zeros_like(relative))
    exact = max(1, buckets // 2)
    ratio = cast(xp.maximum(distance, xp.ones_like(distance)), xp.float32) / exact
    far = exact + cast(
        xp.log(ratio) / math.log(max(max_distance, exact + 1) / exact) * (buckets - exact), distance.dtype
    )
    far = xp.minimum(far, xp.zeros_like(far) + (buckets - 1))
    return first + xp.where(distance < exact, distance, far)


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

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return the vectors of the inner score's `lift` and two more columns, with inner product 2c·i·j − c·j²."""
        left, right = self.score.lift(query, key, tile)
        i = _center_positions(tile.query_positions(left), tile, left)
        j = _center_positions(tile.key_positions(right), tile, right)[:, None]
        c = expand_to_pairs(self.coefficient)
        one = namespace(left).ones_like(i)
        return concat_features(left, 2 * c * i, one), concat_features(right, j, -c * j * j)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return self.score.lifted_width(query_width, key_width) + 2

    def lift_description(self) -> str:
        return self._lift_description_with("two additional columns for 2c·i·j and −c·j²")

    def query_term(self, query: QueryArray, tile: Tile) -> Num[Array, "*#batch q"] | None:
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
