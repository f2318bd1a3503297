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

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import numpy as np

from qkv.core.ordering import RunningTopK
from qkv.core.partial import ExponentialSums, WeightedSums, merge_means, rescale, rescale_factor
from qkv.core.tile import Tile
from qkv.core.typing import Bool, Float, Int, Num
from qkv.database.execute.aggregates import (
    NO_ROW,
    Aggregate,
    average_aggregate,
    first_rows,
    label_codes,
    rounded_deviation,
    vote_aggregate,
    votes_by_kind,
)
from qkv.encoders import arrow_columns
from qkv.encoders.columns import Column
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.linear import LinearNormalizer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Accumulator",
    "AverageSums",
    "PartialSums",
    "ValueSums",
    "VoteSums",
    "accumulates",
    "merge_in_tree",
    "tile_weights",
    "value_sums",
]

# Rows that are summed in float32; longer sums lose digits.
_FLOAT32_ROWS = 2**16
# Smaller exponents give denormal results, which are slow to compute.
_SMALLEST_EXPONENT = {"float32": -87.0, "float64": -700.0}

_Cells = tuple[Num[np.ndarray, "rows ..."], Bool[np.ndarray, " rows"] | None]
_Finalized = tuple[Summary, list[Aggregate], Float[np.ndarray, " q"] | None, Float[np.ndarray, " q"] | None]


class _Merges(Protocol):
    def merge(self, other: Self) -> Self: ...


_Mergeable = TypeVar("_Mergeable", bound=_Merges)


class ValueSums(ABC):
    """Base class of the weighted sums of the values of some rows for each query."""

    def read(self, table: pa.Table, like: Column, folded: bool, complete: bool) -> _Cells:
        """Return the values of a tile, and a boolean array that marks missing values (None if there are none).

        Args:
            table: the rows of the tile.
            like: some rows of the value column, which give its kind, origin and width.
            folded: whether texts are folded.
            complete: whether it is known that no cell is missing.
        """
        column = Column.from_table(table, like.name, folded, like)
        return self._cells(column), column.missing if column.missing.any() else None

    def _cells(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return column.cells

    @abstractmethod
    def rescale(self, factor: Float[np.ndarray, " q"]) -> Self:
        """Return the sums with all weights multiplied by a factor for each query."""

    @abstractmethod
    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], first: int) -> Self:
        """Return the sums with the rows of a tile, which may be this object; `first` is the index of its first row."""

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return the sums over the rows of both, which must be disjoint."""

    @abstractmethod
    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        """Return the aggregate of each query. `scale` multiplies its sums, and `total` is its total weight."""


@dataclass(frozen=True, eq=False)
class AverageSums(ValueSums):
    """Weighted sums of numbers, timestamps or vectors.

    Attributes:
        weighted: `(q, width)`, Σ e v; of width 0 without rows, whose vectors have an unknown width.
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

    def read(self, table: pa.Table, like: Column, folded: bool, complete: bool) -> _Cells:
        """Return the values of a tile, and which are missing; a complete column of floats in its stored dtype."""
        column = table.column(like.name)
        if complete and like.kind == "number" and column.num_chunks == 1:
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.stored_numbers(chunk)
            if not chunk.null_count and cells.dtype.kind == "f":
                return cells, None
        return super().read(table, like, folded, complete)

    def rescale(self, factor: Float[np.ndarray, " q"]) -> AverageSums:
        weighted = np.asarray(rescale(self.weighted, factor[:, None]))
        return replace(self, weighted=weighted, squares=self.squares * factor, mass=self.mass * factor)

    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], first: int) -> AverageSums:
        # One query over plain numbers is accumulated in their own dtype, everything else in float64.
        dtype = np.result_type(weights, values) if len(weights) == 1 and values.ndim == 1 else np.dtype(np.float64)
        values = values.astype(dtype, copy=False)
        negative = self.negative | (weights.min(axis=1, initial=0.0) < 0)
        step = max(1, len(values)) if values.ndim == 2 else _FLOAT32_ROWS
        sums = self
        with np.errstate(over="ignore", invalid="ignore"):  # squares of values of 1e200
            for start in range(0, len(values), step):
                sums = sums.merge(_average(weights[:, start : start + step], values[start : start + step], negative))
        return sums

    def merge(self, other: AverageSums) -> AverageSums:
        if not (self.weighted.shape[1] and other.weighted.shape[1]):
            return self if self.weighted.shape[1] else other
        with np.errstate(over="ignore", invalid="ignore"):
            means = self.mass[:, None], self.mean, other.mass[:, None], other.mean
            mean, difference, weight = (np.asarray(each) for each in merge_means(*means))
            squares = self.squares + other.squares + np.square(difference).sum(axis=1) * weight[:, 0]
            negative, mass = self.negative | other.negative, self.mass + other.mass
            return AverageSums(self.weighted + other.weighted, mean, squares, mass, negative)

    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        aggregates = []
        for query, mass in enumerate(self.mass.tolist()):
            if self.negative[query] or not mass > 0:
                aggregates.append(average_aggregate(like, self.weighted[query] * scale[query], None))
                continue
            mean = self.mean[query]
            deviation = rounded_deviation(float(self.squares[query] / mass), mean)
            # The total weight after normalization is 1 up to rounding, unless the weights do not sum to 1.
            sum_of_weights = float(total[query, 0])
            value = mean if abs(sum_of_weights - 1.0) < 1e-9 else mean * sum_of_weights
            aggregates.append(average_aggregate(like, value, deviation))
        return aggregates


def _average(
    weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], negative: Bool[np.ndarray, " q"]
) -> AverageSums:
    """Return the sums of a few rows, computed in the dtype of the values."""
    width = 1 if values.ndim == 1 else values.shape[1]
    weighted, mean = np.zeros((len(weights), width)), np.zeros((len(weights), width))
    squares, mass = np.zeros(len(weights)), np.zeros(len(weights))
    workspace = np.empty(len(values), values.dtype) if values.ndim == 1 else None
    for query, own_weights in enumerate(weights):
        row = own_weights.astype(values.dtype, copy=False)  # of one query, which stays in the processor cache
        if workspace is None:
            rows = np.flatnonzero(row)
            row, cells = row[rows], values[rows]
        else:
            cells = values
        total, own = row.sum(), np.dot(row, cells)
        weighted[query], mass[query] = own, total
        if negative[query] or not total > 0:
            continue
        if workspace is None:
            mean[query] = center = own / total
            squares[query] = row @ np.square(cells - center).sum(axis=1)
            continue
        center = values.dtype.type(float(own) / float(total))
        deviation = np.subtract(cells, center, out=workspace)
        # Rounding moves the center away from the mean; the first moment corrects for it.
        moment = float(np.dot(row, deviation)) / float(total)
        np.multiply(deviation, deviation, out=deviation)
        squares[query] = max(float(np.dot(row, deviation)) - float(total) * moment * moment, 0.0)
        mean[query] = float(center) + moment
    return AverageSums(weighted, mean, squares, mass, negative)


@dataclass(eq=False)
class VoteSums(ValueSums):
    """The sums of the weights of each label, to which tiles are added in place.

    Attributes:
        labels: the number of each label.
        votes: `(q, n)`, the sum of e over the rows of each label; n is at least the number of labels.
        first: `(q, n)`, the first row of each label with non-zero weight, or `NO_ROW`.
        negative: `(q,)`, whether a weight is negative.
    """

    labels: dict[object, int]
    votes: Float[np.ndarray, "q n"]
    first: Int[np.ndarray, "q n"]
    negative: Bool[np.ndarray, " q"]

    def _cells(self, column: Column) -> Num[np.ndarray, "rows ..."]:
        return label_codes(column, self.labels)

    def rescale(self, factor: Float[np.ndarray, " q"]) -> VoteSums:
        votes = self.votes * factor[:, None]
        # Rows whose weight vanishes decide no tie, as in memory.
        return replace(self, votes=votes, first=np.where((votes == 0) & (self.votes != 0), NO_ROW, self.first))

    def add(self, weights: Float[np.ndarray, "q rows"], values: Num[np.ndarray, "rows ..."], first: int) -> VoteSums:
        """Return these sums with the rows of a tile, whose values are numbers of labels."""
        queries, more = len(weights), len(self.labels) - self.votes.shape[1]
        if more > 0:
            # Grow to twice the size, so that many new labels do not copy the sums at every tile.
            more = max(more, self.votes.shape[1])
            self.votes = np.concatenate([self.votes, np.zeros((queries, more))], axis=1)
            self.first = np.concatenate([self.first, np.full((queries, more), NO_ROW)], axis=1)
        labels = self.votes.shape[1]
        for query in range(queries):
            self.votes[query] += np.bincount(values, weights=weights[query], minlength=labels)
            rows = first_rows(weights[query], values, labels)
            rows[rows < NO_ROW] += first
            np.minimum(self.first[query], rows, out=self.first[query])
        self.negative |= (weights < 0).any(axis=1)
        return self

    def merge(self, other: VoteSums) -> VoteSums:
        """Return the sums over the rows of both, of the labels with a row of non-zero weight."""
        labels: dict[object, int] = {}
        places = []
        for part in (self, other):
            known = np.flatnonzero((part.first[:, : len(part.labels)] < NO_ROW).any(axis=0))
            names = list(part.labels)
            numbers = [labels.setdefault(names[index], len(labels)) for index in known.tolist()]
            places.append((part, known, np.array(numbers, np.int64)))
        votes = np.zeros((len(self.votes), len(labels)))
        first = np.full(votes.shape, NO_ROW)
        for part, known, own in places:
            votes[:, own] += part.votes[:, known]
            first[:, own] = np.minimum(first[:, own], part.first[:, known])
        return VoteSums(labels, votes, first, self.negative | other.negative)

    def aggregates(
        self, like: Column, scale: Float[np.ndarray, "q 1"], total: Float[np.ndarray, "q 1"]
    ) -> list[Aggregate]:
        labels = list(self.labels)
        votes, first = self.votes[:, : len(labels)] * scale, self.first[:, : len(labels)]
        each = zip(votes, first, total[:, 0].tolist(), self.negative.tolist(), strict=True)
        return [vote_aggregate(labels, *one) for one in each]


def value_sums(like: Column, queries: int, votes: bool = False) -> ValueSums:
    """Return the sums of no rows: averages of numbers, timestamps and vectors, votes of other cells."""
    zeros, none = np.zeros(queries), np.zeros(queries, bool)
    if votes or votes_by_kind(like):
        return VoteSums({}, np.zeros((queries, 0)), np.zeros((queries, 0), np.int64), none)
    return AverageSums(np.zeros((queries, like.width)), np.zeros((queries, like.width)), zeros, zeros, none)


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
