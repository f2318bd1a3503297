"""Choice of the function that computes the logits of a call for all pairs."""

from __future__ import annotations

from qkv.core.arrays import is_array
from qkv.core.equation import TorchCall
from qkv.kernels.batched.gated_logits import GatedProducts, PairGates, SeparateGates
from qkv.kernels.batched.mapped_products import MappedProducts
from qkv.kernels.batched.pair_logits import GivenLogits, PairLogits, Products
from qkv.kernels.batched.vector_logits import Distances, SquaredDistances, TanhSums, UnitProducts

__all__ = ["pair_logits_of"]


def pair_logits_of(call: TorchCall, normalizer_scale: float) -> PairLogits:
    """Return the function that computes the logits of a call, multiplied by `normalizer_scale`."""
    score, scale = call.score, normalizer_scale
    if score.tanh_vector is not None and score.tanh_vector.shape[-1]:
        return TanhSums(scale, mapped=score.linear_maps is not None)
    # Broadcast batch axes are copied, so that the work on queries and keys would be repeated.
    if all(x.shape[:-2] == call.batch for x in (call.query, call.key, call.value)):
        if score.distance_slope is not None:
            return Distances(scale, score.distance_slope)
        if score.unit_temperature is not None:
            return UnitProducts(scale, None if is_array(score.unit_temperature) else float(score.unit_temperature))
        if score.gates is not None:
            first, second = (None if is_array(b) else float(b) for b in score.gates[2:])
            return (PairGates if score.gated_product else SeparateGates)(scale, (first, second))
        if score.product_maps is not None:
            return MappedProducts(scale, score.product_maps[2])
        if not score.arrays() and score.distance_factor is not None:
            return SquaredDistances(scale, score.distance_factor, call.normalizer.shift_invariant)
    if score.gated_product:
        return GatedProducts(scale)
    cap, offset = None, False
    if score.tanh_cap is not None and not score.is_inner_product:
        assert score.inner is not None
        score, cap = score.inner, score.tanh_cap
    while score.adds_offset and not score.is_inner_product:
        assert score.inner is not None
        score, offset = score.inner, True
    if not score.is_inner_product or (cap is not None and offset):  # −inf in an offset excludes a pair
        return GivenLogits(scale)
    # The projections of a scaled dot product are the queries and keys themselves.
    factor = score.scaled_lift(call.query, call.key, call.tile)[2] if score.is_scaled_dot else 1.0
    return Products(scale, factor, cap, not score.is_scaled_dot, offset)
