"""What to pass to `qkv.attend` instead of the arguments of PyTorch's attention function and modules."""

from __future__ import annotations

from qkv.core.torch_names import explain_torch_names

__all__ = ["explain_attend_arguments"]

explain_attend_arguments = explain_torch_names(
    {
        "attn_mask": "Pass mask=masks.Pairs(attn_mask) for booleans, where True allows a pair, or "
        "score=scores.Biased(scores.ScaledDot(), attn_mask) for numbers.",
        "is_causal": "Pass mask=masks.Causal() instead.",
        "dropout_p": "Pass dropout instead.",
        "scale": "Pass score=scores.ScaledDot() for the scale 1/√width, or scores.Dot() with a temperature in "
        "normalizer=normalizers.Softmax(temperature).",
        "enable_gqa": "Pass queries of shape (*batch, key_heads, group, q, width) and keys of shape "
        "(*batch, key_heads, 1, k, width), or use nn.MultiHeadAttention(key_heads=...).",
        "key_padding_mask": "Pass mask=masks.Keys(~key_padding_mask), or nn.torch_masks for modules of qkv.nn.",
        "need_weights": "Call qkv.observe with readouts=[readouts.Dense()] to read the weights.",
    }
)
"""Decorator of the functions that run a call, which explains PyTorch's argument names."""
