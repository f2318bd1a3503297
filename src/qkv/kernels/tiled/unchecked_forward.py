"""Forward softmax of inner products that detects NaN and infinity from its sums instead of checking the inputs.

The check is a pass over all keys and values, which takes nearly as long as attention of few queries to many keys.
Without a mask every query attends to all keys, so every non-finite element affects the sums: NaN makes them NaN, an
infinite value makes the output infinite or NaN, and an infinite logit makes a total infinite, 0 or NaN.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from qkv.core.arrays import requires_gradient
from qkv.core.equation import TorchCall
from qkv.core.typing import OutputTensor
from qkv.kernels.runtime.gradients import call_tensors
from qkv.kernels.runtime.tile_readouts import readable_in_forward
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.tiled.attention import forward
from qkv.kernels.tiled.readouts import ReadoutCollector
from qkv.plan.problem import Problem
from qkv.scores.forms import Product


def supports_unchecked(call: TorchCall, problem: Problem) -> bool:
    """Return whether the sums of a call would reveal NaN and infinity in its inputs."""
    normalizer = call.normalizer
    return (
        normalizer.log_sum_exp
        and normalizer.online
        and normalizer.scale is not None
        and normalizer.shift_invariant
        and call.mask is None
        and isinstance(call.score.form, Product)
        and not (problem.gradient or problem.traced)
        and readable_in_forward(problem.readouts, normalizer)
        and 0 not in (problem.axes.pairs, *call.value.shape)
        and not any(requires_gradient(x) for x in call_tensors(call))
    )


def unchecked_forward(
    call: TorchCall, sizes: TileSizes, notes: list[str], collector: ReadoutCollector | None
) -> OutputTensor | None:
    """Return the output of a call, or None if its sums do not prove that all inputs are finite.

    Args:
        call: a call for which `supports_unchecked` is true.
        notes: list to which notes about guards are appended if an output is returned.
        collector: collector of readouts, which are valid if an output is returned; None without readouts.
    """
    assumed = replace(call, finite=(True, True))
    assumed = assumed.with_projections(*assumed.score.project(assumed.query, assumed.key, assumed.tile))
    new_notes: list[str] = []
    output, _, total = forward(assumed, sizes, new_notes, collector)
    low, high = torch.aminmax(total)
    # A sum needs no array of booleans. If it overflows, the caller checks the data instead.
    if not (float(low) > 0 and float(high) < torch.inf and torch.isfinite(output.sum())):
        return None
    notes += new_notes
    return output
