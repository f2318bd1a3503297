"""Online softmax: partial results over some of the keys, which merge in any order and any grouping.

    accumulate    m = max l           total = Σ e^(l − m)                  weighted = Σ e^(l − m) v
    merge         m = max(m₁, m₂)     total = Σᵢ totalᵢ e^(mᵢ − m)         weighted = Σᵢ weightedᵢ e^(mᵢ − m)
    finalize      output = weighted / total                                log-sum-exp = m + log total

`ExponentialSums` defines these steps once, for NumPy, PyTorch, JAX and TensorFlow; `WeightedSums` and `TopKeys` are
the partial results of normalizers without exponentials. `kernels/runtime/tile_loop.py` and the compiled loop of
`kernels/jax_loops/tiles.py` run exactly these steps through `Normalizer.accumulate` and `finalize`. These loops are
specialised, because they work in place or need less than the general step:

    kernels/tiled/softmax.py              PyTorch: in place, base-2 exponentials, no maximum where logits are bounded
    kernels/tiled/pooled_map.py           PyTorch: sums of each cell of a map, rescaled with the sums of the softmax
    kernels/numpy_blocks/accumulator.py   NumPy: any shift near the maximum, moved only before an overflow; float64
    kernels/fused/sdpa.py                 PyTorch: merges two finalized outputs by their log-sum-exp
    database/execute/accumulators.py      NumPy: float64, with a sum for the entropy of the weights

`kernels/chunked` keeps whole rows of logits and needs no online softmax. `tests/core/test_online_softmax.py` compares
each specialised loop with the steps of this module.

Source: Milakov, Gimelshein (2018), Online normalizer calculation for softmax, https://arxiv.org/abs/1805.02867.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from qkv.core.arrays import namespace, row_max, where
from qkv.core.typing import Array, Float, Int

__all__ = [
    "ExponentialSums",
    "PartialResult",
    "TopKeys",
    "WeightedSums",
    "finite_shift",
    "nonzero",
    "rescale",
    "rescale_factor",
]


class PartialResult:
    """A partial result of some queries over some of the keys."""

    def merge(self, other: Self) -> Self:
        """Return the partial result over the keys of both.

        Raises:
            TypeError: the class does not define how its results merge.
        """
        raise TypeError(f"{type(self).__name__} must define merge. Return the partial result over the keys of both.")


@dataclass(frozen=True)
class ExponentialSums(PartialResult):
    """Sums of exponentials relative to the largest logit.

    Attributes:
        maximum: m = max l; −inf where a row has no key.
        total: Σ e^(l − m); 0 where a row has no key.
        weighted: Σ e^(l − m) v.
    """

    maximum: Float[Array, "*batch q 1"]
    total: Float[Array, "*batch q 1"]
    weighted: Float[Array, "*batch q value_width"]

    @classmethod
    def accumulate(
        cls,
        logits: Float[Array, "*batch q k"],
        weighted_sum: Callable[[Float[Array, "*batch q k"]], Float[Array, "*batch q value_width"]],
    ) -> ExponentialSums:
        """Return the sums over the keys of one tile.

        Args:
            logits: logits of the tile, −inf where a key is excluded.
            weighted_sum: returns Σ e v from the exponentials e; the place of dropout and of masked values.
        """
        xp = namespace(logits)
        maximum = row_max(logits)
        exponentials = xp.exp(logits - finite_shift(maximum))
        return cls(maximum, xp.sum(exponentials, axis=-1, keepdims=True), weighted_sum(exponentials))

    def merge(self, other: ExponentialSums) -> ExponentialSums:
        """Rescale both to the larger maximum and add."""
        maximum = namespace(self.maximum).maximum(self.maximum, other.maximum)
        own, others = rescale_factor(self.maximum, maximum), rescale_factor(other.maximum, maximum)
        return ExponentialSums(
            maximum,
            self.total * own + other.total * others,
            rescale(self.weighted, own) + rescale(other.weighted, others),
        )

    def finalize(
        self, shift: Float[Array, "*batch q 1"] | None = None, extra: Array | float = 0.0
    ) -> tuple[Float[Array, "*batch q value_width"], Float[Array, "*batch q 1"]]:
        """Return the output and the total relative to `shift`; both are 0 where a row has no key.

        Args:
            shift: finite number of each row to which the sums are rescaled; None: its maximum, 0 without a key.
            extra: mass added to the total, relative to the shift, such as that of an attention sink.
        """
        shift = finite_shift(self.maximum) if shift is None else shift
        factor = rescale_factor(self.maximum, shift)
        total = self.total * factor + extra
        return rescale(self.weighted, factor) / nonzero(total), total


@dataclass(frozen=True)
class WeightedSums(PartialResult):
    """Plain sums of weights, and of values times weights.

    Attributes:
        total: Σ w.
        weighted: Σ w v.
    """

    total: Float[Array, "*batch q 1"]
    weighted: Float[Array, "*batch q value_width"]

    def merge(self, other: WeightedSums) -> WeightedSums:
        """Add."""
        return WeightedSums(self.total + other.total, self.weighted + other.weighted)


@dataclass(frozen=True)
class TopKeys(PartialResult):
    """The top k keys of each query, in descending order of rank; ties go to the lower index.

    Attributes:
        rank: number that decides, a logit or a logit plus a draw; −inf where there are fewer keys.
        index: absolute index of each key; −1 where there are fewer keys.
        logit: logit of each key.
        value: value of each key.
        size: k.
    """

    rank: Float[Array, "*batch q n"]
    index: Int[Array, "*batch q n"]
    logit: Float[Array, "*batch q n"]
    value: Float[Array, "*batch q n value_width"]
    size: int

    def merge(self, other: TopKeys) -> TopKeys:
        """Return the top k of both."""
        xp = namespace(self.rank)
        return TopKeys(
            xp.concat([self.rank, other.rank], axis=-1),
            xp.concat([self.index, other.index], axis=-1),
            xp.concat([self.logit, other.logit], axis=-1),
            xp.concat([self.value, other.value], axis=-2),
            self.size,
        ).top()

    def top(self) -> TopKeys:
        """Sort by rank and keep the first `size` keys."""
        xp = namespace(self.rank)
        # First by index, then stably by rank: equal ranks keep the lower index first. NaN comes first, so that
        # it is not lost.
        order = xp.argsort(self.index, axis=-1, stable=True)
        rank = xp.take_along_axis(self.rank, order, axis=-1)
        rank = where(xp.isnan(rank), math.inf, rank)
        by_rank = xp.argsort(rank, axis=-1, descending=True, stable=True)
        order = xp.take_along_axis(order, by_rank, axis=-1)[..., : self.size]

        index, rank, logit = (xp.take_along_axis(x, order, axis=-1) for x in (self.index, self.rank, self.logit))
        rows = xp.broadcast_to(order[..., None], (*order.shape, self.value.shape[-1]))
        return TopKeys(rank, index, logit, xp.take_along_axis(self.value, rows, axis=-2), self.size)


def finite_shift(maximum: Float[Array, "*batch q 1"]) -> Float[Array, "*batch q 1"]:
    """Return the maximum, or 0 where it is −inf: −inf − (−inf) would be NaN."""
    return where(maximum == -math.inf, 0.0, maximum)


def rescale_factor(old: Float[Array, "*batch q 1"], new: Float[Array, "*batch q 1"]) -> Float[Array, "*batch q 1"]:
    """Return e^(old − new), the factor of sums relative to `old` when they become relative to `new`.

    The factor is 1 where both are equal, also where both are −inf.
    """
    # The exponential of 0 is 1.
    return namespace(old).exp(where(old == new, 0.0, old - new))


def rescale(
    weighted: Float[Array, "*batch q value_width"], factor: Float[Array, "*batch q 1"]
) -> Float[Array, "*batch q value_width"]:
    """Return weighted · factor, where a factor of 0 leaves non-finite numbers unchanged.

    An infinite value that was read is not lost when later keys outweigh it: 0 · inf would make it NaN.
    """
    xp = namespace(weighted)
    return xp.where(factor == 0, where(xp.isfinite(weighted), 0.0, weighted), weighted * factor)


def nonzero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `x`, or 1 where it is 0: a divisor, or the argument of a logarithm."""
    return where(x == 0, 1.0, x)
