"""Masks of pairs and offsets of scores as one array, which PyTorch's fused attention adds to the logits.

The operator has no gradient of this array, so that only forward passes use it.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import cast

from qkv.core.arrays import is_array
from qkv.core.parts import expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Tensor
from qkv.kernels.fused.layout import Layout
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks import Mask
from qkv.plan.problem import Problem
from qkv.scores import Score
from qkv.scores.forms import Offset, ScaledProduct
from qkv.scores.wrapper import PointwiseScore


def inner_score(score: Score) -> Score:
    """Return the score to whose logits the offsets of a score are added, except offsets that are lifted with it."""
    while isinstance(score.form, Offset) and score.form.lift is None:
        score = score.form.inner
    return score


def takes_bias(problem: Problem) -> bool:
    """Return whether the operator may add an array of pairs: forward on a CPU, to scaled dot products."""
    forward_on_cpu = not (problem.gradient or problem.traced or problem.device.is_gpu)
    return forward_on_cpu and isinstance(inner_score(problem.score).form, ScaledProduct)


def split_for_operator(mask: Mask | None, score: Score, tile: Tile) -> tuple[Mask | None, int | None]:
    """Return the mask to add as an array, and the offset of the causal mask that the operator applies itself, if any.

    An offset other than 0 takes two calls, which take no array.
    """
    keys, offset, known = split_mask(mask, tile)
    if known and not (offset and (keys is not None or inner_score(score) is not score)):
        return keys, offset
    return mask, None


def needs_bias(problem: Problem) -> bool:
    """Return whether the operator needs an array of all pairs, and not of keys alone."""
    mask = split_for_operator(problem.spec.mask, problem.score, problem.tile)[0]
    return inner_score(problem.score) is not problem.score or (mask is not None and not mask.key_only)


def operator_bias(
    mask: Mask | None,
    score: Score,
    temperature: Array | float,
    tile: Tile,
    value: Float[Tensor, "*_"],
    layout: Layout,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "b heads #q k"] | None:
    """Return the sum of the offsets, divided by the temperature, with −inf for pairs that the mask excludes.

    Args:
        mask: the mask without a causal mask that the operator applies itself; None: no mask.
        score: the score, whose offsets are added.
        temperature: temperature of softmax.
        tile: the tile of the call.
        value: values, for their dtype.
        layout: mapping of the batch axes.
        bounds: tensors 0 and −inf of the dtype of `value`, which take as long to create as a short sum; None: new ones.
    """
    import torch

    offsets: list[Tensor] = []
    while isinstance(score.form, Offset) and score.form.lift is None:
        assert isinstance(score, PointwiseScore)
        offsets.append(cast("Tensor", score.offset(tile, value)))
        score = score.form.inner
    bias = None
    if offsets:
        bias = reduce(add, offsets)
        if is_array(temperature) or temperature != 1:
            bias = bias / cast("Tensor", expand_to_pairs(temperature))
        bias = layout.pair_array(bias.to(value.dtype), tile.k_total)
    if mask is None:
        return bias
    allowed = layout.pair_array(cast("Tensor", mask.allowed(tile, value)), tile.k_total)
    zero, excluded = bounds or (value.new_zeros(()), value.new_full((), -math.inf))
    return torch.where(allowed, zero if bias is None else bias, excluded)
