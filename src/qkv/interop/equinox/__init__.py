"""Attention module of Equinox that computes attention with qkv, with any score, normalizer and mask.

from qkv.interop.equinox import MultiHeadAttention
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes

__all__ = ["MultiHeadAttention"]

if TYPE_CHECKING:
    from qkv.interop.equinox.multi_head import MultiHeadAttention

# On first use, because the libraries are optional.
__getattr__ = lazy_attributes(
    __name__, {"MultiHeadAttention": "multi_head"}, libraries=dict.fromkeys(("equinox", "jax"), "jax-nn")
)
