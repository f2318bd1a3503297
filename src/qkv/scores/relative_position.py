"""Relative position bias: a learned bias for each bucket of relative positions, added to another score.

    logit = score(q_i, k_j) + table[bucket(j − i)]

Each small distance has its own bucket; larger distances share buckets whose size grows logarithmically.
Source: Raffel et al. (2020), Exploring the limits of transfer learning (T5), section 2.1,
https://arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, gather, namespace
from qkv.core.parts import array_field, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Int, Num
from qkv.scores.base import Score
from qkv.scores.wrapper import PointwiseScore

__all__ = ["RelativePosition", "bucket"]


@dataclass(frozen=True, eq=False)
class RelativePosition(PointwiseScore):
    """Score that adds a learned bias for the bucket of the relative position j − i to an inner score.

    Args:
        score: the inner score.
        table: bias of each bucket, `(buckets,)`, or `(*batch, buckets)` for one table per head.
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
        """Check that `max_distance` is larger than 1."""
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
