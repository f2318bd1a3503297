"""Compare queries with a range of passages: statistics of their scores, and the passages of largest weight.

Both results merge with those of other ranges, so that the ranges of an index may be held by several processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array, csr_matrix

import qkv
from qkv.core.typing import Bool, Float
from qkv.readouts import LogSumExp, TopWeights
from qkv.scores import Biased, Dot
from qkv.search.bm25 import BM25
from qkv.search.hits import TopPassages

_BLOCK = 65536


class PassageVectors:
    """Vectors of all passages of a search index, as a dense or a sparse array."""

    def __init__(
        self,
        rows: Float[np.ndarray, "passages width"] | csr_array | csr_matrix,
        moments: tuple[Float[np.ndarray, " width"], Float[np.ndarray, "width width"]] | None = None,
    ) -> None:
        self.rows = rows
        self.dense = isinstance(rows, np.ndarray)
        if moments is not None:
            self.moments = moments

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def inner_products(
        self, queries: Float[np.ndarray, "queries width"] | csr_array | csr_matrix
    ) -> Float[np.ndarray, "queries passages"]:
        """Return the inner products of queries and passages, `(queries, passages)`."""
        product = queries @ self.rows.T
        return np.asarray(product if self.dense else product.toarray(), np.float32)

    def score_statistics(
        self, queries: Float[np.ndarray, "queries width"]
    ) -> tuple[Float[np.ndarray, " queries"], Float[np.ndarray, " queries"]]:
        """Return the mean and standard deviation of each query's inner products with all passages, each `(queries,)`.

        Both are computed from the mean μ and covariance Σ of the rows, as qᵀμ and √(qᵀΣq).
        """
        mean, covariance = self.moments
        queries = queries.astype(np.float64)
        return queries @ mean, np.sqrt(np.maximum(((queries @ covariance) * queries).sum(axis=1), 0))

    @cached_property
    def moments(self) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, "width width"]]:
        """Mean `(width,)` and covariance `(width, width)` of dense vectors over the passages."""
        width = self.rows.shape[1]
        total, products = np.zeros(width), np.zeros((width, width))
        for begin in range(0, len(self), _BLOCK):
            block = np.asarray(self.rows[begin : begin + _BLOCK], np.float64)
            total += block.sum(axis=0)
            products += block.T @ block
        mean = total / len(self)
        return mean, products / len(self) - np.outer(mean, mean)


def row_statistics(
    scores: Float[np.ndarray, "rows columns"],
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """Return two arrays `(rows,)`: the mean and the standard deviation of each row of `scores`."""
    return scores.mean(axis=1, dtype=np.float64), scores.std(axis=1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class QueryWords:
    """A batch of queries."""

    words: Sequence[Sequence[str]]
    vectors: Float[np.ndarray, "queries width"] | csr_array | csr_matrix | None


@dataclass(frozen=True, eq=False)
class ScoreStatistics:
    """Statistics of the scores of a batch of queries over some passages.

    Attributes:
        count: number of passages.
        known: whether each query has a score other than 0.
        mean, variance: `(2, queries)`, of BM25 scores and of inner products; the latter are 0 for dense vectors, whose
            statistics follow from the moments of the vectors.
    """

    count: int
    known: Bool[np.ndarray, " queries"]
    mean: Float[np.ndarray, "2 queries"]
    variance: Float[np.ndarray, "2 queries"]

    def merge(self, other: ScoreStatistics) -> ScoreStatistics:
        """Return the statistics over the passages of both.

        Source: Chan, Golub and LeVeque (1983), Algorithms for computing the sample variance.
        """
        count = self.count + other.count
        share, step = other.count / count, other.mean - self.mean
        variance = (1 - share) * self.variance + share * other.variance + share * (1 - share) * step**2
        return ScoreStatistics(count, self.known | other.known, self.mean + share * step, variance)


@dataclass(frozen=True, eq=False)
class Selection:
    """How the scores of a batch of queries are weighted, and how many passages are returned.

    Attributes:
        bm25_scale, vector_scale: factors of BM25 scores and of inner products for each query.
        top: maximum number of passages.
        temperature: T, by which scores are divided.
        scored: whether the scores of the passages are returned too.
    """

    bm25_scale: Float[np.ndarray, " queries"]
    vector_scale: Float[np.ndarray, " queries"]
    top: int
    temperature: float
    scored: bool


class BoundQueries(Protocol):
    """A batch of queries over the passages of an index."""

    def statistics(self) -> ScoreStatistics:
        """Return statistics of the scores over all passages."""

    def select(self, selection: Selection) -> TopPassages:
        """Return the passages of largest weight for each query."""


class Passages(Protocol):
    """The passages of an index, in this process or in a cluster."""

    def bind(self, queries: QueryWords) -> BoundQueries:
        """Return an object that compares queries with the passages."""


class PassageRange:
    """Consecutive passages of an index, in memory or mapped."""

    def __init__(self, keys: PassageVectors, words: BM25, first: int = 0) -> None:
        self.keys, self.words, self.first = keys, words, first

    def slice(self, first: int, last: int) -> PassageRange:
        """Return the passages `first` to `last` − 1 of this range."""
        words = BM25(self.words.scores[first:last], self.words.vocabulary)
        return PassageRange(PassageVectors(self.keys.rows[first:last]), words, self.first + first)

    def bind(self, queries: QueryWords) -> BoundQueries:
        """Return an object that compares queries with the passages; see `Passages.bind`."""
        return _BoundRange(self, queries)


class _BoundRange:
    """A batch of queries over a range, with their BM25 scores and the inner products of sparse vectors."""

    def __init__(self, passages: PassageRange, queries: QueryWords) -> None:
        self.keys, self.first, self.vectors = passages.keys, passages.first, queries.vectors
        self.words = passages.words.score(queries.words)
        self.products = None
        if queries.vectors is not None and not self.keys.dense:
            self.products = self.keys.inner_products(queries.vectors)

    def statistics(self) -> ScoreStatistics:
        """Return statistics of the scores; see `BoundQueries.statistics`."""
        known, (mean, spread) = self.words.any(axis=1), row_statistics(self.words)
        means, spreads = [mean, np.zeros_like(mean)], [spread, np.zeros_like(mean)]
        if self.products is not None:
            known |= self.products.any(axis=1)
            means[1], spreads[1] = row_statistics(self.products)
        elif self.vectors is not None:
            known |= np.asarray(self.vectors).any(axis=1)
        return ScoreStatistics(self.words.shape[1], np.asarray(known), np.stack(means), np.stack(spreads) ** 2)

    def select(self, selection: Selection) -> TopPassages:
        """Return the passages of largest weight; see `BoundQueries.select`."""
        count, temperature = len(self.keys), np.float32(selection.temperature)
        bias = (self.words * selection.bm25_scale[:, None]).astype(np.float32)
        query, key = np.zeros((len(bias), 1), np.float32), np.zeros((count, 1), np.float32)
        if self.products is not None:
            bias += (self.products * selection.vector_scale[:, None]).astype(np.float32)
        elif self.vectors is not None:
            query = (np.asarray(self.vectors) * selection.vector_scale[:, None]).astype(np.float32)
            key = np.asarray(self.keys.rows)
        top, total = qkv.observe(
            query / temperature,
            key,
            np.zeros((count, 1), np.float32),
            score=Biased(Dot(), bias=bias / temperature),
            readouts=[TopWeights(min(selection.top, count)), LogSumExp()],
        ).readouts
        rows, scores = np.asarray(top.keys), None
        if selection.scored:
            found = np.maximum(rows, 0)
            scores = np.einsum("qd,qtd->qt", query, key[found]) + np.take_along_axis(bias, found, axis=1)
        rows = np.where(rows < 0, -1, rows + self.first)
        weights = np.asarray(top.weights, np.float64)
        return TopPassages(rows, weights, scores, np.asarray(total, np.float64), selection.top)
