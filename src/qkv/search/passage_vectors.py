"""Store the vectors of passages, and compute their inner products with queries and the statistics of these products."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

__all__ = ["PassageVectors", "row_statistics"]

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
