"""Namespace of array API functions for NumPy, in which each function is looked up on first use.

Functions that NumPy defines as the standard does come from NumPy, and all others from array-api-compat. That package
is imported only when needed: importing it takes as long as importing NumPy, because it reads every attribute of
NumPy, which loads the lazy submodules.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from qkv.core.typing import Int, Num

__all__ = ["OWN", "STANDARD", "NumPyFunctions", "argsort"]

OWN = frozenset(
    (
        *("abs", "all", "any", "arange", "argmax", "argmin", "asarray", "astype", "bool"),
        *("broadcast_arrays", "broadcast_to", "concat", "cos", "cumulative_sum", "e", "equal", "exp"),
        *("expand_dims", "flip", "float32", "float64", "full", "full_like", "inf", "int32", "int64"),
        *("isfinite", "isinf", "isnan", "log", "log1p", "logaddexp", "logical_and", "logical_not"),
        *("logical_or", "matmul", "matrix_transpose", "max", "maximum", "mean", "min", "minimum"),
        *("moveaxis", "nan", "newaxis", "ones", "ones_like", "permute_dims", "pi", "prod", "reshape"),
        *("result_type", "sin", "sqrt", "squeeze", "stack", "sum", "take", "take_along_axis", "tanh"),
        *("uint32", "vecdot", "where", "zeros", "zeros_like"),
    )
)
"""Names of the NumPy functions that follow the standard."""

STANDARD = "2024.12"
"""Minimum version of the standard that NumPy must declare; otherwise all functions come from array-api-compat."""


class NumPyFunctions:
    """Namespace with the array API functions for NumPy as attributes, which are looked up on first access.

    Example:
        >>> float(NumPyFunctions().exp(0.0))
        1.0
    """

    def __getattr__(self, name: str) -> Any:
        if getattr(np, "__array_api_version__", "") < STANDARD:
            found = _from_package(name)
        elif name == "argsort":
            found = argsort
        else:
            found = getattr(np, name) if name in OWN else _from_package(name)
        setattr(self, name, found)
        return found


def argsort(
    x: Num[np.ndarray, "*axes"], /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Int[np.ndarray, "*axes"]:
    """Return the indices that sort `x` along an axis; equal elements keep their order if `stable`.

    This also holds in descending order.

    Example:
        >>> argsort(np.array([1.0, 3.0, 3.0]), descending=True)
        array([1, 2, 0])
    """
    kind: Literal["stable"] | None = "stable" if stable else None
    if not descending:
        return np.argsort(x, axis=axis, kind=kind)
    reversed_order = np.flip(np.argsort(np.flip(x, axis=axis), axis=axis, kind=kind), axis=axis)
    order: np.ndarray = x.shape[axis] - 1 - reversed_order
    return order


def _from_package(name: str) -> Any:
    import array_api_compat.numpy as package

    return getattr(package, name)
