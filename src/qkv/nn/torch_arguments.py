"""What to pass to the modules instead of the arguments of `torch.nn.MultiheadAttention` and `torch.nn.Transformer`."""

from __future__ import annotations

from typing import TypeVar

import torch

from qkv.core.torch_names import explain_torch_names

__all__ = ["explain_torch_arguments"]

M = TypeVar("M", bound=type[torch.nn.Module])

_OPTIONS = {
    "embed_dim": "width",
    "d_model": "width",
    "num_heads": "heads",
    "nhead": "heads",
    "kdim": "key_width",
    "vdim": "value_width",
    "add_bias_kv": 'extensions=["learned_key"]',
    "add_zero_attn": 'extensions=["zero_key"]',
    "dim_feedforward": "hidden",
    "layer_norm_eps": "epsilon",
    "norm_first": 'norm="pre" or norm="post"',
    "num_layers": "layers",
    "num_encoder_layers": "layers",
    "num_decoder_layers": "layers",
}
"""Argument of this library by the name of PyTorch's argument."""

_CONSTRUCTOR = {
    name: f"Pass {mine} instead, or convert a module of PyTorch with from_torch." for name, mine in _OPTIONS.items()
} | {
    "batch_first": "Leave it out: the layout is always (batch, length, width), also of modules from from_torch.",
    "encoder_layer": "Pass the options of the layers instead, or convert a module of PyTorch with from_torch.",
    "decoder_layer": "Pass the options of the layers instead, or convert a module of PyTorch with from_torch.",
}

_MASKS = (
    "attn_mask", "key_padding_mask", "src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask",
    "tgt_key_padding_mask", "memory_key_padding_mask",
)  # fmt: skip
_CAUSAL = ("is_causal", "src_is_causal", "tgt_is_causal", "memory_is_causal")
_FORWARD = (
    dict.fromkeys(
        _MASKS, "Pass a mask of qkv.masks: nn.torch_masks translates PyTorch's masks, in which True excludes a pair."
    )
    | dict.fromkeys(_CAUSAL, "Pass mask=masks.Causal() instead.")
    | {
        "need_weights": "Pass readouts=[readouts.Dense()] to read the weights.",
        "average_attn_weights": "Pass readouts=[readouts.Dense()] to read the weights of each head.",
    }
)


def explain_torch_arguments(module: M) -> M:
    """Class decorator of modules whose constructor and call refuse PyTorch's argument names, with what to pass instead.

    Only methods that the class itself defines are changed.
    """
    for name, remedies in (("__init__", _CONSTRUCTOR), ("forward", _FORWARD)):
        if name in vars(module):
            setattr(module, name, explain_torch_names(remedies)(vars(module)[name]))
    return module
