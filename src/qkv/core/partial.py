"""Partial results over disjoint sets of keys or rows, which can be merged in any order and grouping.

    accumulate    m = max l           total = Σ e^(l − m)                  weighted = Σ e^(l − m) v
    merge         m = max(m₁, m₂)     total = Σᵢ totalᵢ e^(mᵢ − m)         weighted = Σᵢ weightedᵢ e^(mᵢ − m)
    finalize      output = weighted / total                                log-sum-exp = m + log total

`ExponentialSums` defines these steps once, for NumPy, PyTorch, JAX and TensorFlow; `WeightedSums` and `TopKeys` are
the partial results of normalizers without exponentials, and `merge_means` merges weighted means and squared deviations.
Who computes a partial result differs:

    tiles of a call        kernels/runtime/tile_loop.py and the compiled loop of kernels/jax_loops/tiles.py
    ranks of a ring        ring/autograd.py, ring/jax_device.py
    blocks of a store      database/execute/block_scan.py, for stores, clusters and `database.partials`
    fragments of a fit     estimators/fragment_fit.py

The following loops are specialized, because they work in place or omit steps that they do not need.
`tests/core/test_partial.py` compares each of them with the steps of this module:

    kernels/tiled/softmax.py              PyTorch: in place, base-2 exponentials, no maximum where logits are bounded
    kernels/tiled/readouts.py             PyTorch: sums of each cell of a map, rescaled with the sums of the softmax
    kernels/numpy_blocks/one_pass.py      NumPy: float64, with a shift that is changed only to avoid an overflow
    kernels/fused/sdpa.py                 PyTorch: merges two finalized outputs by their log-sum-exp
    readouts/base.py                      log-sum-exps alone
    readouts/top_weights.py               weights and indices alone, later tiles lose ties
    database/execute/partial_sums.py      NumPy: adds tiles in place, with sums for the entropy and squares of weights
    core/ordering.py                      NumPy: k largest of each row alone, in place, later keys lose ties

`cache/` keeps whole rows of logits and needs no partial results.

Source: Milakov, Gimelshein (2018), Online normalizer calculation for softmax, https://arxiv.org/abs/1805.02867; Chan,
Golub, LeVeque (1983), Algorithms for computing the sample variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from qkv.core.arrays import namespace, row_max, where
from qkv.core.typing import Array, Float, Int


class PartialResult:
    """Base class of partial results, which hold the sums or keys that a kernel has accumulated for each query."""

    def merge(self, other: Self) -> Self:
        """Return the partial result over the keys of both `self` and `other`, which must be disjoint.

        Raises:
            TypeError: the class does not define `merge`.
        """
        raise TypeError(
            f"{type(self).__name__} must define merge to combine partial results over different keys. "
            "Override PartialResult.merge in the class."
        )


@dataclass(frozen=True)
class ExponentialSums(PartialResult):
    """Partial result of softmax: running maximum, sum of exponentials and weighted sum of values of each query.

    Attributes:
        maximum: m = max l; −inf for a row without a key.
        total: Σ e^(l − m); 0 for a row without a key.
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
        """Return the partial result over the keys of a tile.

        Args:
            logits: logits of the tile, −inf where a key is excluded.
            weighted_sum: function that returns Σ e v for the exponentials e, and applies dropout to them.
        """
        xp = namespace(logits)
        maximum = row_max(logits)
        exponentials = xp.exp(logits - finite_shift(maximum))
        return cls(maximum, xp.sum(exponentials, axis=-1, keepdims=True), weighted_sum(exponentials))

    @classmethod
    def of_output(
        cls, output: Float[Array, "*batch q value_width"], log_sum_exp: Float[Array, "*batch q"]
    ) -> ExponentialSums:
        """Return the partial result of which `finalize` returned the output, from the output and the log-sum-exp."""
        maximum = log_sum_exp[..., None]
        return cls(maximum, where(maximum == -math.inf, 0.0, namespace(maximum).ones_like(maximum)), output)

    def merge(self, other: ExponentialSums) -> ExponentialSums:
        maximum = namespace(self.maximum).maximum(self.maximum, other.maximum)
        own, others = rescale_factor(self.maximum, maximum), rescale_factor(other.maximum, maximum)
        return ExponentialSums(
            maximum,
            self.total * own + other.total * others,
            rescale(self.weighted, own) + rescale(other.weighted, others),
        )

    def finalize(
        self, shift: Float[Array, "*batch q 1"] | None = None, extra: Float[Array, "*#batch #q 1"] | float = 0.0
    ) -> tuple[Float[Array, "*batch q value_width"], Float[Array, "*batch q 1"]]:
        """Return the output of each query, and its sum of exponentials relative to `shift`, including `extra`.

        The output of a row without keys is 0.

        Args:
            shift: finite shift of each row to which the sums are rescaled; None: the maximum of the row.
            extra: number added to the total, relative to the shift, such as the exponential of an attention sink.
        """
        total, weighted = self.total, self.weighted
        if shift is not None:
            factor = rescale_factor(self.maximum, shift)
            total, weighted = total * factor, rescale(weighted, factor)
        total = total + extra
        return weighted / nonzero(total), total


@dataclass(frozen=True)
class WeightedSums(PartialResult):
    """Partial result of normalizers without exponentials: sum of weights and weighted sum of values of each query.

    Attributes:
        total: Σ w.
        weighted: Σ w v.
    """

    total: Float[Array, "*batch q 1"]
    weighted: Float[Array, "*batch q value_width"]

    def merge(self, other: WeightedSums) -> WeightedSums:
        return WeightedSums(self.total + other.total, self.weighted + other.weighted)


@dataclass(frozen=True)
class TopKeys(PartialResult):
    """Partial result that holds the k keys of highest rank for each query, in descending order of rank.

    Ties go to the lower index.

    Attributes:
        rank: number by which keys are ordered, a logit or a logit plus random noise; −inf if there are fewer keys.
        index: absolute index of each key; −1 if there are fewer keys.
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
        xp = namespace(self.rank)
        return TopKeys(
            xp.concat([self.rank, other.rank], axis=-1),
            xp.concat([self.index, other.index], axis=-1),
            xp.concat([self.logit, other.logit], axis=-1),
            xp.concat([self.value, other.value], axis=-2),
            self.size,
        ).top()

    def top(self) -> TopKeys:
        """Return the partial result with its keys sorted by descending rank and restricted to the first `size`."""
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
    """Return `maximum` with 0 in place of −inf, because −inf − (−inf) would be NaN."""
    return where(maximum == -math.inf, 0.0, maximum)


def rescale_factor(old: Float[Array, "*shape"], new: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return e^(old − new), by which sums of exponentials are multiplied to change their shift to `new`.

    The factor is 1 where `old` equals `new`, including where both are −inf.
    """
    # The exponential of 0 is 1.
    return namespace(old).exp(where(old == new, 0.0, old - new))


def rescale(
    weighted: Float[Array, "*batch q value_width"], factor: Float[Array, "*batch q 1"]
) -> Float[Array, "*batch q value_width"]:
    """Return `weighted * factor`, in which non-finite elements are unchanged where the factor is 0.

    An infinite weighted sum therefore stays infinite if later keys have much larger logits; 0 · inf would be NaN.
    """
    xp = namespace(weighted)
    return xp.where(factor == 0, where(xp.isfinite(weighted), 0.0, weighted), weighted * factor)


def nonzero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `x` with zeros replaced by 1, for use as a divisor or as the argument of a logarithm."""
    return where(x == 0, 1.0, x)


def merge_means(
    mass: Float[Array, "*batch 1"],
    mean: Float[Array, "*batch width"],
    other_mass: Float[Array, "*batch 1"],
    other_mean: Float[Array, "*batch width"],
) -> tuple[Float[Array, "*batch width"], Float[Array, "*batch width"], Float[Array, "*batch 1"]]:
    """Return the weighted mean over the rows of two parts, the difference δ of their means, and a weight w.

    Products of deviations from the means, such as the squared deviations, merge as

        products = products₁ + products₂ + w δ δᵀ          w = mass₁ mass₂ / (mass₁ + mass₂)

    so that no digits are lost where the values of a part are small relative to those of the other. A part whose mass is
    not positive does not contribute; δ and w are then 0.

    Args:
        mass: total weight of one part.
        mean: weighted mean of one part.
        other_mass: total weight of the other part.
        other_mean: weighted mean of the other part.
    """
    xp = namespace(mean)
    # `xp.where`, as `where` takes longer than all other steps for the few numbers of a query.
    both = (mass > 0) & (other_mass > 0)
    total = xp.where(both, mass + other_mass, 1.0)
    share = other_mass / total
    difference = xp.where(both, other_mean - mean, 0.0)
    # Relative to the heavier part, so that a row with all the weight gives its value to the last bit.
    near_other = other_mean - difference * (mass / total)
    merged = xp.where(other_mass >= mass, near_other, mean + difference * share)
    return merged, difference, xp.where(both, mass * share, 0.0)
