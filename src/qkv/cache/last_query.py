"""Attention of one query at the end of each sequence to chunked keys and values: the step of a decoding loop.

The last query of a sequence precedes no key, so a causal mask allows all keys, and a window the last ones:

    output = softmax(scale · q K_rᵀ) V_r          K_r, V_r: the last r rows of K and V

A step is therefore prepared once for a score, a normalizer and a mask, and is valid for every number of keys. With one
chunk it is one call of PyTorch's fused attention; with several, two matrix products for each chunk.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from qkv.cache.kernel import ChunkedTensor
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Float, Int, Tensor
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.scores import Score
from qkv.scores.forms import ScaledProduct

ALL_KEYS = 2**40
"""Number of keys for which a mask is asked which of them it allows. No sequence is longer."""


def last_keys(mask: Mask | None) -> int | None:
    """Return the number of last keys that a mask allows for the last query, or None if it is no such number.

    The result for a mask that allows all keys is `ALL_KEYS`. It is known only for masks without arrays that depend on
    nothing but the distance between query and key, and therefore holds for every number of keys.

    Example:
        >>> from qkv.masks import Causal, Window
        >>> last_keys(Window(3, 0)), last_keys(Causal()) == ALL_KEYS, last_keys(~Causal())
        (4, True, None)
    """
    if mask is None:
        return ALL_KEYS
    return _probe(mask) if mask.relative else None


@lru_cache(maxsize=256)
def _probe(mask: Mask) -> int | None:
    if mask.arrays():
        return None
    tile = Tile.whole(1, ALL_KEYS, (), Positions(align="end"))
    start, stop = mask.key_range(tile)
    inside = stop == ALL_KEYS and mask.coverage(tile.restrict(tile.rows, (start, stop))) == "all"
    return stop - start if inside else None


_PRODUCT_ELEMENTS = 2**20
"""Number of elements of the keys from which two matrix products are faster than fused attention on a CPU.

They take .80 to .94 of its time, and up to 1.7 of it for fewer keys (float32, EPYC, one thread, width 64). In half
precision, and where several queries share a key, they take up to twice the time.
"""


class Step(NamedTuple):
    """Prepared decoding step: the factor of the inner product, and the number of last keys that the mask allows."""

    scale: float
    reach: int | None


def attend_last(
    query: Float[Tensor, "*batch heads 1 width"],
    key: ChunkedTensor,
    value: ChunkedTensor,
    score: Score,
    normalizer: Normalizer | None,
    mask: Mask | None,
    window: int | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "*batch heads 1 width"] | None:
    """Return the output of one query per sequence, whose key is the last one, or None if the call is not supported.

    Supported are softmax over scaled dot products, masks that allow a fixed number of last keys, and finite data of
    one dtype and one width without a gradient. `query` has one row. `heads` may be a
    multiple of the number of key heads.

    Args:
        query: queries, with one or no batch axis in addition to the heads.
        key: all keys, including that of the query.
        value: values, in chunks of the same lengths as those of the keys.
        score: the score.
        normalizer: the normalizer; None means the default of the score.
        mask: the mask, or None.
        window: number of last keys that the query may attend to; None means all keys.
        lengths: number of keys of each sequence; None if all sequences have all keys.
    """
    shape, first = query.shape, key.chunks[0]
    if not (isinstance(score.form, ScaledProduct) and key.finite and value.finite and (mask is None or mask.relative)):
        return None
    if not query.dtype == key.dtype == value.dtype or value.chunks[0].shape != first.shape or not first.shape[-2]:
        return None
    if torch.is_grad_enabled() and query.requires_grad:
        return None
    step, grouped = prepare_step(score, normalizer, mask, shape[-1]), share_keys(query, first.shape)
    if step is None or grouped is None or not math.isfinite(query.sum().item()):
        return None
    reach = step.reach if window is None else window if step.reach is None else min(window, step.reach)
    if len(key.chunks) == 1 and lengths is None and key.scales[0] is None:
        keys, values = first, value.chunks[0]
        if reach is not None and (excess := first.shape[-2] - reach) > 0:
            keys, values = keys.narrow(-2, excess, reach), values.narrow(-2, excess, reach)
        if len(shape) == 3:
            keys, values = keys.unsqueeze(1), values.unsqueeze(1)
        output = torch.nn.functional.scaled_dot_product_attention(grouped, keys, values, scale=step.scale)
    elif query.dtype.itemsize < 4 or (lengths is not None and bool((lengths < 1).any())):
        return None
    else:
        output = _products(grouped * step.scale, key, value, reach, lengths)
    return output if output.shape == shape else output.reshape(shape)


def attend_rows(
    query: Float[Tensor, "*batch heads 1 width"],
    key: Float[Tensor, "*batch key_heads k width"],
    value: Float[Tensor, "*batch key_heads k width"],
    new: tuple[Float[Tensor, "*batch key_heads 1 width"], Float[Tensor, "*batch key_heads 1 width"]],
    step: Step,
    window: int | None,
) -> Float[Tensor, "*batch heads 1 width"] | None:
    """Return the output of one query per sequence, whose key is the last one, or None if the call is not supported.

    Not supported are new rows that are not finite.

    Args:
        query: queries.
        key: all keys, of the dtype and width of the queries. They are finite except for the last one.
        value: values, of the shape of the keys, finite except for the last one.
        new: the last key and the last value of each sequence.
        step: the prepared step.
        window: number of last keys that the query may attend to; None means all keys.
    """
    grouped, k = share_keys(query, key.shape), key.shape[-2]
    if grouped is None:
        return None
    reach = step.reach if window is None else window if step.reach is None else min(window, step.reach)
    if reach is not None and k > reach:
        key, value, k = key.narrow(-2, k - reach, reach), value.narrow(-2, k - reach, reach), reach
    if query.ndim == 3:
        key, value, new = key.unsqueeze(1), value.unsqueeze(1), (new[0].unsqueeze(1), new[1].unsqueeze(1))
    if key.numel() < _PRODUCT_ELEMENTS or grouped.shape[-2] > 1 or key.dtype.itemsize < 4 or not key.is_cpu:
        output = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, scale=step.scale)
    else:
        weights = torch.bmm(grouped.flatten(0, 1) * step.scale, key.flatten(0, 1).mT).softmax(-1)
        output = torch.bmm(weights, value.flatten(0, 1)).view(grouped.shape)
    # One sum reads the query, the new key and the output, which an infinite or NaN value makes infinite or NaN. Fused
    # attention may return finite results for a NaN query or, in half precision, for infinite inputs.
    total = torch.addcmul(output, grouped, new[0]).sum().item()
    if key.dtype.itemsize < 4:
        total += new[1].sum().item()
    if not math.isfinite(total):
        return None
    return output if grouped is query else output.reshape(query.shape)


def _products(
    query: Float[Tensor, "b key_heads group width"],
    key: ChunkedTensor,
    value: ChunkedTensor,
    reach: int | None,
    lengths: Int[Tensor, " b"] | None,
) -> Float[Tensor, "b key_heads group width"]:
    """Return the output, computed with two matrix products for each chunk that has one of the last `reach` keys.

    The queries are multiplied by the scale of the logits. Each sequence needs at least one key.
    """
    stop, first, skipped = key.shape[-2], 0, 0
    ranges = key.ranges
    if reach is not None and lengths is None:
        skipped = max(0, stop - reach)
        first = next(n for n, (_, end) in enumerate(ranges) if end > skipped)
    query = query.flatten(0, 1)
    start, chunks = ranges[first][0], range(first, len(ranges))
    logits = torch.cat([torch.bmm(query, key.dequantized(n).flatten(0, -3).mT) for n in chunks], -1)
    if lengths is not None:
        columns = torch.arange(start, stop, device=logits.device)
        ends = lengths.to(logits.device)[:, None, None, None]
        allowed = columns < ends
        if reach is not None:
            allowed &= columns >= ends - reach
        shared = logits.view(len(lengths), -1, *logits.shape[1:])
        logits = shared.masked_fill_(~allowed, -math.inf).flatten(0, 1)
    elif skipped > start:
        logits[..., : skipped - start] = -math.inf
    weights = logits.softmax(-1)
    output = None
    for n in chunks:
        part = weights[..., ranges[n][0] - start : ranges[n][1] - start]
        values = value.dequantized(n).flatten(0, -3)
        output = torch.bmm(part, values) if output is None else output.baddbmm_(part, values)
    assert output is not None
    return output.view(-1, key.shape[-3], *output.shape[1:]) if key.ndim == 4 else output.unsqueeze(1)


@lru_cache(maxsize=256)
def prepare_step(score: Score, normalizer: Normalizer | None, mask: Mask | None, width: int) -> Step | None:
    """Return the step of parts without arrays, or None if it needs another kernel. Parts are compared by identity."""
    form = score.form
    if (
        not isinstance(form, ScaledProduct)
        or score.arrays()
        or (mask is not None and (mask.arrays() or not mask.relative))
    ):
        return None
    temperature = 1.0
    if normalizer is None:
        if score.default_normalizer != "softmax":
            return None
    elif normalizer.log_sum_exp and normalizer.online and normalizer.shift_invariant:
        if normalizer.arrays() or not isinstance(normalizer.temperature, (int, float)):
            return None
        temperature = float(normalizer.temperature)
    else:
        return None
    reach = last_keys(mask)
    if reach is None:
        return None
    scale = form.factor(width) / temperature
    return Step(float(scale), reach if reach != ALL_KEYS else None)


def share_keys(
    query: Float[Tensor, "*batch heads 1 width"], key_shape: tuple[int, ...]
) -> Float[Tensor, "b key_heads group width"] | None:
    """Return the queries of the heads that share a key as rows of one array, or None if the batch axes do not match."""
    shape = query.shape
    if len(shape) == len(key_shape) == 4 and shape[0] == key_shape[0]:
        heads, key_heads = shape[1], key_shape[1]
        if heads == key_heads:
            return query
        return query.reshape(shape[0], key_heads, -1, shape[-1]) if heads % key_heads == 0 else None
    if len(shape) == len(key_shape) == 3 and shape[0] == key_shape[0]:
        return query.unsqueeze(1)
    return None
