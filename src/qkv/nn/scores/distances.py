"""Kernels of the distance with a learned bandwidth, kept positive as its logarithm.

`Boxcar` is not among them: its logits are 0 or −inf, and no gradient tells its bandwidth where to go.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv import scores
from qkv.nn.scores.base import LearnedScore

__all__ = ["Epanechnikov", "Gaussian", "Laplace", "Triangular"]


class _Kernel(LearnedScore):
    portable: ClassVar[Callable[[Tensor], scores.Score]]
    """The score of a bandwidth."""

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        bandwidth: float | None = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.start = self.positive("bandwidth", bandwidth, self.usual())
        self.log_bandwidth = self.parameter()
        self.reset_parameters()

    @abstractmethod
    def usual(self) -> float:
        """The bandwidth to start from where none is given."""

    def forward(self) -> scores.Score:
        """The score."""
        return type(self).portable(self.log_bandwidth.exp())

    def reset_parameters(self) -> None:
        """The logarithm of the bandwidth to start from."""
        torch.nn.init.constant_(self.log_bandwidth, math.log(self.start))


class _Compact(_Kernel):
    """A kernel that ends at h."""

    def usual(self) -> float:
        """2 √(2 width)"""
        return 2 * math.sqrt(2 * self.query_width)


class Gaussian(_Kernel):
    """`scores.Gaussian` with a learned bandwidth.

    Start: h = width^(1/4), so that −‖q − k‖²/2h² is the <q, k>/√width of `ScaledDot` less a term of each side
    alone.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.
        bandwidth: to start from; None: as above.

    Example:
        >>> Gaussian(16)().bandwidth.item()
        2.0
    """

    portable = scores.Gaussian

    def usual(self) -> float:
        """width^(1/4)"""
        return float(self.query_width**0.25)


class Laplace(_Kernel):
    """`scores.Laplace` with a learned bandwidth.

    Start: h = 1: distances of unit-variance vectors vary by about 1, whatever their width.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.
        bandwidth: to start from; None: as above.

    Example:
        >>> Laplace(16)().bandwidth.item()
        1.0
    """

    portable = scores.Laplace

    def usual(self) -> float:
        """1"""
        return 1.0


class Epanechnikov(_Compact):
    """`scores.Epanechnikov` with a learned bandwidth.

    Start: h = 2 √(2 width), twice the usual distance of unit-variance vectors: a kernel that ends at h needs
    keys within to learn from.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.
        bandwidth: to start from; None: as above.

    Example:
        >>> Epanechnikov(2)().bandwidth.item()
        4.0
    """

    portable = scores.Epanechnikov


class Triangular(_Compact):
    """`scores.Triangular` with a learned bandwidth.

    Start: as `Epanechnikov`.

    Args:
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; the widths are equal.
        bandwidth: to start from; None: as above.

    Example:
        >>> Triangular(2)().bandwidth.item()
        4.0
    """

    portable = scores.Triangular
