"""Which way the logits of a tile are computed, by the facts of the score."""

from __future__ import annotations

from qkv.core.equation import BoundCall
from qkv.kernels.runtime.microbenchmarks import Routes
from qkv.kernels.tiled.logits.additive import UnitSum
from qkv.kernels.tiled.logits.base import Bent, Pairs, Product, Shifted, Traced
from qkv.kernels.tiled.logits.gated import GatedProduct

__all__ = ["pairs_of"]


def pairs_of(call: BoundCall, factor: float, routes: Routes) -> Pairs:
    """The way for this call; logits are multiplied by `factor`."""
    score = call.score
    if not call.projected or call.query.dtype != call.value.dtype:
        return Traced(call, factor, routes)
    if score.is_inner_product:
        return Product(call, factor, routes)
    if score.gated_product:
        return GatedProduct(call, factor, routes)
    if score.tanh_vector is not None and not call.tile.batch:
        return UnitSum(call, factor, routes)
    if score.inner is not None and score.adds_offset:
        return Shifted(call, factor, routes, pairs_of)
    if score.inner is not None and score.tanh_cap is not None and score.inner.is_inner_product:
        return Bent(call, factor, routes)
    return Traced(call, factor, routes)
