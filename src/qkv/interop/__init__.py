"""Adapters to other libraries: Hugging Face models, Keras layers and ONNX operators on the engine.

record          record what a Hugging Face model attends to while it runs
huggingface     run Hugging Face models on the engine
keras           attention layers of Keras on the engine
onnx            the `Attention` operator of ONNX, and export of models to ONNX
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.interop import huggingface

__all__ = ["record"]

if TYPE_CHECKING:
    from qkv.interop.huggingface import record


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(huggingface, name)  # on first use, because recording imports torch and transformers
