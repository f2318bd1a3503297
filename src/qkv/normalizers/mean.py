"""The normalizer `Mean`, which gives all keys of a row that are not excluded the same weight.

w_j = 1 / m          m = number of keys that are not excluded
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast
from qkv.core.typing import Array, Float
from qkv.normalizers.base import excluded
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Mean"]


@dataclass(frozen=True, eq=False)
class Mean(LinearNormalizer):
    """Normalizer that gives equal weights to all keys that are not excluded, so that the output is a mean of values.

    Example:
        >>> import numpy as np
        >>> Mean().weights(np.array([[5.0, -1.0, -np.inf]]))
        array([[0.5, 0.5, 0. ]])
    """

    shift_invariant = True
    constant: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return cast(~excluded(logits), logits.dtype)
