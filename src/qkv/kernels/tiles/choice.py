"""Which way the logits of a tile are computed, by the facts of the score."""

from __future__ import annotations

from qkv.core.arrays import is_array
from qkv.core.equation import Ready
from qkv.kernels.tiles.gates import GatedProduct
from qkv.kernels.tiles.pairs import Bent, Pairs, Product, Shifted, Traced
from qkv.kernels.tiles.routes import Routes
from qkv.kernels.tiles.sums import UnitSum
from qkv.scores.base import PointwiseScore

__all__ = ["pairs_of"]


def pairs_of(ready: Ready, factor: float, routes: Routes) -> Pairs:
    """The way for this call; logits are multiplied by `factor`."""
    score = ready.score
    if not ready.sided or ready.query.dtype != ready.value.dtype:
        return Traced(ready, factor, routes)
    if score.is_product:
        return Product(ready, factor, routes)
    if score.unit == "gate":
        return GatedProduct(ready, factor, routes)
    if score.unit == "tanh" and not ready.place.batch:
        return UnitSum(ready, factor, routes)
    if isinstance(score, PointwiseScore):
        if score.adds:
            return Shifted(ready, factor, routes, pairs_of)
        if score.bend == "tanh" and score.score.is_product and not is_array(score.cap):
            return Bent(ready, factor, routes)
    return Traced(ready, factor, routes)
