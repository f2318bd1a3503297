"""Masks of pairs and offsets of scores as one array, which PyTorch's fused attention adds to the logits.

The operator has no gradient of this array, so that calls that need one do not use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import cast

import numpy as np

from qkv.core.arrays import is_array, requires_gradient
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Num, Tensor
from qkv.kernels.fused.layout import Layout
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks import Mask
from qkv.plan.problem import Problem
from qkv.plan.time_model import visible_pairs
from qkv.scores import Score
from qkv.scores.forms import Offset, ScaledProduct
from qkv.scores.wrapper import PointwiseScore


def split_offsets(score: Score) -> tuple[list[PointwiseScore], Score]:
    """Return the scores that add offsets to the logits of an inner score, and the inner score.

    Offsets that are lifted with the inner score belong to it.
    """
    adding: list[PointwiseScore] = []
    while isinstance(score.form, Offset) and score.form.lift is None:
        assert isinstance(score, PointwiseScore)
        adding.append(score)
        score = score.form.inner
    return adding, score


def inner_score(score: Score) -> Score:
    """Return the inner score of `split_offsets`."""
    return split_offsets(score)[1]


def completes_lift(problem: Problem) -> bool:
    """Return whether the lift has a column for the term of the query alone, without which gradients lose digits."""
    return problem.gradient and inner_score(problem.score).cancels


def takes_bias(problem: Problem) -> bool:
    """Return whether the operator may add an array of pairs: on a CPU, to scaled dot products, if it is not learned."""
    if problem.traced or problem.device.is_gpu or not isinstance(inner_score(problem.score).form, ScaledProduct):
        return False
    return not (problem.gradient and any(map(requires_gradient, problem.spec.arrays())))


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


def bias_elements(problem: Problem) -> int:
    """Return the number of elements of the array of pairs, which has the batch axes of the arrays of its parts."""
    spec, axes = problem.spec, problem.axes
    fields = [field for part in (spec.score, spec.mask) if part is not None for field in part.array_fields()]
    leads = [tuple(x.shape)[: x.ndim - len(names or ())] for x, names in fields]
    return math.prod(np.broadcast_shapes(*leads)) * axes.q * axes.k


_BLOCK_BYTES = 2**24
"""Largest size in bytes of the array of a block of queries, unless the block would have fewer than `_MIN_ROWS`."""
_MIN_ROWS = 32
"""Number of queries of a tile of PyTorch's operator."""
_ROWS = 128
"""Number of queries of a block if there are at least `_MANY_PAIRS`, of which the ranges of keys that the mask allows
exclude a quarter (AMD EPYC: windows of 65 of 1,024 keys take .35 of the time of all queries at once)."""
_MANY_PAIRS = 2**20


def block_rows(problem: Problem) -> int:
    """Return the number of queries for which the array of pairs is computed at once."""
    axes = problem.axes
    share = visible_pairs(problem, _ROWS) / axes.pairs if axes.pairs >= _MANY_PAIRS else 1
    row = bias_elements(problem) / max(1, axes.q) * share * problem.itemsize
    rows = max(_MIN_ROWS, int(min(_BLOCK_BYTES, problem.memory / 8) / max(1, row)))
    return min(axes.q, rows, _ROWS if share < 0.75 else rows)


_FEW = 0.75
"""Share of the keys up to which only those in the key range of the mask are read, as in a long buffer."""
_FEWEST_PAIRS = 2**13
"""Number of pairs from which the key range is asked for: reading lengths and three views take some 20 µs."""


def few_keys(mask: Mask | None, offset: int | None, tile: Tile) -> slice | None:
    """Return the only keys that the fused operators need to read, or None if the mask may allow most keys.

    Args:
        mask: the mask, without a causal mask that the operator applies itself.
        offset: the offset of that causal mask, which starts at key 0; None: there is none.
        tile: the tile of the call.
    """
    if mask is None or math.prod(tile.batch) * tile.q_total * tile.k_total < _FEWEST_PAIRS:
        return None
    first, stop = mask.key_range(tile)
    few = 0 < stop - first <= _FEW * tile.k_total
    return slice(first, stop) if few and (offset is None or first == 0) else None


@dataclass(frozen=True)
class BlockBias:
    """The array of pairs of a call, for a block of queries at a time.

    Attributes:
        mask: the whole mask of the call.
        score: the score, whose offsets are added.
        temperature: temperature of softmax.
        tile: the tile of the call.
        layout: mapping of the batch axes.
        rows: number of queries of a block.
    """

    mask: Mask | None
    score: Score
    temperature: Array | float
    tile: Tile
    layout: Layout
    rows: int

    def blocks(self, value: Float[Tensor, "*_"]) -> Iterator[tuple[slice, slice, Float[Tensor, "b heads #q k"] | None]]:
        """Yield for each block its queries, the keys that the mask may allow for them, and the array of its pairs."""
        q, k = self.tile.q_total, self.tile.k_total
        for start in range(0, q, self.rows):
            limits = start, min(q, start + self.rows)
            first, stop = (0, k) if self.mask is None else self.mask.key_range(self.tile.restrict(limits, (0, k)))
            cols = (first, stop) if first < stop else (0, 1)
            rows, keys = slice(*limits), slice(*cols)
            mask = None if self.mask is None else self.mask.slice(rows, keys)
            score, tile = self.score.slice(rows, keys), self.tile.restrict(limits, cols)
            yield rows, keys, operator_bias(mask, score, self.temperature, tile, value, self.layout)


@dataclass(frozen=True, eq=False)
class OffsetsOf(PointwiseScore):
    """Score for second derivatives of fused attention: it adds the offsets of the call, divided by T and the scale.

    Attributes:
        score: the score to whose logits they are added.
        given: the score whose offsets are added.
        temperature: T.
    """

    score: Score
    given: Score
    temperature: Array | float = array_field(default=1.0)
    scale: float = 1.0

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch #q #k"]:
        """Return the sum of the offsets."""
        found = sum_of_offsets(self.given, self.temperature, tile, cast("Tensor", reference))
        return cast("Tensor", found) / self.scale


def sum_of_offsets(
    score: Score, temperature: Array | float, tile: Tile, value: Float[Tensor, "*_"]
) -> Float[Tensor, "*#batch #q #k"] | None:
    """Return the sum of the offsets of a score, divided by the temperature; None if there are none."""
    adding, _ = split_offsets(score)
    if not adding:
        return None
    total = reduce(add, [cast("Tensor", each.offset(tile, value)) for each in adding])
    if is_array(temperature) or temperature != 1:
        total = total / cast("Tensor", expand_to_pairs(temperature))
    return total.to(value.dtype)


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

    bias = sum_of_offsets(score, temperature, tile, value)
    if bias is not None:
        bias = layout.pair_array(bias, tile.cols[1] - tile.cols[0])
    if mask is None:
        return bias
    allowed = layout.pair_array(cast("Tensor", mask.allowed(tile, value)), tile.cols[1] - tile.cols[0])
    zero, excluded = bounds or (value.new_zeros(()), value.new_full((), -math.inf))
    return torch.where(allowed, zero if bias is None else bias, excluded)
