"""The rows of highest rank among rows that come tile by tile: the evidence, or all that gets weight."""

import numpy as np

from qkv.core.ordering import top_k_indices

__all__ = ["TopRows"]

_FIRST = 2**12


class TopRows:
    """For each query the rows of highest rank so far, highest first; of equal ones those that came first.

    Fields:
        rank: `(q, n)`; −inf where there are fewer.
        row: their numbers; −1 where there are fewer.

    Example:
        >>> best = TopRows(1, 2)
        >>> best.absorb(np.array([[1.0, 3.0]]), 0)
        >>> best.absorb(np.array([[3.0, 2.0]]), 2)
        >>> best.row, best.rank
        (array([[1, 2]]), array([[3., 3.]]))
    """

    def __init__(self, queries: int, count: int) -> None:
        self.rank = np.full((queries, count), -np.inf)
        self.row = np.full((queries, count), -1, np.int64)

    def absorb(self, rank: np.ndarray, first: int, largest: np.ndarray | None = None) -> None:
        """Look at some rows.

        Args:
            rank: `(q, rows)`, −inf where a row does not take part; NaN ranks highest, to be seen.
            first: the number of the first of them.
            largest: of each query, `(q,)`, where that is known.
        """
        if not rank.shape[1]:
            return
        largest = rank.max(axis=1) if largest is None else largest
        # Later rows lose ties, so only what is larger comes in. Not (a <= b): true for NaN.
        for query in np.flatnonzero(~(largest <= self.rank[:, -1])):
            self._one(int(query), rank[query], first, largest[query])

    def _one(self, query: int, rank: np.ndarray, first: int, largest: float) -> None:
        known = self.rank[query]
        if known[-1] == -np.inf and len(rank) > 2 * _FIRST:
            # From some rows a rank that most of the others do not reach.
            self._one(query, rank[:_FIRST], first, largest)
            rank, first, known = rank[_FIRST:], first + _FIRST, self.rank[query]
        # In the dtype of the ranks, which loses nothing: what is known came from such.
        least = rank.dtype.type(known[-1])
        inside = np.flatnonzero(rank > least if largest == largest else ~(rank <= least))
        new = rank[inside].astype(np.float64)
        if len(inside) > len(known):
            order = np.sort(top_k_indices(new, len(known)))
            inside, new = inside[order], new[order]
        both = np.concatenate([known, np.where(np.isnan(new), np.inf, new)])
        row = np.concatenate([self.row[query], inside + first])
        order = np.argsort(-both, kind="stable")[: len(known)]
        self.rank[query], self.row[query] = both[order], row[order]

    def union(self) -> np.ndarray:
        """The numbers of all these rows, ascending."""
        found = np.unique(self.row)
        return found[found >= 0]
