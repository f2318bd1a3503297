"""Partial sums of weights and values over some of the rows of a table, to which tiles are added, and which merge.

With m the largest logit of the rows, e = exp(l − m) (for normalizers without exponentials m = 0 and e is the
unnormalized weight), d = log e, and the total W = Σ e,

    total = Σ e     entropy_sum = Σ e d     square_sum = Σ e²
    averages        weighted = Σ e v        mean = Σ e v / W        squares = Σ e |v − mean|²
    votes           the sum of e for each label, and its first row

all in float64. The entropy of the weights is log W − entropy_sum / W, and their sum of squares is square_sum / W². Two
parts are first rescaled to the larger maximum, and then added; means and squares are merged by `core.partial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol, Self, TypeVar

import numpy as np

from qkv.core.ordering import RunningTopK
from qkv.core.partial import ExponentialSums, WeightedSums, rescale_factor
from qkv.core.tile import Tile
from qkv.core.typing import Float, Num
from qkv.database.execute.aggregates import Aggregate, ValueSums
from qkv.encoders.columns import Column
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.linear import LinearNormalizer

# Smaller exponents give denormal results, which are slow to compute.
_SMALLEST_EXPONENT = {"float32": -87.0, "float64": -700.0}

_Finalized = tuple[Summary, list[Aggregate], Float[np.ndarray, " q"] | None, Float[np.ndarray, " q"] | None]


class Mergeable(Protocol):
    """A partial result, which merges with those of other rows."""

    def merge(self, other: Self) -> Self:
        """Return the result over the rows of both."""


_Mergeable = TypeVar("_Mergeable", bound=Mergeable)


@dataclass(eq=False)
class PartialSums:
    """The sums over some rows for a group of queries, as arrays `(q,)` in float64.

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

    def rescale(self, maximum: Float[np.ndarray, " q"]) -> PartialSums:
        """Return the sums relative to another maximum, which is not smaller."""
        if not (self.maximum != maximum).any():
            return self
        with np.errstate(invalid="ignore", over="ignore"):
            factor = np.asarray(rescale_factor(self.maximum, maximum))
            # A sum that vanishes adds no entropy, however far away its maximum is.
            shift = np.where((factor > 0) & (self.maximum != maximum), self.maximum - maximum, 0.0)
            entropy_sum = factor * (self.entropy_sum + shift * self.total)
            square_sum = self.square_sum * np.square(factor)
        return PartialSums(maximum, self.total * factor, entropy_sum, square_sum, self.values.rescale(factor))

    def merge(self, other: PartialSums) -> PartialSums:
        """Return the sums over the rows of both, which must be disjoint."""
        maximum = np.maximum(self.maximum, other.maximum)  # NaN if one of them is NaN
        left, right = self.rescale(maximum), other.rescale(maximum)
        entropy_sum, square_sum = left.entropy_sum + right.entropy_sum, left.square_sum + right.square_sum
        values = left.values.merge(right.values)
        return PartialSums(maximum, left.total + right.total, entropy_sum, square_sum, values)

    def finalize(self, normalizer: Normalizer, like: Column) -> _Finalized:
        """Return the summary and the aggregate of each query, exp(entropy) of the weights, and 1 / Σ w².

        The last two are None if the weights do not sum to 1. 1 / Σ w² is NaN if a weight is negative.
        """
        total = self.total[:, None]
        ones, tile = np.ones_like(total), Tile.whole(len(total), 0)
        exponential = normalizer.log_sum_exp
        sums = ExponentialSums(self.maximum[:, None], total, ones) if exponential else WeightedSums(total, ones)
        found, summary = normalizer.finalize(sums, tile, 0.0)
        scale = np.asarray(found)
        perplexity = effective = None
        if normalizer.sums_to_one:
            divisor = np.where(self.total > 0, self.total, 1.0)
            perplexity = np.asarray(np.exp(np.log(divisor) - self.entropy_sum / divisor))
            squares = np.where(self.square_sum > 0, self.square_sum, np.nan)
            effective = np.asarray(np.square(divisor) / squares)
        return summary, self.values.aggregates(like, scale, total * scale), perplexity, effective


def tile_weights(
    normalizer: Normalizer, logits: Float[np.ndarray, "q rows"], summary: Summary
) -> Float[np.ndarray, "q rows"]:
    """Return the weights of rows, computed from their logits and the summary of each query."""
    return np.asarray(normalizer.tile_weights(normalizer.prepare(logits), summary, Tile.whole(*logits.shape)))


def accumulates(normalizer: Normalizer) -> bool:
    """Return whether a normalizer is merged by sums over all rows, rather than by the rows that can have weight."""
    return normalizer.log_sum_exp or isinstance(normalizer, LinearNormalizer)


class Accumulator:
    """The sums over the rows that are added tile by tile, and the rows with the largest weights.

    Args:
        normalizer: the normalizer, which `accumulates`.
        values: the sums of the values of no rows.
        queries: number of queries.
        evidence: number of rows with the largest weights.

    Attributes:
        sums: the sums over the rows so far.
        top_rows: the rows with the largest weights so far.
    """

    def __init__(self, normalizer: Normalizer, values: ValueSums, queries: int, evidence: int) -> None:
        self.normalizer = normalizer
        maximum = np.full(queries, -np.inf if normalizer.log_sum_exp else 0.0)
        self.sums = PartialSums(maximum, np.zeros(queries), np.zeros(queries), np.zeros(queries), values)
        self.top_rows = RunningTopK((queries,), evidence)

    def accumulate(self, logits: Float[np.ndarray, "q rows"], first: int, values: Num[np.ndarray, "rows ..."]) -> None:
        """Add the weights and the weighted values of the rows of a tile to the sums.

        Args:
            logits: the logits, −inf for excluded rows; overwritten.
            first: the index of the first row of the tile.
            values: the values of the rows, as returned by `ValueSums.read`.
        """
        if not logits.shape[1]:
            return
        prepared = np.asarray(self.normalizer.prepare(logits))
        if isinstance(self.normalizer, LinearNormalizer):
            weights = np.asarray(self.normalizer.mass(prepared))
            self._add_masses(weights, first)
        else:
            weights = self._add_exponentials(prepared, first, prepared is logits)
        self.sums.values = self.sums.values.add(weights, values, first)

    def _add_exponentials(
        self, logits: Float[np.ndarray, "q rows"], first: int, overwrite: bool
    ) -> Float[np.ndarray, "q rows"]:
        largest = logits.max(axis=1)
        self.top_rows.update(logits, first, largest)
        self.sums = sums = self.sums.rescale(np.maximum(self.sums.maximum, largest))
        shift = np.where(sums.maximum == -np.inf, 0.0, sums.maximum)[:, None]
        d = np.subtract(logits, shift.astype(logits.dtype), out=logits if overwrite else None)
        smallest = _SMALLEST_EXPONENT[str(d.dtype)]
        vanishing = None if d.min() >= smallest else d < smallest
        if vanishing is not None:
            np.maximum(d, smallest, out=d)
        e: Float[np.ndarray, "q rows"] = np.exp(d)
        if vanishing is not None:
            np.copyto(e, 0.0, where=vanishing)
        # Arrays of `sums` are changed in place: they were made here, by `rescale`, or at the start.
        if len(e) == 1:  # a dot product allocates no array
            sums.entropy_sum[0] += float(np.dot(e[0], d[0]))
            sums.square_sum[0] += float(np.dot(e[0], e[0]))
        else:
            sums.square_sum[:] += np.einsum("ij,ij->i", e, e)
            sums.entropy_sum[:] += np.multiply(e, d, out=d).sum(axis=1, dtype=np.float64)
        # NumPy sums pairwise, so float32 is accurate enough.
        sums.total[:] += e.sum(axis=1)
        return e

    def _add_masses(self, mass: Float[np.ndarray, "q rows"], first: int) -> None:
        self.top_rows.update(np.where(mass == 0, -np.inf, mass), first)
        sums = self.sums
        sums.total[:] += mass.sum(axis=1, dtype=np.float64)
        squares = np.square(mass).sum(axis=1, dtype=np.float64)
        sums.square_sum[:] += np.where(mass.min(axis=1, initial=0.0) < 0, np.nan, squares)
        if self.normalizer.sums_to_one:
            logarithm = np.log(np.where(mass == 0, 1.0, mass))
            sums.entropy_sum[:] += (mass * logarithm).sum(axis=1, dtype=np.float64)


def merge_in_tree(parts: Sequence[_Mergeable]) -> _Mergeable:
    """Return the merge of one or more parts, neighbor by neighbor in a balanced tree.

    The result depends on the order of the parts, but not on when each of them was computed.
    """
    level = list(parts)
    while len(level) > 1:
        pairs = [level[index : index + 2] for index in range(0, len(level), 2)]
        level = [reduce(lambda left, right: left.merge(right), pair) for pair in pairs]
    return level[0]
