"""Scores that are logarithms of kernels of the distance: Laplace, Boxcar, Epanechnikov and Triangular.

    u = ‖q − k‖ / h          logit = log K(u)

With softmax this is the Nadaraya–Watson estimator with kernel K. Where the kernel is 0, the logit is −inf.
Source: Hastie, Tibshirani, Friedman (2009), The elements of statistical learning, section 6.1.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from qkv.core.arrays import namespace, where
from qkv.core.distances import distances, range_power
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.typing import Array, Bool, Num
from qkv.scores.base import GeneralScore
from qkv.scores.forms import Distance, Form, SavedArrays

__all__ = ["Boxcar", "Epanechnikov", "Laplace", "Triangular"]


@dataclass(frozen=True, eq=False)
class DistanceKernel(GeneralScore):
    """Base class of scores log K(distance / bandwidth), with a kernel K that subclasses define in `log_kernel`.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.
    """

    bandwidth: Array | float = array_field(default=1.0)

    def validate(self) -> None:
        require_number(type(self).__name__, "bandwidth", self.bandwidth, lambda h: h > 0, "a positive number")

    # Autograd saves the distance, the kernel, its logarithm and where the kernel is 0.
    form = Distance(saved=SavedArrays(logits=3.25))

    def compare(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
    ) -> Num[Array, "*#batch q k"]:
        """Return log K(‖q − k‖ / h) for each pair of a query q and a key k, with bandwidth h."""
        if isinstance(h := self.bandwidth, (int, float)) and (power := range_power(h)) != 1:
            query, key, h = query * power, key * power, h * power
        return self.log_kernel(distances(query, key) / expand_to_pairs(h))

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return 3 operations per feature (difference, square and sum) plus 12 for the root and the kernel."""
        return 3 * max(query_width, key_width) + 12

    @abstractmethod
    def log_kernel(self, u: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
        """Return log K(u) for each element u, a distance divided by the bandwidth."""


@dataclass(frozen=True, eq=False)
class Laplace(DistanceKernel):
    """Laplace kernel K(u) = exp(−u): the logit is the negative distance divided by the bandwidth.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.

    Example:
        >>> import numpy as np
        >>> Laplace(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[-0. , -0.5, -1.5]])
    """

    @property
    def form(self) -> Form:  # type: ignore[override]
        slope = 1 / h if isinstance(h := self.bandwidth, (int, float)) and range_power(h) == 1 else None
        return Distance(slope, saved=SavedArrays(logits=1.0))

    def radius(self, exponent: float) -> float:
        """Return h times `exponent`, the distance at which the logit is −`exponent`; infinity if h is an array."""
        return self.bandwidth * exponent if isinstance(self.bandwidth, int | float) else math.inf

    def log_kernel(self, u: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
        return -u


class CompactKernel(DistanceKernel):
    """Base class of kernels that are 0 beyond the bandwidth."""

    def radius(self, exponent: float) -> float:
        """Return h, the distance beyond which the logit is −inf; infinity if h is an array."""
        return self.bandwidth if isinstance(self.bandwidth, int | float) else math.inf


@dataclass(frozen=True, eq=False)
class Boxcar(CompactKernel):
    """Boxcar kernel: the logit is 0 if the distance is at most the bandwidth, otherwise −inf.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.

    Example:
        >>> import numpy as np
        >>> Boxcar(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[  0.,   0., -inf]])
    """

    def log_kernel(self, u: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
        return _log_where(u > 1, 1 + 0 * u)


@dataclass(frozen=True, eq=False)
class Epanechnikov(CompactKernel):
    """Epanechnikov kernel: with u = distance / bandwidth, the logit is log(1 − u²) if u < 1, otherwise −inf.

    The constant factor 3/4 of the kernel is omitted, because it cancels in the weights.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.

    Example:
        >>> import numpy as np
        >>> Epanechnikov(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[ 0.   , -0.288,   -inf]])
    """

    def log_kernel(self, u: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
        return _log_where(u >= 1, 1 - u * u)


@dataclass(frozen=True, eq=False)
class Triangular(CompactKernel):
    """Triangular kernel: with u = distance / bandwidth, the logit is log(1 − u) if u < 1, otherwise −inf.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.

    Example:
        >>> import numpy as np
        >>> Triangular(2.0)(np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])).round(3)
        array([[ 0.   , -0.693,   -inf]])
    """

    def log_kernel(self, u: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
        return _log_where(u >= 1, 1 - u)


def _log_where(outside: Bool[Array, "*batch q k"], kernel: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
    """Return the logarithm of a kernel, and −inf outside of its support. A distance of NaN is not outside."""
    # Replace the kernel before the logarithm: the gradient of log 0 is NaN even where it is not selected.
    logs = namespace(kernel).log(where(outside, 1.0, kernel))
    return where(outside, -math.inf, logs)
