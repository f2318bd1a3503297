"""Adapters that compute the attention of Hugging Face models, Keras layers, JAX modules and ONNX operators with qkv.

record          collect readouts of the attention layers of a PyTorch or Hugging Face model while it runs
scale_heads     scale or ablate attention heads of a PyTorch or Hugging Face model while it runs
huggingface     Hugging Face models whose attention qkv computes
keras           attention layers of Keras, computed by qkv
flax            attention module of Flax NNX
equinox         attention module of Equinox
onnx            the `Attention` operator of ONNX, and export of models to ONNX
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes
from qkv.interop import huggingface  # noqa: F401 -- an attribute of the package, which loads no other library

__all__ = ["record", "scale_heads"]

if TYPE_CHECKING:
    from qkv.interop.huggingface import record, scale_heads


# Imported on first use, because recording imports torch.
__getattr__ = lazy_attributes(
    __name__,
    {"record": "huggingface.recorder", "scale_heads": "huggingface.scale_heads"},
    "qkv.interop.record and scale_heads need",
    "torch",
    "torch",
)
