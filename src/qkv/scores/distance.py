"""What the kernels of the distance share: differences taken one by one, so that near is exactly near.

    u = ‖q − k‖ / h          logit = log K(u)

Softmax over log K is the Nadaraya–Watson estimate with kernel K; outside a compact kernel the logit is −inf.
Source: Hastie, Tibshirani, Friedman (2009), The elements of statistical learning, section 6.1.
"""

from abc import abstractmethod
from dataclasses import dataclass

from qkv.core.arrays import Array, asarray_like, namespace
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.scores.base import GeneralScore

__all__ = ["DistanceKernel", "log_inside", "root"]


@dataclass(frozen=True, eq=False)
class DistanceKernel(GeneralScore):
    """Logarithm of a kernel of the distance over a bandwidth."""

    bandwidth: Array | float = array_field(default=1.0)

    def validate(self) -> None:
        """h is positive."""
        require_number(type(self).__name__, "bandwidth", self.bandwidth, lambda h: h > 0, "a positive number")

    def compare(self, query: Array, key: Array) -> Array:
        """log K(‖q − k‖ / h)"""
        xp = namespace(query)
        # Not ‖q‖² − 2<q,k> + ‖k‖²: that loses half the digits where q is near k, and a root takes half of the
        # rest.
        difference = (query[..., :, None, :] - key[..., None, :, :]) / _wide(self.bandwidth)
        return self.log_kernel(xp.sum(difference * difference, axis=-1))

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: a difference, a quotient, a square and a sum for each unit of width."""
        return 4 * max(query_width, key_width) + 10

    @abstractmethod
    def log_kernel(self, square: Array) -> Array:
        """log K from u²."""


def _wide(bandwidth: Array | float) -> Array | float:
    wide = expand_to_pairs(bandwidth)
    return wide[..., None] if wide is not bandwidth else bandwidth


def log_inside(inside: Array, kernel: Array) -> Array:
    """log of the kernel where inside, −inf elsewhere, with gradient 0 there."""
    xp = namespace(kernel)
    # The kernel is replaced before the logarithm: a gradient through log 0 would be NaN even where it is not
    # chosen.
    return xp.where(
        inside, xp.log(xp.where(inside, kernel, xp.ones_like(kernel))), asarray_like(kernel, -xp.inf, kernel.dtype)
    )


def root(square: Array) -> Array:
    """Square root whose gradient at 0 is 0, as it is for a distance in the mean over directions."""
    xp = namespace(square)
    zero = square == 0
    return xp.where(zero, xp.zeros_like(square), xp.sqrt(xp.where(zero, xp.ones_like(square), square)))
