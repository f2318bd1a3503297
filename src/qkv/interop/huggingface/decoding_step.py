"""Decoding step of a Hugging Face model: one query per sequence, with the attention of the model itself.

The query precedes no key, so that the mask of a step allows one range of keys for all sequences, except for padding.
The step is then one call of PyTorch's fused attention, without planning:

    output = softmax(scaling · q K_rᵀ + M) V_r          K_r, V_r: the rows of K and V in the range r

M is −∞ for padding and otherwise 0; it is computed once for all layers of a model.
"""

from __future__ import annotations

import math
from typing import cast

import torch

from qkv.core.tile import Tile
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Float, Shaped, Tensor
from qkv.interop.huggingface.lazy_mask import LazyMask

__all__ = ["attend_step", "without_mask"]


def attend_step(
    query: Float[Tensor, "batch heads q width"],
    key: Float[Tensor, "batch key_heads k width"],
    value: Float[Tensor, "batch key_heads k value_width"],
    mask: Shaped[Tensor, "*_ keys"] | None,
    scaling: object,
) -> Float[Tensor, "batch heads 1 value_width"] | None:
    """Return the output of one query per sequence, or None if the call must be planned.

    Args:
        query: queries.
        key: keys.
        value: values.
        mask: mask that the model received, or None.
        scaling: factor of the inner product; None means 1/√width.
    """
    if query.shape[2] != 1 or value.shape[-1] != query.shape[-1] or not (key.shape[2] and query.numel()):
        return None
    if not (scaling is None or isinstance(scaling, (int, float))) or not query.dtype == key.dtype == value.dtype:
        return None
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return None
    if tracing_mode(query):
        return None
    added = None
    if mask is not None:
        found = _visible(mask, key.shape[2])
        if found is None:
            return None
        (start, stop), allowed = found
        key, value = key.narrow(2, start, stop - start), value.narrow(2, start, stop - start)
        if allowed is not None:
            added = allowed[..., start:stop].to(query.dtype)
    batch, heads, _, width = query.shape
    if heads % key.shape[1]:
        return None
    grouped = query if heads == key.shape[1] else query.reshape(batch, key.shape[1], -1, width)
    scale = None if scaling is None else float(scaling)
    output = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=added, scale=scale)
    # Data that is not finite is left to the kernels. It makes the output NaN or infinite, or 0 if all logits are −∞.
    low, high = output.abs().sum(-1).aminmax()
    if not (low.item() > 0 and math.isfinite(high.item())):
        return None
    return output.reshape(batch, heads, 1, width)


def without_mask(
    key: Float[Tensor, "batch key_heads k width"],
    value: Float[Tensor, "batch key_heads k value_width"],
    mask: Shaped[Tensor, "*_ keys"] | None,
) -> tuple[
    Float[Tensor, "batch key_heads n width"],
    Float[Tensor, "batch key_heads n value_width"],
    Shaped[Tensor, "*_ keys"] | None,
]:
    """Return the first keys and values, and no mask, if these are the keys that the mask of a step allows.

    Steps without a mask share plans. The arguments are returned unchanged if the mask allows other keys.

    Args:
        key: keys.
        value: values.
        mask: mask that the model received for one query, or None.
    """
    found = None if mask is None else _visible(mask, key.shape[2])
    if found is None or found[1] is not None or found[0][0] > 0:
        return key, value, mask
    return key.narrow(2, 0, found[0][1]), value.narrow(2, 0, found[0][1]), None


def _visible(
    mask: Shaped[Tensor, "*_ keys"], keys: int
) -> tuple[tuple[int, int], Float[Tensor, "batch 1 1 keys"] | None] | None:
    """Return the range of keys that a mask allows, and what it adds to the logits if not all of the range is allowed.

    The result is None if the mask is not lazy or allows no key. It is stored with the mask, because all layers of a
    model receive the same mask in a step.
    """
    if not isinstance(mask, LazyMask) or mask.array is not None or mask.shape[-1] < keys:
        return None
    if mask.step is None or mask.step[0] != keys:
        parts, positions = mask.parts()
        stop, limits, added = mask.shape[-1], (0, mask.shape[-1]), None
        if parts is not None:
            tile = Tile.whole(1, stop, (mask.shape[0], 1), positions)
            limits = parts.key_range(tile)
            if limits[0] < limits[1] and parts.coverage(tile.restrict(tile.rows, limits)) != "all":
                added = torch.zeros((mask.shape[0], 1, 1, stop), dtype=mask.dtype, device=mask.device)
                added.masked_fill_(~cast("Tensor", parts.allowed(tile, added)), -math.inf)
        mask.step = (keys, limits, added)
    _, (start, stop), added = mask.step
    return None if start >= min(stop, keys) else ((start, min(stop, keys)), added)
