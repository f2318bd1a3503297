"""The dot product times a number that the model chooses: T5 takes 1, Gemma 2 a width that is not its own."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.core.tile import Tile
from qkv.scores.base import InnerProductScore

__all__ = ["Scaled"]


@dataclass(frozen=True, eq=False)
class Scaled(InnerProductScore):
    """scale · <q, k>

    Args:
        scale: what transformers calls `scaling`.

    Example:
        >>> import numpy as np
        >>> Scaled(0.5)(np.array([[2.0, 1.0]]), np.eye(2))
        array([[1. , 0.5]])
    """

    scale: float
    lifts_itself = True

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Fact: exact. The scale goes to the query."""
        return query * self.scale, key

    def factors(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array, float]:
        """Fact: the scale is one number, for the kernel to multiply by; nothing is copied."""
        return query, key, self.scale
