"""Epanechnikov kernel of the distance: a parabola that ends at the bandwidth.

    logit(q, k) = log(1 − ‖q − k‖² / h²) where ‖q − k‖ < h, −inf elsewhere

See `qkv.scores.distance` for what the kernels share and the source.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.scores.distance import DistanceKernel, log_inside

__all__ = ["Epanechnikov"]


@dataclass(frozen=True, eq=False)
class Epanechnikov(DistanceKernel):
    """Logarithm of one minus the squared distance over the squared bandwidth.

    Args:
        bandwidth: h > 0, in the unit of the keys: a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.

    Example:
        >>> import numpy as np
        >>> Epanechnikov(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[ 0.   , -0.288,   -inf]])
    """

    def log_kernel(self, square: Array) -> Array:
        """K = 1 − u² where u < 1; the usual factor 3/4 cancels in the weights"""
        return log_inside(square < 1, 1 - square)
