"""Softmax of a product, forward, of data that nobody has looked at: its sums show whether it was finite.

To look beforehand is a pass over all keys and values; few queries to many keys take hardly longer themselves.
Without a mask every query reads everything, and what is not finite shows: NaN stays NaN, an infinite value
makes the output infinite or NaN, an infinite logit makes a total infinite, 0 or NaN.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.core.arrays import requires_gradient
from qkv.core.equation import BoundCall
from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.tiled.schedule import forward
from qkv.plan.problem import Problem

__all__ = ["believed", "may_be_believed"]


def may_be_believed(call: BoundCall, problem: Problem) -> bool:
    """Whether the sums would show it."""
    normalizer = call.normalizer
    softmax = normalizer.log_sum_exp and normalizer.online and normalizer.scale is not None
    tensors = (call.query, call.key, call.value, *call.score.arrays(), *normalizer.arrays())
    return (
        softmax
        and normalizer.shift_invariant
        and call.mask is None
        and call.score.is_inner_product
        and not (problem.gradient or problem.readouts or problem.traced)
        and 0 not in (problem.axes.pairs, *call.value.shape)
        and not any(requires_gradient(x) for x in tensors)
    )


def believed(call: BoundCall, tiling: TileSizes, notes: list[str]) -> Tensor | None:
    """The output; None where something was not finite, or may not have been."""
    import torch

    known = replace(call, finite=(True, True))
    known = known.with_projections(*known.score.project(known.query, known.key, known.tile))
    said: list[str] = []
    output, _, total = forward(known, tiling, said)
    low, high = torch.aminmax(total)
    # A sum needs no array of booleans; where it overflows, the data is looked at after all.
    if not (float(low) > 0 and float(high) < torch.inf and torch.isfinite(output.sum())):
        return None
    notes += said
    return output
