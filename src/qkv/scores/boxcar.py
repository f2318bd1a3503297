"""Boxcar kernel of the distance: all keys within the bandwidth count alike, none beyond.

    logit(q, k) = 0 where ‖q − k‖ ≤ h, −inf elsewhere

See `qkv.scores.distance` for what the kernels share and the source.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, namespace
from qkv.scores.distance import DistanceKernel, log_inside

__all__ = ["Boxcar"]


@dataclass(frozen=True, eq=False)
class Boxcar(DistanceKernel):
    """0 within the bandwidth, −inf beyond.

    Args:
        bandwidth: h > 0, in the unit of the keys: a number, or one per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.

    Example:
        >>> import numpy as np
        >>> Boxcar(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[  0.,   0., -inf]])
    """

    def log_kernel(self, square: Array) -> Array:
        """K = 1 where u ≤ 1"""
        return log_inside(square <= 1, namespace(square).ones_like(square))
