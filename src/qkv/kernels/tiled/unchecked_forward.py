"""Forward softmax of an inner product without a prior finiteness check; NaN and Inf are detected from the sums.

The check is a pass over all keys and values, which takes nearly as long as attending few queries to many keys. Without
a mask every query reads all of them, so every number that is not finite affects the sums: NaN stays NaN, an infinite
value makes the output infinite or NaN, an infinite logit makes a total infinite, 0 or NaN.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.core.arrays import requires_gradient
from qkv.core.equation import TorchCall
from qkv.core.typing import Tensor
from qkv.kernels.runtime.gradients import call_tensors
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.tiled.autograd import forward
from qkv.plan.problem import Problem

__all__ = ["supports_unchecked", "unchecked_forward"]


def supports_unchecked(call: TorchCall, problem: Problem) -> bool:
    """Return whether the sums of this call would show every number that is not finite."""
    normalizer = call.normalizer
    return (
        normalizer.log_sum_exp
        and normalizer.online
        and normalizer.scale is not None
        and normalizer.shift_invariant
        and call.mask is None
        and call.score.is_inner_product
        and not (problem.gradient or problem.readouts or problem.traced)
        and 0 not in (problem.axes.pairs, *call.value.shape)
        and not any(requires_gradient(x) for x in call_tensors(call))
    )


def unchecked_forward(call: TorchCall, sizes: TileSizes, notes: list[str]) -> Tensor | None:
    """Return the output; None if a number was not finite, or the sums cannot tell.

    Args:
        call: a call that `supports_unchecked`.
        sizes: sizes of its tiles.
        notes: guard notes are appended to it if there is an output.
    """
    import torch

    assumed = replace(call, finite=(True, True))
    assumed = assumed.with_projections(*assumed.score.project(assumed.query, assumed.key, assumed.tile))
    new_notes: list[str] = []
    output, _, total = forward(assumed, sizes, new_notes)
    low, high = torch.aminmax(total)
    # A sum needs no array of booleans; if it overflows, the data is checked after all.
    if not (float(low) > 0 and float(high) < torch.inf and torch.isfinite(output.sum())):
        return None
    notes += new_notes
    return output
