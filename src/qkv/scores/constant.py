"""Constant score: every key is as good as any other.

    logit(q, k) = 0

Softmax over it is average pooling: the output is the mean of the values (mission A8).
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, namespace
from qkv.scores.base import GeneralScore

__all__ = ["Constant"]


@dataclass(frozen=True, eq=False)
class Constant(GeneralScore):
    """Zero for every pair; the widths may differ.

    Shapes:
        query `(*batch, q, query_width)`, key `(*batch, k, key_width)` -> logits `(*batch, q, k)`

    Example:
        >>> import numpy as np
        >>> Constant()(np.ones((1, 3)), np.ones((2, 5)))
        array([[0., 0.]])
    """

    constant = True

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Any widths will do: they are not compared."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: the zeros."""
        return 1

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: none to speak of."""
        return 1

    def compare(self, query: Array, key: Array) -> Array:
        """0"""
        xp = namespace(query)
        # From fresh zeros, not 0 · q: what is not compared must not bring NaN along.
        return xp.sum(xp.zeros_like(query), axis=-1)[..., :, None] + xp.sum(xp.zeros_like(key), axis=-1)[..., None, :]
