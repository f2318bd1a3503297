"""Attention layers of Keras 3 that compute attention with qkv on the TensorFlow, JAX and PyTorch backends.

    from qkv.interop.keras import Attention, AdditiveAttention, MultiHeadAttention, record_layers

The layers subclass those of Keras, with the same arguments, weights and file formats, and compute attention with
`qkv`: the output of a fully masked row is 0, returning attention scores does not change the output, and long
sequences run in memory linear in their length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes

__all__ = ["AdditiveAttention", "Attention", "MultiHeadAttention", "record_layers"]

if TYPE_CHECKING:
    from qkv.interop.keras.attention_layers import AdditiveAttention, Attention
    from qkv.interop.keras.multi_head import MultiHeadAttention
    from qkv.interop.keras.recorded_layers import record_layers

_MODULES = {
    "AdditiveAttention": "attention_layers",
    "Attention": "attention_layers",
    "MultiHeadAttention": "multi_head",
    "record_layers": "recorded_layers",
}

_LIBRARIES = dict.fromkeys(("keras", "tensorflow", "jax", "torch"), "keras")

# On first use, because Keras loads its backend, which takes seconds.
__getattr__ = lazy_attributes(
    __name__, _MODULES, libraries=dict.fromkeys(("keras", "tensorflow", "jax", "torch"), "keras")
)
