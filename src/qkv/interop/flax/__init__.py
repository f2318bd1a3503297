"""Attention module of Flax NNX that computes attention with qkv, with any score, normalizer and mask.

from qkv.interop.flax import MultiHeadAttention, record_modules
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes, missing_package

__all__ = ["MultiHeadAttention", "record_modules"]

if TYPE_CHECKING:
    from qkv.interop.flax.multi_head import MultiHeadAttention
    from qkv.interop.flax.recorded_modules import record_modules

_load = lazy_attributes(
    __name__, {"MultiHeadAttention": "multi_head", "record_modules": "recorded_modules"}
)  # on first use, because the libraries are optional


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("flax", "jax"):
            raise missing_package(f"{name} of qkv.interop.flax needs", error.name, "flax") from None
        raise
