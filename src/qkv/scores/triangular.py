"""Triangular kernel of the distance: counts fall in a straight line to the bandwidth.

    logit(q, k) = log(1 − ‖q − k‖ / h) where ‖q − k‖ < h, −inf elsewhere

See `qkv.scores.distance` for what the kernels share and the source.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.scores.distance import DistanceKernel, log_inside, root

__all__ = ["Triangular"]


@dataclass(frozen=True, eq=False)
class Triangular(DistanceKernel):
    """Logarithm of one minus the distance over the bandwidth.

    Args:
        bandwidth: h > 0, in the unit of the keys: a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.

    Example:
        >>> import numpy as np
        >>> Triangular(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[ 0.   , -0.693,   -inf]])
    """

    def log_kernel(self, square: Array) -> Array:
        """K = 1 − u where u < 1"""
        return log_inside(square < 1, 1 - root(square))
