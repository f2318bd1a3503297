"""The pairs of a query and a row that are compared: those of candidates, of which only the best may be needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Int, Shaped

if TYPE_CHECKING:
    from qkv.database.keys.comparisons import Comparison

__all__ = ["RowPairs"]

# Rows whose logits are so close to the smallest needed one, relative to its size, are kept: attention rounds otherwise.
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class RowPairs:
    """The pairs of a group of queries and the rows with which they are compared.

    Attributes:
        rows: the rows of all queries, in ascending order.
        place: `(q, n)`, the places in `rows` of the rows of each query.
        used: `(q, n)`, False where there is no row, or one that is excluded.
        shared: number of the last columns of `place` that are equal for all queries.
    """

    rows: Int[np.ndarray, " rows"]
    place: Int[np.ndarray, "q n"]
    used: Bool[np.ndarray, "q n"]
    shared: int

    @classmethod
    def of(
        cls,
        found: Int[np.ndarray, "q count"],
        unknown: Int[np.ndarray, " m"],
        selected: Bool[np.ndarray, " rows"] | None,
    ) -> RowPairs:
        """Return the pairs of each query with its candidates and with the rows that the index does not have.

        Args:
            found: the candidates of each query; −1 for none.
            unknown: the rows that the index does not have, in ascending order.
            selected: which rows of the table are selected; None for all.
        """
        used = found >= 0
        if selected is not None:
            used &= selected[found]
            unknown = unknown[selected[unknown]]
        rows = np.union1d(found[used], unknown).astype(np.int64)
        shared = np.broadcast_to(np.searchsorted(rows, unknown), (len(found), len(unknown)))
        place = np.concatenate([np.where(used, np.searchsorted(rows, found), 0), shared], axis=1)
        return cls(rows, place, np.concatenate([used, np.ones_like(shared, bool)], axis=1), len(unknown))

    def without(self, missing: Bool[np.ndarray, " rows"]) -> RowPairs:
        """Return the pairs with the rows that have all cells. The rows remain the same."""
        return replace(self, used=self.used & ~missing[self.place]) if missing.any() else self

    def best(self, comparison: Comparison, query: Shaped[np.ndarray, "q ..."], count: int) -> RowPairs:
        """Return the pairs whose logits are among the `count` largest of a query or close to these.

        Args:
            comparison: the comparison with `rows`.
            query: the engine's query array.
            count: the number of rows that can have weight.
        """
        if self.place.shape[1] <= count:
            return self
        own = self.place.shape[1] - self.shared
        logits = np.asarray(comparison.score(query[:, None], comparison.key[self.place[:, :own]]))[:, 0, :]
        if self.shared and len(query):
            others = comparison.score(query, comparison.key[self.place[0, own:]])
            logits = np.concatenate([logits, np.asarray(others)], axis=1)
        logits = np.where(self.used, logits, -np.inf)
        least = np.partition(logits, -count, axis=1)[:, -count, None]
        slack = np.where(np.isfinite(least), _TOLERANCE * (1 + np.abs(least)), 0)
        return replace(self, used=self.used & ~(logits < least - slack))

    def allowed(self) -> Bool[np.ndarray, "q rows"]:
        """Return which rows each query is compared with."""
        out = np.zeros((len(self.place), len(self.rows)), bool)
        query, column = np.nonzero(self.used)
        out[query, self.place[query, column]] = True
        return out
