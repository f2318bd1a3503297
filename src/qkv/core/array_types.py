"""Recognition of arrays by their type, without importing the array libraries."""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["library_of"]

_LIBRARIES: dict[type, str | None] = {}
"""Libraries by the types that were seen; None for types that are not arrays."""
_MAX_TYPES = 1000
"""Largest number of these types, so that types which are created again and again are not kept."""


def library_of(x: object) -> str | None:
    """Return "numpy", "torch", "jax" or "tensorflow" for arrays and NumPy scalars of these libraries, else None."""
    kind = type(x)
    try:
        return _LIBRARIES[kind]
    except KeyError:
        name = _find_library(x)
        # While TensorFlow is being imported its module exists without `Tensor`.
        if len(_LIBRARIES) < _MAX_TYPES and (name is not None or "tensorflow" not in kind.__module__):
            _LIBRARIES[kind] = name
        return name


def _find_library(x: object) -> str | None:
    if isinstance(x, (np.ndarray, np.generic)):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(x, getattr(tensorflow, "Tensor", ())):
        return "tensorflow"
    return None
