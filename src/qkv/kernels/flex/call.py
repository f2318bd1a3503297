"""Execution of a call by FlexAttention: lift, layout of the axes, block mask, and data that is not finite.

FlexAttention multiplies masked keys and values by 0, so that NaN would reach the output (0 · NaN is NaN). With a mask,
keys and values that are not finite are therefore set to 0, and the logits of such keys are NaN for the queries that
may attend to them. Nothing is read back to the host.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Num, Tensor
from qkv.kernels.flex.modifications import BatchAxes, mask_function, modifications_of, score_function
from qkv.kernels.fused.layout import Layout, layout_of
from qkv.kernels.runtime.context import no_autocast

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from qkv.scores import Score

__all__ = ["flex_attend"]

_LEAST_WIDTH = 16
"""Smallest width of vectors that FlexAttention's compiled kernel supports."""
_MOST_BLOCK_MASKS = 64
_block_masks: dict[tuple[object, ...], BlockMask] = {}
"""Block masks that depend on no arrays, such as that of a window, by what they depend on."""


def flex_attend(call: TorchCall, compiled: bool) -> Float[Tensor, "*batch q value_width"]:
    """Return the output of a call whose score and mask FlexAttention can apply.

    Args:
        call: the call.
        compiled: whether to compile FlexAttention; otherwise it computes all pairs at once, for tests.
    """
    import torch
    from torch.nn.attention.flex_attention import AuxRequest

    inner, modifications = modifications_of(call.score)
    key_bias = None
    if call.mask is not None:
        call, key_bias = _without_nonfinite(call)
    with no_autocast(call.value):
        query, key, scale = _lift(call, inner)
        value, width = call.value, call.value.shape[-1]
        if not query.dtype == key.dtype == value.dtype:
            query, key, value = (x.to(torch.promote_types(query.dtype, torch.float32)) for x in (query, key, value))
        query, key, value = _padded(query), _padded(key), _padded(value)
        layout, (query, key, value) = _four_axes(call, query, key, value)
        temperature = cast("float", call.normalizer.temperature)
        if not modifications:
            scale, temperature = scale / temperature, 1.0
        axes = BatchAxes(call.tile.batch, layout.heads[1])
        modify = score_function(modifications, call.tile, axes, call.value, temperature, key_bias)
        blocks = None if call.mask is None else _block_mask(call, axes, layout, compiled)
        output, more = _flex_attention(compiled)(
            query,
            key,
            value,
            score_mod=modify,
            block_mask=blocks,
            scale=scale,
            enable_gqa=layout.grouped,
            return_aux=AuxRequest(lse=True),
        )
        # The output of rows without keys is not documented.
        output = torch.where((more.lse == -math.inf)[..., None], 0.0, output)
    return layout.output(output, width)


def _lift(call: TorchCall, score: Score) -> tuple[Num[Tensor, "*_ q lifted"], Num[Tensor, "*_ k lifted"], float]:
    centre = score.centre(call.key)
    tile = call.tile if centre is None else dataclasses.replace(call.tile, centre=centre)
    query, key, scale = score.scaled_lift(call.query, call.key, tile)
    return cast("Tensor", query), cast("Tensor", key), scale


def _padded(x: Num[Tensor, "*_ n width"]) -> Num[Tensor, "*_ n padded"]:
    import torch

    missing = _LEAST_WIDTH - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing > 0 else x


def _four_axes(call: TorchCall, *sides: Num[Tensor, "*_"]) -> tuple[Layout, tuple[Num[Tensor, "b heads n width"], ...]]:
    batch = call.tile.batch
    layout = layout_of(batch, *(tuple(x.shape[:-2]) for x in sides))
    if layout is None:  # the lift broadcast the inputs to batch axes of the score's arrays
        sides = tuple(x.expand((*batch, *x.shape[-2:])) for x in sides)
        layout = layout_of(batch, batch, batch, batch)
        assert layout is not None
    return layout, layout.sides(*sides)


def _without_nonfinite(call: TorchCall) -> tuple[TorchCall, Num[Tensor, "*_ k"]]:
    """Return a call with keys and values that are not finite set to 0, and NaN for these keys and 0 for others."""
    import torch

    bias = (call.key.detach() * 0).sum(-1) + (call.value.detach() * 0).sum(-1)
    key, value = (torch.where(x.isfinite(), x, 0.0) for x in (call.key, call.value))
    dtype = torch.float64 if bias.dtype == torch.float64 else torch.float32
    return dataclasses.replace(call, key=key, value=value), bias.to(dtype)


def _block_mask(call: TorchCall, axes: BatchAxes, layout: Layout, compiled: bool) -> BlockMask:
    assert call.mask is not None
    function, batched, key = mask_function(call.mask, call.tile, axes, call.value)
    q, k, device = call.tile.q_total, call.tile.k_total, call.value.device
    known = None if key is None else (key, q, k, device, compiled)
    found = None if known is None else _block_masks.get(known)
    if found is None:
        b, h = layout.heads if batched else (None, None)
        found = _create_block_mask(compiled)(function, b, h, q, k, device)
        if known is not None:
            if len(_block_masks) >= _MOST_BLOCK_MASKS:
                _block_masks.clear()
            _block_masks[known] = found
    return found


@cache
def _flex_attention(compiled: bool) -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


@cache
def _create_block_mask(compiled: bool) -> Any:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask) if compiled else create_block_mask
