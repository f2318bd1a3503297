"""Implementation of transformers' mask interface, which returns a lazy mask instead of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from qkv.core.tile import Tile
from qkv.core.typing import Int, Shaped, Tensor
from qkv.interop.huggingface.lazy_mask import LazyMask
from qkv.interop.huggingface.mask_functions import MaskContext, MaskFunction, simplify_mask, translate_mask
from qkv.masks import Keys
from qkv.masks.base import and_masks

__all__ = ["build_mask"]


def build_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Int[Tensor, ""] = 0,
    kv_offset: int | Int[Tensor, ""] = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Shaped[Tensor, "batch length"] | Shaped[Tensor, "#batch #heads #q k"] | None = None,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **kwargs: object,
) -> Shaped[Tensor, "#batch #heads #q k"] | None:
    """Return the mask that `transformers.masking_utils.eager_mask` computes, as a `LazyMask` if possible.

    The arguments are those of the mask interface of transformers.

    Args:
        batch_size: number of batch elements.
        q_length: number of queries.
        kv_length: number of keys.
        q_offset: index of the first query.
        kv_offset: index of the first key.
        mask_function: function of (batch, head, query, key) indices; None for causal attention.
        attention_mask: `(batch, k)`, True for keys that are not padding.
        allow_is_bidirectional_skip: whether to return None if all pairs are allowed.
        use_vmap: whether the mask function only accepts scalar indices.
        device: device of the mask.
        dtype: dtype of the mask.
        kwargs: further arguments, passed to `eager_mask` while a model is traced.

    Returns:
        A `LazyMask` of shape (batch, 1, q, k); None if all pairs are allowed and `allow_is_bidirectional_skip` is True.
    """
    from transformers import masking_utils
    from transformers.utils import import_utils

    function = mask_function or cast(MaskFunction, masking_utils.causal_mask_function)
    if import_utils.is_tracing(attention_mask):
        eager_mask: Callable[..., torch.Tensor | None] = masking_utils.eager_mask
        return eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, dtype,
            allow_is_bidirectional_skip, use_vmap, device, **kwargs,
        )  # fmt: skip
    if isinstance(attention_mask, LazyMask) or (attention_mask is not None and attention_mask.ndim == 4):
        return attention_mask
    context = MaskContext(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), device, use_vmap)
    mask = translate_mask(function, context)
    if attention_mask is not None and attention_mask.ndim == 2:
        real = attention_mask.to(device=device, dtype=torch.bool)
        if (unused := context.k_start + kv_length - real.shape[-1]) > 0:
            # Slots of a static cache that have not been written yet.
            real = torch.nn.functional.pad(real, (0, unused))
        mask = and_masks(mask, Keys(context.slice_keys(real)))
    mask = simplify_mask(mask, Tile.whole(q_length, kv_length, (batch_size, 1), context.positions))
    if mask is None and allow_is_bidirectional_skip:
        return None
    return LazyMask(mask, context.positions, (batch_size, 1, q_length, kv_length), device, dtype)
