"""Partials: the state of an unfinished answer. They merge in any order and any grouping.

That is why tiles, disk blocks, cache splits and machines are all the same code: each makes partials, and
`merge` makes one of two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from qkv.core.arrays import Array, namespace

__all__ = ["ExponentialSums", "PartialResult", "TopKeys", "WeightedSums", "merge_all", "rescale"]


class PartialResult:
    """An unfinished answer for some queries over some of the keys."""

    def merge(self, other: Self) -> Self:
        """The partial over the keys of both."""
        raise TypeError(f"{type(self).__name__} does not say how it merges.")


@dataclass(frozen=True)
class ExponentialSums(PartialResult):
    """Sums of exponentials, relative to the largest logit seen.

    maximum `(*batch, q, 1)`: m = max l · total `(*batch, q, 1)`: Σ e^(l−m) · weighted
    `(*batch, q, value_width)`: Σ e^(l−m) v. A row that has met no key has maximum −inf and total 0.
    """

    maximum: Array
    total: Array
    weighted: Array

    def merge(self, other: ExponentialSums) -> ExponentialSums:
        """Rescale both to the larger maximum and add."""
        xp = namespace(self.maximum)
        maximum = xp.maximum(self.maximum, other.maximum)
        mine, theirs = _rescale(self.maximum, maximum), _rescale(other.maximum, maximum)
        return ExponentialSums(
            maximum,
            self.total * mine + other.total * theirs,
            rescale(self.weighted, mine) + rescale(other.weighted, theirs),
        )


def _rescale(old: Array, new: Array) -> Array:
    xp = namespace(old)
    # −inf − (−inf) would be NaN: a row without keys is scaled by 0.
    return xp.where(old == new, xp.ones_like(old), xp.exp(xp.where(old == new, xp.zeros_like(old), old - new)))


def rescale(weighted: Array, scale: Array) -> Array:
    """weighted · scale, where a scale of 0 leaves what is not finite as it is."""
    xp = namespace(weighted)
    # An infinite value that was read stays itself although later keys outweigh it: 0 · inf would make it NaN.
    return xp.where(scale == 0, xp.where(xp.isfinite(weighted), xp.zeros_like(weighted), weighted), weighted * scale)


@dataclass(frozen=True)
class WeightedSums(PartialResult):
    """Plain sums. total `(*batch, q, 1)` · weighted `(*batch, q, value_width)`."""

    total: Array
    weighted: Array

    def merge(self, other: WeightedSums) -> WeightedSums:
        """Add."""
        return WeightedSums(self.total + other.total, self.weighted + other.weighted)


@dataclass(frozen=True)
class TopKeys(PartialResult):
    """The n best keys so far: rank `(*batch, q, n)`, their absolute index, their logit and their value.

    rank decides (it is the logit, or the logit plus a draw); ties go to the lower index. Places not filled
    have rank −inf and index −1.
    """

    rank: Array
    index: Array
    logit: Array
    value: Array
    size: int

    def merge(self, other: TopKeys) -> TopKeys:
        """Put both together and keep the best."""
        xp = namespace(self.rank)
        return TopKeys(
            xp.concat([self.rank, other.rank], axis=-1),
            xp.concat([self.index, other.index], axis=-1),
            xp.concat([self.logit, other.logit], axis=-1),
            xp.concat([self.value, other.value], axis=-2),
            self.size,
        ).best()

    def best(self) -> TopKeys:
        """The `size` best of these, in order."""
        xp = namespace(self.rank)
        # First by index, then stably by rank: so equal ranks keep the lower index first. NaN goes first, to
        # be seen.
        order = xp.argsort(self.index, axis=-1, stable=True)
        rank = xp.take_along_axis(self.rank, order, axis=-1)
        rank = xp.where(xp.isnan(rank), xp.zeros_like(rank) + xp.inf, rank)
        by_rank = xp.argsort(rank, axis=-1, descending=True, stable=True)
        order = xp.take_along_axis(order, by_rank, axis=-1)[..., : self.size]

        def pick(x: Array) -> Array:
            return xp.take_along_axis(x, order, axis=-1)

        rows = xp.broadcast_to(order[..., None], (*order.shape, self.value.shape[-1]))
        value = xp.take_along_axis(self.value, rows, axis=-2)
        return TopKeys(pick(self.rank), pick(self.index), pick(self.logit), value, self.size)


def merge_all(partials: Iterable[PartialResult]) -> PartialResult:
    """Merge as a balanced tree, so that rounding grows with the logarithm of their number."""
    queue = list(partials)
    while len(queue) > 1:
        pairs = zip(queue[::2], queue[1::2], strict=False)
        queue = [a.merge(b) for a, b in pairs] + ([queue[-1]] if len(queue) % 2 else [])
    return queue[0]
