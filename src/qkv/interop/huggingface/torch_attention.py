"""Translation of a call of `torch.nn.MultiheadAttention` into the arguments of `qkv.attend`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn import functional

from qkv.core.typing import Bool, Float, Shaped, Tensor
from qkv.interop.huggingface.attention_call import AttentionCall, linear_memory
from qkv.interop.huggingface.model_layers import AttentionKind
from qkv.masks import Causal, Keys, Pairs
from qkv.masks.base import Mask, and_masks
from qkv.scores import Biased, ScaledDot, Score

__all__ = ["torch_call", "torch_fast_path_disabled"]


@contextlib.contextmanager
def torch_fast_path_disabled() -> Iterator[None]:
    """Make the modules of `torch.nn` call their attention modules, instead of kernels that fuse a whole layer."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def torch_call(
    module: torch.nn.MultiheadAttention, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[AttentionCall, AttentionKind]:
    """Return the call of `qkv.attend` that computes the attention of a call of a PyTorch module, and its kind.

    All options of the module are supported: separate widths of key and value, learned and zero keys, which follow the
    other keys, boolean and floating-point masks, both layouts, and inputs without batch axis, which get one. The
    weights of a query whose keys are all masked are 0, where PyTorch's are NaN. The kind is "self" if query and key
    are the same tensor.

    Args:
        module: the module.
        args: positional arguments of `module.forward`.
        kwargs: keyword arguments of `module.forward`.
    """
    return _translate(module, *args, **kwargs)  # type: ignore[arg-type]


@torch.no_grad()
def _translate(
    module: torch.nn.MultiheadAttention,
    query: Float[Tensor, "*query_axes width"],
    key: Float[Tensor, "*key_axes key_width"],
    value: Float[Tensor, "*key_axes value_width"],
    key_padding_mask: Shaped[Tensor, "*batch k"] | None = None,
    need_weights: bool = True,
    attn_mask: Shaped[Tensor, "*batch_heads q k"] | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[AttentionCall, AttentionKind]:
    kind: AttentionKind = "self" if query is key else "cross"
    if query.ndim == 2:
        query, key, value = query[None], key[None], value[None]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    elif not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weights: tuple[Tensor, ...] = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    query, key, value = map(functional.linear, (query, key, value), weights, biases)
    batch, keys = query.shape[0], key.shape[1]
    if module.bias_k is not None and module.bias_v is not None:
        key, value = (
            torch.cat([x, extra.expand(batch, 1, -1)], 1) for x, extra in ((key, module.bias_k), (value, module.bias_v))
        )
    if module.add_zero_attn:
        key, value = (functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
    query, key, value = (x.reshape(*x.shape[:2], module.num_heads, -1).transpose(1, 2) for x in (query, key, value))
    mask: Mask | None = None
    score: Score = ScaledDot()
    added = key.shape[2] - keys
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.reshape(batch, module.num_heads, *attn_mask.shape[1:])
        allowed, bias = _split_mask(attn_mask[(None,) * (4 - attn_mask.ndim)], added)
        mask = _pairs_mask(allowed)
        score = score if bias is None else Biased(score, bias=bias.to(query.dtype))
    if key_padding_mask is not None:
        allowed, bias = _split_mask(key_padding_mask, added)
        mask = and_masks(mask, Keys(allowed[:, None]))
        score = score if bias is None else Biased(score, bias=bias[:, None, None].to(query.dtype))
    call = AttentionCall(
        query,
        key,
        value,
        {
            "score": score,
            "normalizer": None,
            "mask": mask,
            "positions": None,
            "kernel": None,
            "memory": linear_memory(query.nbytes + key.nbytes + value.nbytes),
        },
        module.num_heads,
    )
    return call, kind


def _split_mask(
    mask: Shaped[Tensor, "*_ keys"], added: int
) -> tuple[Bool[Tensor, "*_ all_keys"], Float[Tensor, "*_ all_keys"] | None]:
    """Return which elements of a mask of PyTorch allow a key, and the finite elements to add to the logits, if any.

    All queries may attend to the `added` further keys.
    """
    mask = functional.pad(mask, (0, added))  # with False or 0
    if mask.dtype == torch.bool:
        return ~mask, None
    allowed = mask != -torch.inf
    bias = torch.where(allowed, mask, 0)
    return allowed, bias if bool(bias.any()) else None


def _pairs_mask(allowed: Bool[Tensor, "#batch #heads q k"]) -> Mask | None:
    """Return the mask that allows the given pairs; a `Causal` mask instead of an equal array."""
    if bool(allowed.all()):
        return None
    q, k = allowed.shape[-2:]
    if q == k and bool((allowed == allowed.new_ones(q, k).tril()).all()):
        return Causal()
    return Pairs(allowed)
