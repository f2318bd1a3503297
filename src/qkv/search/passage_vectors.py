"""The keys of passages, and how far a query's comparison with them is spread."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PassageVectors", "spread_of"]

_BLOCK = 65536


class PassageVectors:
    """Vectors of all passages, one row each: an array, or a sparse one.

    Args:
        rows: `(passages, width)`.
        moments: mean and covariance of dense rows, where they are known.
    """

    def __init__(self, rows: Any, moments: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        self.rows = rows
        self.dense = isinstance(rows, np.ndarray)
        self._moments = moments

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def compared(self, queries: Any) -> np.ndarray:
        """Inner products `(queries, passages)`."""
        product = queries @ self.rows.T
        return np.asarray(product if self.dense else product.toarray(), np.float32)

    def spread(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over all passages of each query's inner product with them.

        From the mean and covariance of the keys, qᵀμ and qᵀΣq: no product with any key is needed.
        """
        mean, covariance = self.moments()
        queries = queries.astype(np.float64)
        return queries @ mean, np.sqrt(np.maximum(((queries @ covariance) * queries).sum(axis=1), 0))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean `(width,)` and covariance `(width, width)` of dense rows; measured once."""
        if self._moments is None:
            self._moments = self._measured()
        return self._moments

    def _measured(self) -> tuple[np.ndarray, np.ndarray]:
        width = self.rows.shape[1]
        total, products = np.zeros(width), np.zeros((width, width))
        for begin in range(0, len(self), _BLOCK):
            block = np.asarray(self.rows[begin : begin + _BLOCK], np.float64)
            total += block.sum(axis=0)
            products += block.T @ block
        mean = total / len(self)
        return mean, products / len(self) - np.outer(mean, mean)


def spread_of(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each row."""
    return scores.mean(axis=1, dtype=np.float64), scores.std(axis=1, dtype=np.float64)
