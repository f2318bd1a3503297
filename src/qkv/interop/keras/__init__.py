"""Attention layers of Keras 3 on the engine, for the TensorFlow, JAX and PyTorch backends.

    from qkv.interop.keras import Attention, AdditiveAttention, MultiHeadAttention

They are Keras' own layers, with the same arguments, weights and files, and compute by `qkv`: a row without
keys is 0, asking for scores changes nothing, and lengths that fit no array of pairs run in linear memory (on
JAX and PyTorch).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["AdditiveAttention", "Attention", "MultiHeadAttention"]

if TYPE_CHECKING:
    from qkv.interop.keras.attention_layers import AdditiveAttention, Attention
    from qkv.interop.keras.multi_head import MultiHeadAttention

_HOMES = {
    "AdditiveAttention": "qkv.interop.keras.attention_layers",
    "Attention": "qkv.interop.keras.attention_layers",
    "MultiHeadAttention": "qkv.interop.keras.multi_head",
}


def __getattr__(name: str) -> Any:
    # Lazily: Keras loads its backend, which takes seconds.
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.interop.keras' has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("keras", "tensorflow", "jax", "torch"):
            from qkv.errors import MissingPackageError

            raise MissingPackageError(
                f'{name} wants Keras and its backend; there is no {error.name}. Run: pip install "qkv[keras]"'
            ) from None
        raise
    globals()[name] = found = getattr(module, name)
    return found
