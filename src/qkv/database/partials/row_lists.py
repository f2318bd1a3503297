"""Lists of rows, one for each query, with their logits: the rows of evidence, or the rows that can have weight.

A row is named by its *position*, the index of its fragment times 2⁴⁰ plus its index in the fragment, so that the order
of positions is that of the rows of a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Float, Int
from qkv.normalizers.base import Normalizer
from qkv.normalizers.linear import LinearNormalizer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FRAGMENT_ROWS", "SLACK", "RowLists", "accumulates", "select_rows"]

FRAGMENT_ROWS = 2**40
"""Number of positions of a fragment."""

SLACK = 1e-9
"""The slack of a bound of logits, relative to its size: rounding of logits in float64 does not remove a row."""


@dataclass(frozen=True, eq=False)
class RowLists:
    """Rows by query, in the order of the queries.

    Attributes:
        query: `(n,)`, the index of the query of each row, ascending.
        position: `(n,)`, the position of each row.
        logit: `(n,)`, the logit of each row in float64.
        record: a pyarrow struct array with the cells of each row; None without them.
    """

    query: Int[np.ndarray, " n"]
    position: Int[np.ndarray, " n"]
    logit: Float[np.ndarray, " n"]
    record: pa.StructArray | None = None

    def take(self, places: Int[np.ndarray, " m"]) -> RowLists:
        """Return the rows at the given places of the arrays."""
        import pyarrow as pa

        record = None if self.record is None else self.record.take(pa.array(places))
        return RowLists(self.query[places], self.position[places], self.logit[places], record)

    def concat(self, other: RowLists) -> RowLists:
        """Return the rows of both."""
        import pyarrow as pa

        if not len(self.query) or not len(other.query):
            return other if len(other.query) else self
        record = None
        if self.record is not None and other.record is not None:
            record = pa.concat_arrays([self.record, other.record])
        query = np.concatenate([self.query, other.query])
        position, logit = np.concatenate([self.position, other.position]), np.concatenate([self.logit, other.logit])
        joined = RowLists(query, position, logit, record)
        return joined.take(np.argsort(joined.query, kind="stable"))

    def rank(self, normalizer: Normalizer) -> Float[np.ndarray, " n"]:
        """Return the numbers by which rows are ordered, logits or unnormalized weights; +inf for NaN."""
        rank = np.asarray(normalizer.prepare(self.logit))
        if isinstance(normalizer, LinearNormalizer):
            mass = np.asarray(normalizer.mass(rank))
            rank = np.where(mass == 0, -np.inf, mass)
        return np.where(np.isnan(rank), np.inf, rank)

    def largest(self, normalizer: Normalizer, count: int) -> RowLists:
        """Return the `count` rows of the highest rank of each query, highest first. Ties go to the lower position."""
        rank = self.rank(normalizer)
        order = np.lexsort((self.position, -rank, self.query))
        order = order[rank[order] > -np.inf]
        _, start, length = np.unique(self.query[order], return_index=True, return_counts=True)
        place = np.arange(len(order)) - np.repeat(start, length)
        return self.take(order[place < count])


def accumulates(normalizer: Normalizer) -> bool:
    """Return whether a normalizer is merged by sums over all rows, rather than by the rows that can have weight."""
    return normalizer.log_sum_exp or isinstance(normalizer, LinearNormalizer)


def select_rows(rows: RowLists, normalizer: Normalizer, queries: int, slack: float = SLACK) -> RowLists | None:
    """Return the rows that can have weight by a normalizer, or None if every row can.

    The threshold of some rows is a lower bound of the threshold of all rows, so that a row below that of its fragment
    has no weight in the table. A query with a logit that is NaN or +inf keeps one such row, which makes its answer NaN.

    Args:
        rows: rows of each query, with all those of a fragment that can have weight.
        normalizer: a normalizer with few non-zero weights.
        queries: number of queries.
        slack: slack of a bound of logits, relative to its size.
    """
    if normalizer.top_k is not None:
        return rows.largest(normalizer, normalizer.top_k)
    if not normalizer.has_threshold_bound:
        return None
    if not len(rows.query):
        return rows
    logits = np.asarray(normalizer.prepare(rows.logit), np.float64)
    invalid = np.isnan(logits) | (logits == np.inf)
    broken = np.zeros(queries, bool)
    broken[rows.query[invalid]] = True
    first = np.zeros(len(logits), bool)
    marked = np.flatnonzero(invalid)
    first[marked[np.unique(rows.query[marked], return_index=True)[1]]] = True
    bound = _bounds(rows.query, np.where(invalid, -np.inf, logits), normalizer, queries, slack)
    if bound is None:
        return None
    with np.errstate(invalid="ignore"):
        above = logits >= bound[rows.query]
    kept: Bool[np.ndarray, " n"] = np.where(broken[rows.query], first, above & (logits > -np.inf))
    return rows.take(np.flatnonzero(kept))


def _bounds(
    query: Int[np.ndarray, " n"],
    logits: Float[np.ndarray, " n"],
    normalizer: Normalizer,
    queries: int,
    slack: float,
) -> Float[np.ndarray, " q"] | None:
    """Return a lower bound of the logits with weight of each query; −inf without rows."""
    length = np.bincount(query, minlength=queries)
    start = np.concatenate([[0], np.cumsum(length)[:-1]])
    padded = np.full((queries, int(length.max())), -np.inf)
    padded[query, np.arange(len(query)) - start[query]] = logits
    with np.errstate(invalid="ignore", divide="ignore"):
        found = normalizer.threshold_bound(padded)
    if found is None:
        return None
    bound = np.asarray(found)[:, 0]
    bound = bound - slack * (1.0 + np.abs(bound))
    return np.where(np.isnan(bound), -np.inf, bound)
