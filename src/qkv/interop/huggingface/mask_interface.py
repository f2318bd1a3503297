"""The mask function that transformers calls: a lazy mask instead of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qkv.core.tile import Tile
from qkv.interop.huggingface.lazy_mask import LazyMask
from qkv.interop.huggingface.mask_functions import MaskContext, simplify_mask, translate_mask
from qkv.masks import Keys
from qkv.masks.base import And, Mask

__all__ = ["build_mask"]


def build_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Any:
    """What `transformers.masking_utils.eager_mask` says, as a `LazyMask`.

    The arguments are those of the mask interface of transformers; `attention_mask` is `(batch, k)`, True
    where a key is real.

    Returns:
        A `LazyMask` of shape (batch, 1, q, k); None where all pairs meet and the caller takes None for it.
    """
    from transformers import masking_utils
    from transformers.utils import import_utils

    function = mask_function or masking_utils.causal_mask_function
    if import_utils.is_tracing(attention_mask):
        return masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, dtype,
            allow_is_bidirectional_skip, use_vmap, device, **more,
        )  # fmt: skip
    if isinstance(attention_mask, LazyMask) or (attention_mask is not None and attention_mask.ndim == 4):
        return attention_mask
    frame = MaskContext(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), device, use_vmap)
    mask = translate_mask(function, frame)
    if attention_mask is not None and attention_mask.ndim == 2:
        real = attention_mask.to(device=device, dtype=torch.bool)
        if (short := frame.k_start + kv_length - real.shape[-1]) > 0:
            # Slots of a static cache that nothing was written to yet.
            real = torch.nn.functional.pad(real, (0, short))
        mask = _and(mask, Keys(frame.keys(real)))
    mask = simplify_mask(mask, Tile.whole(q_length, kv_length, (batch_size, 1), frame.positions))
    if mask is None and allow_is_bidirectional_skip:
        return None
    return LazyMask(mask, frame.positions, (batch_size, 1, q_length, kv_length), device, dtype)


def _and(mask: Mask | None, other: Mask) -> Mask:
    return other if mask is None else And(mask, other)
