"""Conversion of numbers and nested sequences to NumPy arrays."""

from __future__ import annotations

import numpy as np

from qkv.core.typing import ArrayLike, Shaped
from qkv.errors import ShapeError

__all__ = ["sequence_array"]


def sequence_array(x: ArrayLike) -> Shaped[np.ndarray, "*_"]:
    """Return a number or a nested sequence as a NumPy array, in which strings are objects.

    Raises:
        ShapeError: `x` is a nested sequence whose rows differ in length.

    Example:
        >>> sequence_array([[1, 2], [3, 4]])
        array([[1, 2],
               [3, 4]])
    """
    try:
        array = np.asarray(x)
    except ValueError:
        raise ShapeError(
            "rows of nested sequences must have equal lengths, got different lengths. Pad them, and exclude the "
            "padding with masks.Lengths."
        ) from None
    return array.astype(object) if array.dtype.kind == "U" else array
