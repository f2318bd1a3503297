"""Accumulators, which sum weights and weighted values tile by tile over the rows of a store.

Softmax keeps, for each query, with m the largest logit so far and d = l − m,

    total = Σ e^d        weighted = Σ e^d v        entropy_sum = Σ e^d d        square_sum = Σ e^2d

all in float64; a new m rescales them. The entropy of the weights is log total − entropy_sum / total, and their
sum of squares is square_sum / total². The other normalizers keep the sums of their masses μ, whose entropy is
log Σ μ − Σ μ log μ / Σ μ.
`tests/database/test_stored.py` compares both with the same rows in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

from qkv.core.partial import ExponentialSums, WeightedSums
from qkv.core.tile import Tile
from qkv.core.typing import Float, Num
from qkv.database.execute.aggregates import Aggregate
from qkv.database.execute.partial_sums import PartialSums
from qkv.database.execute.running_aggregates import StreamedAggregator
from qkv.database.execute.top_rows import TopRows
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Accumulator", "accumulator_for"]

# Smaller exponents give denormal results, which are slow to compute.
_SMALLEST_EXPONENT = {"float32": -87.0, "float64": -700.0}

_Normalizer = TypeVar("_Normalizer", bound=Normalizer)
_Finalized = tuple[Summary, list[Aggregate], Float[np.ndarray, " q"] | None, Float[np.ndarray, " q"] | None]


def accumulator_for(
    normalizer: Normalizer, queries: int, values: StreamedAggregator, evidence: int
) -> SoftmaxAccumulator | _LinearAccumulator | None:
    """Return an accumulator for a normalizer, or None if its weights cannot be summed tile by tile.

    Args:
        normalizer: the normalizer.
        queries: number of queries.
        values: the aggregator that accumulates the values.
        evidence: number of rows with the largest weights to keep.
    """
    if normalizer.log_sum_exp:
        return SoftmaxAccumulator(normalizer, queries, values, evidence)
    if isinstance(normalizer, LinearNormalizer):
        return _LinearAccumulator(normalizer, queries, values, evidence)
    return None


class Accumulator(ABC, Generic[_Normalizer]):
    """Base class of accumulators, which keep running sums of weights and weighted values for a group of queries.

    Attributes:
        top_rows: the rows with the largest weights so far.
    """

    def __init__(self, normalizer: _Normalizer, queries: int, values: StreamedAggregator, evidence: int) -> None:
        self.normalizer, self.values, self.queries = normalizer, values, queries
        self.top_rows = TopRows(queries, evidence)
        self.total = np.zeros((queries, 1))
        self.entropy_sum = np.zeros((queries, 1))
        self.square_sum = np.zeros((queries, 1))

    @abstractmethod
    def accumulate(self, logits: Float[np.ndarray, "q rows"], first: int, values: Num[np.ndarray, "rows ..."]) -> None:
        """Add the weights and the weighted values of the rows of a tile to the running sums.

        Args:
            logits: the logits, −inf for excluded rows; overwritten.
            first: the index of the first row of the tile.
            values: the values of the rows, as returned by `StreamedAggregator.read`.
        """

    def sums(self) -> PartialSums:
        """Return the running sums, which can be merged with those over other rows."""
        total, entropy_sum = self.total[:, 0].copy(), self.entropy_sum[:, 0].copy()
        return PartialSums(self._maximum(), total, entropy_sum, self.square_sum[:, 0].copy(), self.values.value_sums())

    def restore(self, sums: PartialSums) -> None:
        """Replace the running sums by others, from which `finalize` computes the results."""
        self.total, self.entropy_sum = sums.total[:, None], sums.entropy_sum[:, None]
        self.square_sum = sums.square_sum[:, None]
        self.values.restore(sums.values)

    def _maximum(self) -> Float[np.ndarray, " q"]:
        return np.zeros(self.queries)

    @abstractmethod
    def _partial(self) -> ExponentialSums | WeightedSums:
        """Return the running sums as the partial result that the `finalize` method of the normalizer takes."""

    def weights(self, logits: Float[np.ndarray, "q rows"], summary: Summary) -> Float[np.ndarray, "q rows"]:
        """Return the weights of rows, `(q, rows)`, computed from their logits and the summary of each query."""
        tile = Tile.whole(*logits.shape)
        return np.asarray(self.normalizer.tile_weights(self.normalizer.prepare(logits), summary, tile))

    def finalize(self) -> _Finalized:
        """Return the summary and the aggregate of each query, exp(entropy) of the weights, and 1 / Σ w².

        The last two are None if the weights do not sum to 1. 1 / Σ w² is NaN if a weight is negative.
        """
        scale, summary = self.normalizer.finalize(self._partial(), Tile.whole(self.queries, 0), 0.0)
        scale = np.asarray(scale)
        support = effective = None
        if self.normalizer.sums_to_one:
            total = np.where(self.total > 0, self.total, 1.0)
            support = np.asarray(np.exp(np.log(total) - self.entropy_sum / total)[:, 0])
            squares = np.where(self.square_sum > 0, self.square_sum, np.nan)
            effective = np.asarray((np.square(total) / squares)[:, 0])
        return summary, self.values.aggregates(scale, self.total * scale), support, effective


class SoftmaxAccumulator(Accumulator[Normalizer]):
    """Accumulator for softmax that sums exponentials relative to the running maximum of the logits."""

    def __init__(self, normalizer: Normalizer, queries: int, values: StreamedAggregator, evidence: int) -> None:
        super().__init__(normalizer, queries, values, evidence)
        self.maximum = np.full((queries, 1), -np.inf)

    def accumulate(self, logits: Float[np.ndarray, "q rows"], first: int, values: Num[np.ndarray, "rows ..."]) -> None:
        if not logits.shape[1]:
            return
        own, logits = logits, np.asarray(self.normalizer.prepare(logits))
        largest = logits.max(axis=1)
        self.top_rows.update(logits, first, largest)
        self._rescale(np.maximum(self.maximum, largest[:, None]))
        shift = np.where(self.maximum == -np.inf, 0.0, self.maximum)
        d = np.subtract(logits, shift.astype(logits.dtype), out=logits if own is logits else None)
        least = d.min()
        excluded = d == -np.inf if least == -np.inf else None
        if not least >= _SMALLEST_EXPONENT[str(d.dtype)]:
            np.maximum(d, _SMALLEST_EXPONENT[str(d.dtype)], out=d)
        e = np.exp(d)
        if excluded is not None:
            e[excluded] = 0.0
        if self.queries == 1:  # a dot product allocates no array
            self.entropy_sum += float(np.dot(e[0], d[0]))
            self.square_sum += float(np.dot(e[0], e[0]))
        else:
            self.square_sum += np.einsum("ij,ij->i", e, e)[:, None]
            self.entropy_sum += np.multiply(e, d, out=d).sum(axis=1, keepdims=True, dtype=np.float64)
        # NumPy sums pairwise, so float32 is accurate enough.
        total = e.sum(axis=1, keepdims=True)
        self.total += total
        self.values.add(e, values, total)

    def restore(self, sums: PartialSums) -> None:
        """Replace the running sums by others; see `Accumulator.restore`."""
        super().restore(sums)
        self.maximum = sums.maximum[:, None]

    def _maximum(self) -> Float[np.ndarray, " q"]:
        return self.maximum[:, 0].copy()

    def _partial(self) -> ExponentialSums:
        return ExponentialSums(self.maximum, self.total, np.ones_like(self.total))

    def _rescale(self, maximum: Float[np.ndarray, "q 1"]) -> None:
        moved = maximum != self.maximum
        if not moved.any():
            return
        started = self.maximum > -np.inf
        shift = np.where(moved & started, self.maximum - np.where(started, maximum, 0.0), 0.0)
        factor = np.exp(shift)
        self.entropy_sum = factor * (self.entropy_sum + shift * self.total)
        self.total *= factor
        self.square_sum *= np.square(factor)
        self.values.rescale(factor)
        self.maximum = maximum


class _LinearAccumulator(Accumulator[LinearNormalizer]):
    """Accumulator that sums the unnormalized weights of a linear normalizer, such as `Sum` or `Mean`."""

    def accumulate(self, logits: Float[np.ndarray, "q rows"], first: int, values: Num[np.ndarray, "rows ..."]) -> None:
        mass = np.asarray(self.normalizer.mass(self.normalizer.prepare(logits)))
        self.top_rows.update(np.where(mass == 0, -np.inf, mass), first)
        self.total += mass.sum(axis=1, keepdims=True, dtype=np.float64)
        squares = np.square(mass).sum(axis=1, keepdims=True, dtype=np.float64)
        self.square_sum += np.where(mass.min(axis=1, keepdims=True, initial=0.0) < 0, np.nan, squares)
        if self.normalizer.sums_to_one:
            logarithm = np.log(np.where(mass == 0, 1.0, mass))
            self.entropy_sum += (mass * logarithm).sum(axis=1, keepdims=True, dtype=np.float64)
        self.values.add(mass, values, mass.sum(axis=1, keepdims=True))

    def _partial(self) -> WeightedSums:
        return WeightedSums(self.total, np.ones_like(self.total))
