"""Attention module of Flax NNX that computes attention with qkv, with any score, normalizer and mask.

from qkv.interop.flax import MultiHeadAttention, record_modules
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes

__all__ = ["MultiHeadAttention", "record_modules"]

if TYPE_CHECKING:
    from qkv.interop.flax.multi_head import MultiHeadAttention
    from qkv.interop.flax.recorded_modules import record_modules

# On first use, because the libraries are optional.
__getattr__ = lazy_attributes(
    __name__,
    {"MultiHeadAttention": "multi_head", "record_modules": "recorded_modules"},
    libraries=dict.fromkeys(("flax", "jax"), "jax-nn"),
)
