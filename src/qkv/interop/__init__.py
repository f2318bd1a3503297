"""Adapters to other libraries: Hugging Face models, Keras layers and ONNX operators on the engine.

record          record what a Hugging Face model attends to while it runs
huggingface     run Hugging Face models on the engine
keras           attention layers of Keras on the engine
onnx            the `Attention` operator of ONNX, and export of models to ONNX
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes
from qkv.interop import huggingface  # noqa: F401 -- an attribute of the package, which loads no other library

__all__ = ["record"]

if TYPE_CHECKING:
    from qkv.interop.huggingface import record


# On first use, because recording imports torch and transformers.
__getattr__ = lazy_attributes(__name__, {"record": "huggingface"})
