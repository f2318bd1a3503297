"""Partial sums of weights and values over some of the rows of a table, which merge in any order and grouping.

With m the largest logit of the rows, e = exp(l − m) (for normalizers without exponentials m = 0 and e is the
unnormalized weight), d = log e, and the total W = Σ e,

    total = Σ e     entropy_sum = Σ e d     square_sum = Σ e²
    averages        weighted = Σ e v        mean = Σ e v / W        squares = Σ e |v − mean|²
    votes           the sum of e for each label, and its first row

Two parts are first rescaled to the larger maximum, and then added; means and squares are merged as in
`running_aggregates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, Self, TypeAlias, TypeVar

import numpy as np

from qkv.core.partial import rescale
from qkv.core.typing import Bool, Float, Int

__all__ = ["NO_ROW", "AverageSums", "PartialSums", "ValueSums", "VoteSums", "merge_in_tree"]

NO_ROW = np.iinfo(np.int64).max
"""The first row of a label without a row of non-zero weight."""


class _Merges(Protocol):
    def merge(self, other: Self) -> Self: ...


_Mergeable = TypeVar("_Mergeable", bound=_Merges)


@dataclass(frozen=True, eq=False)
class AverageSums:
    """Weighted sums of numbers, timestamps or vectors.

    Attributes:
        weighted: `(q, width)`, Σ e v.
        mean: `(q, width)`, the weighted mean.
        squares: `(q,)`, Σ e |v − mean|².
        mass: `(q,)`, Σ e.
        negative: `(q,)`, whether a weight is negative; `mean` and `squares` are undefined then.
    """

    weighted: Float[np.ndarray, "q width"]
    mean: Float[np.ndarray, "q width"]
    squares: Float[np.ndarray, " q"]
    mass: Float[np.ndarray, " q"]
    negative: Bool[np.ndarray, " q"]

    def rescale(self, factor: Float[np.ndarray, " q"]) -> AverageSums:
        """Return the sums with all weights multiplied by a factor for each query."""
        weighted = np.asarray(rescale(self.weighted, factor[:, None]))
        return replace(self, weighted=weighted, squares=self.squares * factor, mass=self.mass * factor)

    def merge(self, other: AverageSums) -> AverageSums:
        """Return the sums over the rows of both."""
        # Without rows, the width of vectors may be unknown.
        if not self.weighted.shape[1]:
            return other
        if not other.weighted.shape[1]:
            return self
        negative, mass = self.negative | other.negative, self.mass + other.mass
        own, others = self.mass > 0, other.mass > 0
        both = own & others
        with np.errstate(over="ignore", invalid="ignore"):
            divisor = np.where(both, mass, 1.0)
            share, rest = (other.mass / divisor)[:, None], (self.mass / divisor)[:, None]
            delta = other.mean - self.mean
            # Relative to the heavier part, so that a row with all the weight gives its value to the last bit.
            heavier = (other.mass >= self.mass)[:, None]
            merged = np.where(heavier, other.mean - delta * rest, self.mean + delta * share)
            mean = np.where(both[:, None], merged, np.where(others[:, None], other.mean, self.mean))
            between = np.square(delta).sum(axis=1) * self.mass * share[:, 0]
            squares = self.squares + other.squares + np.where(both, between, 0.0)
            return AverageSums(self.weighted + other.weighted, mean, squares, mass, negative)


@dataclass(frozen=True, eq=False)
class VoteSums:
    """The sums of the weights of each label.

    Attributes:
        labels: the labels.
        votes: `(q, labels)`, the sum of e over the rows of each label.
        first: `(q, labels)`, the first row of each label with non-zero weight, or `NO_ROW`.
        negative: `(q,)`, whether a weight is negative.
    """

    labels: tuple[object, ...]
    votes: Float[np.ndarray, "q labels"]
    first: Int[np.ndarray, "q labels"]
    negative: Bool[np.ndarray, " q"]

    def rescale(self, factor: Float[np.ndarray, " q"]) -> VoteSums:
        """Return the sums with all weights multiplied by a factor for each query."""
        return replace(self, votes=self.votes * factor[:, None])

    def merge(self, other: VoteSums) -> VoteSums:
        """Return the sums over the rows of both."""
        labels = {label: index for index, label in enumerate(dict.fromkeys((*self.labels, *other.labels)))}
        votes = np.zeros((len(self.votes), len(labels)))
        first = np.full(votes.shape, NO_ROW)
        for part in (self, other):
            columns = np.array([labels[label] for label in part.labels], np.int64)
            votes[:, columns] += part.votes
            first[:, columns] = np.minimum(first[:, columns], part.first)
        return VoteSums(tuple(labels), votes, first, self.negative | other.negative)


ValueSums: TypeAlias = AverageSums | VoteSums


@dataclass(frozen=True, eq=False)
class PartialSums:
    """The sums of an accumulator for a group of queries, as arrays `(q,)` in float64.

    Attributes:
        maximum: the largest logit, −inf without rows; 0 for normalizers without exponentials.
        total, entropy_sum, square_sum: the sums of the module's equations.
        values: the sums of the values.
    """

    maximum: Float[np.ndarray, " q"]
    total: Float[np.ndarray, " q"]
    entropy_sum: Float[np.ndarray, " q"]
    square_sum: Float[np.ndarray, " q"]
    values: ValueSums

    def merge(self, other: PartialSums) -> PartialSums:
        """Return the sums over the rows of both, which must be disjoint."""
        maximum = np.maximum(self.maximum, other.maximum)  # NaN if one of them is NaN
        left, right = self._rescale(maximum), other._rescale(maximum)
        if isinstance(left.values, VoteSums):
            assert isinstance(right.values, VoteSums)
            values: ValueSums = left.values.merge(right.values)
        else:
            assert isinstance(right.values, AverageSums)
            values = left.values.merge(right.values)
        entropy_sum, square_sum = left.entropy_sum + right.entropy_sum, left.square_sum + right.square_sum
        return PartialSums(maximum, left.total + right.total, entropy_sum, square_sum, values)

    def _rescale(self, maximum: Float[np.ndarray, " q"]) -> PartialSums:
        if not (self.maximum != maximum).any():
            return self
        with np.errstate(invalid="ignore"):
            unchanged = (self.maximum == maximum) | (self.maximum == -np.inf)
            shift = np.where(unchanged, 0.0, self.maximum - maximum)
            factor = np.exp(shift)
            entropy_sum = factor * (self.entropy_sum + np.where(factor > 0, shift, 0.0) * self.total)
            square_sum = self.square_sum * np.square(factor)
        return PartialSums(maximum, self.total * factor, entropy_sum, square_sum, self.values.rescale(factor))


def merge_in_tree(parts: Sequence[_Mergeable]) -> _Mergeable:
    """Return the merge of one or more parts, neighbor by neighbor in a balanced tree.

    The result depends on the order of the parts, but not on when each of them was computed.
    """
    level = list(parts)
    while len(level) > 1:
        pairs = [level[index : index + 2] for index in range(0, len(level), 2)]
        level = [reduce(lambda left, right: left.merge(right), pair) for pair in pairs]
    return level[0]
