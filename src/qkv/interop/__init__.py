"""Other people's conventions, translated at the border.

record          read what a Hugging Face model attends to, while it runs
huggingface     any Hugging Face model on the engine
keras           attention layers of Keras, on the engine
onnx            the `Attention` operator of ONNX, and export of models to it
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["record"]

if TYPE_CHECKING:
    from qkv.interop.huggingface import record

_HOMES = {"record": "qkv.interop.huggingface"}


def __getattr__(name: str) -> Any:
    # Lazily: what is behind these names imports torch and transformers.
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.interop' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_HOMES[name]), name)
    return found
