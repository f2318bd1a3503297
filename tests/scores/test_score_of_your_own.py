"""What a user writes to add a score: one dataclass, and the contract holds it to everything."""

import math
from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.scores import InnerProductScore
from qkv.testing import ScoreContract


@dataclass(frozen=True, eq=False)
class WeightedDot(InnerProductScore):
    """Inner product with a learned weight for each unit of width."""

    weight: Array = array_field("width")

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        return query * self.weight[..., None, :], key


class TestWeightedDot(ScoreContract):
    part = WeightedDot

    def make(self, draw):
        return WeightedDot(draw(3))

    def formula(self, score, q, k, at):
        return math.fsum(w * a * b for w, a, b in zip(score.weight, q, k, strict=True))
