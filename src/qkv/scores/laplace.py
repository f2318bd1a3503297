"""Laplace kernel of the distance: near keys count, far keys fade exponentially.

    logit(q, k) = −‖q − k‖ / h

See `qkv.scores.distance` for what the kernels share and the source.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.scores.distance import DistanceKernel, root

__all__ = ["Laplace"]


@dataclass(frozen=True, eq=False)
class Laplace(DistanceKernel):
    """Minus the distance over the bandwidth.

    Args:
        bandwidth: h > 0, in the unit of the keys: a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.

    Example:
        >>> import numpy as np
        >>> Laplace(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[-0. , -0.5, -1.5]])
    """

    def log_kernel(self, square: Array) -> Array:
        """log K = −u"""
        return -root(square)
