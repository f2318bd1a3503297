"""Translation of scores and masks to the functions of a pair of indices that FlexAttention compiles into its kernel.

A score modification is a function (logit, b, h, q, k) → logit, and a mask a function (b, h, q, k) → boolean, for the
batch element b, the head h, the query q and the key k. Positions of queries are tensors and not numbers, so that
PyTorch does not compile again for each of them.

Source: Dong et al. (2024), Flex Attention: a programming model for generating optimized attention kernels,
https://arxiv.org/abs/2412.05496.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, cast

from qkv.core.arrays import asarray_like, is_array
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.masks import Blocks, Documents, Mask, Pairs, Prefix
from qkv.masks.base import And, Not, Or
from qkv.masks.window import BandMask
from qkv.scores import ALiBi, Biased, RelativePosition, Score, Softcap
from qkv.scores.position_bias import bucket

__all__ = [
    "BatchAxes",
    "MaskFunction",
    "ScoreFunction",
    "mask_function",
    "modifications_of",
    "score_function",
    "supports_mask",
]

ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_Element = Callable[[Tensor, Tensor], Tensor]
_Key: TypeAlias = "tuple[object, ...] | None"
_MASKS = (BandMask, Prefix, Documents, Pairs, Blocks)


def modifications_of(score: Score) -> tuple[Score, tuple[Score, ...]]:
    """Return the score within all modifications that FlexAttention can apply, and these, the innermost first."""
    found: list[Score] = []
    while isinstance(score, (Softcap, ALiBi, Biased, RelativePosition)):
        found.append(score)
        score = score.score
    return score, tuple(reversed(found))


def supports_mask(mask: Mask | None) -> bool:
    """Return whether `mask_function` can translate a mask."""
    if mask is None or mask.key_only or isinstance(mask, _MASKS):
        return True
    if isinstance(mask, (And, Or)):
        return supports_mask(mask.left) and supports_mask(mask.right)
    return isinstance(mask, Not) and supports_mask(mask.mask)


class BatchAxes:
    """Mapping of the two batch axes of FlexAttention to the batch axes of a call.

    Args:
        batch: batch axes of the call.
        heads: length of the second of the two axes, into which the last axes of `batch` are merged.
    """

    def __init__(self, batch: tuple[int, ...], heads: int) -> None:
        self.batch, self.heads = batch, heads

    def lookup(self, array: Shaped[Array, "*_"], core: int) -> tuple[Shaped[Tensor, "*_"], _Element]:
        """Return an array with one batch axis, and a function of b and h that returns the index along it.

        Args:
            array: array `(*#batch, …)` with `core` axes after those of the batch.
            core: number of axes after those of the batch.
        """
        tensor = cast("Tensor", array)
        own = tuple(tensor.shape[: tensor.ndim - core])
        flat = tensor.reshape(-1, *tensor.shape[tensor.ndim - core :])
        own = (1,) * (len(self.batch) - len(own)) + own
        heads, steps, after, stride = self.heads, [], 1, 1
        for length, mine in zip(reversed(self.batch), reversed(own), strict=True):
            if mine != 1:
                steps.append((after, length, stride))
                stride *= length
            after *= length

        def element(b: Tensor, h: Tensor) -> Tensor:
            if not steps:
                return b * 0
            if stride == after:
                return b * heads + h
            index = b * 0
            for divisor, length, step in steps:
                index = index + (b * heads + h) // divisor % length * step
            return index

        return flat, element


def score_function(
    modifications: tuple[Score, ...],
    tile: Tile,
    axes: BatchAxes,
    reference: Num[Tensor, "*_"],
    temperature: float,
    key_bias: Num[Tensor, "*_ k"] | None,
) -> ScoreFunction | None:
    """Return a function that modifies the inner products of a call, or None if nothing is to be changed.

    Args:
        modifications: from `modifications_of`.
        tile: the whole call.
        axes: the batch axes.
        reference: an array of the call.
        temperature: number by which the modified logits are divided.
        key_bias: 0 for each key, or NaN for a key or value that is not finite; None without a mask.
    """
    steps = [_step(each, tile, axes, reference) for each in modifications]
    bias, element = (None, None) if key_bias is None else axes.lookup(key_bias, 1)
    if not steps and bias is None and temperature == 1.0:
        return None

    def modified(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        for step in steps:
            score = step(score, b, h, q, k)
        if temperature != 1.0:
            score = score / temperature
        if bias is not None and element is not None:
            score = score + bias[element(b, h), k]
        return score

    return modified


def _step(score: Score, tile: Tile, axes: BatchAxes, reference: Num[Tensor, "*_"]) -> ScoreFunction:
    import torch

    if isinstance(score, Softcap):
        cap, element = axes.lookup(_scalar(score.cap, reference), 0)

        def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            most = cap[element(b, h)]
            excluded = score == -math.inf
            capped = most * torch.tanh(torch.where(excluded, 0.0, score) / most)
            return torch.where(excluded, -math.inf, capped)

        return softcap
    if isinstance(score, Biased) and score.per_key is not None:
        per_key, element = axes.lookup(score.per_key, 1)
        last = per_key.shape[-1] != 1
        return lambda score, b, h, q, k: _clamped(score + per_key[element(b, h), k if last else k * 0])
    if isinstance(score, Biased):
        pairs, element = axes.lookup(cast("Array", score.bias), 2)
        rows, cols = (n != 1 for n in pairs.shape[-2:])
        return lambda score, b, h, q, k: _clamped(
            score + pairs[element(b, h), q if rows else q * 0, k if cols else k * 0]
        )
    offset, positioned = axes.lookup(_scalar(tile.offset(), reference, torch.int64), 0)
    if isinstance(score, ALiBi):
        slope, element = axes.lookup(_scalar(score.slope, reference), 0)
        return lambda score, b, h, q, k: score - slope[element(b, h)] * (k - q - offset[positioned(b, h)]).abs()
    assert isinstance(score, RelativePosition)
    table, element = axes.lookup(score.table, 1)
    options = table.shape[-1], score.bidirectional, score.max_distance
    return lambda score, b, h, q, k: score + table[element(b, h), _bucket(k - q - offset[positioned(b, h)], *options)]


def _clamped(score: Tensor) -> Tensor:
    """Return finite logits of at least two thirds of the lowest number: FlexAttention multiplies them by log₂ e."""
    import torch

    lowest = torch.finfo(score.dtype).min * 0.68
    return torch.where(score == -math.inf, score, torch.clamp(score, min=lowest))


def _bucket(relative: Tensor, buckets: int, bidirectional: bool, max_distance: int) -> Tensor:
    return cast("Tensor", bucket(cast("Array", relative), buckets, bidirectional, max_distance))


def mask_function(
    mask: Mask, tile: Tile, axes: BatchAxes, reference: Num[Tensor, "*_"]
) -> tuple[MaskFunction, bool, _Key]:
    """Return a mask as a function of indices, whether it depends on the batch, and a key that identifies it.

    The key is None if the mask depends on arrays.
    """
    import torch

    if mask.key_only:
        allowed, element = axes.lookup(mask.allowed(tile, cast("Array", reference)), 2)
        last = allowed.shape[-1] != 1
        return (lambda b, h, q, k: allowed[element(b, h), 0, k if last else k * 0]), allowed.shape[0] != 1, None
    if isinstance(mask, (And, Or)):
        left, right = (mask_function(side, tile, axes, reference) for side in (mask.left, mask.right))
        f, g = left[0], right[0]
        key: _Key = None if left[2] is None or right[2] is None else (type(mask).__name__, left[2], right[2])
        if isinstance(mask, And):
            return (lambda b, h, q, k: f(b, h, q, k) & g(b, h, q, k)), left[1] or right[1], key
        return (lambda b, h, q, k: f(b, h, q, k) | g(b, h, q, k)), left[1] or right[1], key
    if isinstance(mask, Not):
        inner, batched, key = mask_function(mask.mask, tile, axes, reference)
        return (lambda b, h, q, k: ~inner(b, h, q, k)), batched, None if key is None else ("Not", key)
    if isinstance(mask, Documents):
        queries, element = axes.lookup(mask.query_ids, 1)
        keys, key_element = axes.lookup(cast("Array", mask.key_ids), 1)
        batched = queries.shape[0] != 1 or keys.shape[0] != 1
        return (lambda b, h, q, k: queries[element(b, h), q] == keys[key_element(b, h), k]), batched, None
    if isinstance(mask, Pairs):
        pairs, element = axes.lookup(mask.array, 2)
        rows, cols = (n != 1 for n in pairs.shape[-2:])
        batched = pairs.shape[0] != 1
        return (lambda b, h, q, k: pairs[element(b, h), q if rows else q * 0, k if cols else k * 0]), batched, None
    if isinstance(mask, Blocks):
        layout, element = axes.lookup(mask.layout, 2)
        size = mask.sizes
        return (lambda b, h, q, k: layout[element(b, h), q // size[0], k // size[1]]), layout.shape[0] != 1, None
    align = mask.align if isinstance(mask, BandMask) else None
    start = tile.offset(align)
    offset, positioned = axes.lookup(_scalar(start, reference, torch.int64), 0)
    batched = is_array(start) and offset.shape[0] != 1
    key = ("start", start) if isinstance(start, int) else None
    if isinstance(mask, Prefix):
        length, element = axes.lookup(_scalar(mask.length, reference, torch.int64), 0)
        batched |= length.shape[0] != 1
        key = (*key, "Prefix", mask.length) if key is not None and isinstance(mask.length, int) else None
        return (lambda b, h, q, k: (k < length[element(b, h)]) | (k <= q + offset[positioned(b, h)])), batched, key
    assert isinstance(mask, BandMask)
    before, after = mask.before, mask.after

    def inside(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = k - q - offset[positioned(b, h)]
        allowed = distance == distance if after is None else distance <= after
        return allowed if before is None else allowed & (distance >= -before)

    return inside, batched, None if key is None else (*key, before, after)


def _scalar(x: Array | float, reference: Num[Tensor, "*_"], dtype: object = None) -> Shaped[Tensor, "*batch"]:
    """Return a number or an array as a tensor, which is filled on the device and not copied to it."""
    import torch

    if is_array(x):
        return cast("Tensor", asarray_like(cast("Array", reference), x))
    own = torch.float64 if reference.dtype == torch.float64 else torch.float32
    return torch.full((), cast("float", x), dtype=cast("torch.dtype", dtype) or own, device=reference.device)
