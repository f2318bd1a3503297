"""The class `TopRows`, which collects the rows of highest rank for each query tile by tile."""

from __future__ import annotations

import numpy as np

from qkv.core.ordering import top_k_indices
from qkv.core.typing import Float, Int

__all__ = ["TopRows", "largest_weights"]

_FIRST = 2**12


class TopRows:
    """The rows of highest rank for each query, in descending order of rank. Ties go to the row that was added first.

    Attributes:
        rank: `(q, n)`; −inf in unused places.
        row: `(q, n)` row indices; −1 in unused places.

    Example:
        >>> top = TopRows(1, 2)
        >>> top.update(np.array([[1.0, 3.0]]), 0)
        >>> top.update(np.array([[3.0, 2.0]]), 2)
        >>> top.row, top.rank
        (array([[1, 2]]), array([[3., 3.]]))
    """

    def __init__(self, queries: int, count: int) -> None:
        self.rank = np.full((queries, count), -np.inf)
        self.row = np.full((queries, count), -1, np.int64)

    def update(
        self, rank: Float[np.ndarray, "q rows"], first: int, largest: Float[np.ndarray, " q"] | None = None
    ) -> None:
        """Add rows with their ranks, and keep the rows of highest rank for each query.

        Args:
            rank: the ranks of the rows, −inf for excluded rows; NaN ranks highest, so that it shows in the answer.
            first: the index of the first row.
            largest: the largest rank of each query, if known.
        """
        if not rank.shape[1]:
            return
        largest = rank.max(axis=1) if largest is None else largest
        # Later rows lose ties, so only larger ranks enter. Not (a <= b): True for NaN.
        for query in np.flatnonzero(~(largest <= self.rank[:, -1])):
            self._update_query(int(query), rank[query], first, largest[query])

    def _update_query(self, query: int, rank: Float[np.ndarray, " rows"], first: int, largest: float) -> None:
        known = self.rank[query]
        if known[-1] == -np.inf and len(rank) > 2 * _FIRST:
            # The first rows give a bound that most of the other rows do not exceed.
            self._update_query(query, rank[:_FIRST], first, largest)
            rank, first, known = rank[_FIRST:], first + _FIRST, self.rank[query]
        # In the dtype of the ranks; exact, as known ranks had that dtype.
        least = rank.dtype.type(known[-1])
        candidates = np.flatnonzero(rank > least if largest == largest else ~(rank <= least))
        new = rank[candidates].astype(np.float64)
        if len(candidates) > len(known):
            order = np.sort(np.asarray(top_k_indices(new, len(known))))
            candidates, new = candidates[order], new[order]
        both = np.concatenate([known, np.where(np.isnan(new), np.inf, new)])
        row = np.concatenate([self.row[query], candidates + first])
        order = np.argsort(-both, kind="stable")[: len(known)]
        self.rank[query], self.row[query] = both[order], row[order]

    def union(self) -> Int[np.ndarray, " rows"]:
        """Return the indices of the rows that are among the top rows of any query, in ascending order."""
        rows = np.unique(self.row)
        return rows[rows >= 0]


def largest_weights(
    weights: Float[np.ndarray, "q rows"], top: int
) -> tuple[Int[np.ndarray, "q n"], Float[np.ndarray, "q n"]]:
    """Return for each query the column indices of its largest weights, −1 for a weight of 0, and these weights."""
    weights = weights if weights.shape[1] else np.zeros((len(weights), 1))
    rank = np.where(weights == 0, -np.inf, weights)
    order = np.asarray(top_k_indices(rank, min(top, weights.shape[1])))
    heavy = np.take_along_axis(weights, order, axis=1)
    return np.where(heavy == 0, -1, order), heavy
