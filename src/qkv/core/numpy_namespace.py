"""The array API functions for NumPy, each loaded when it is first asked for.

NumPy states that it follows the standard; what it has under the standard's name and meaning is taken from it.
The rest comes from array-api-compat. Importing that package takes as long as NumPy itself: it looks at all
that NumPy has, and so imports its Fortran tools, which load when they are looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
"""What NumPy has as the standard wants it."""

STANDARD = "2024.12"
"""The standard that NumPy must state for that; array-api-compat gives all where it states less."""


class NumPyFunctions:
    """A namespace: `NumPyFunctions().exp` is the function of the standard.

    Example:
        >>> float(NumPyFunctions().exp(0.0))
        1.0
    """

    def __getattr__(self, name: str) -> Any:
        """Looked up once, and kept."""
        if getattr(np, "__array_api_version__", "") < STANDARD:
            found = _from_package(name)
        elif name == "argsort":
            found = argsort
        else:
            found = getattr(np, name) if name in OWN else _from_package(name)
        setattr(self, name, found)
        return found


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Positions in order, the first of equal ones first. NumPy knows no descending order.

    Example:
        >>> argsort(np.array([1.0, 3.0, 3.0]), descending=True)
        array([1, 2, 0])
    """
    kind: Any = "stable" if stable else None
    if not descending:
        return np.argsort(x, axis=axis, kind=kind)
    turned = np.flip(np.argsort(np.flip(x, axis=axis), axis=axis, kind=kind), axis=axis)
    return x.shape[axis] - 1 - turned


def _from_package(name: str) -> Any:
    import array_api_compat.numpy as package

    return getattr(package, name)
