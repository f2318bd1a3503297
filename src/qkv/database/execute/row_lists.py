"""Lists of rows, one for each query, with their logits: the rows of evidence, or the rows that can have weight.

A row is named by its *position*, the index of its fragment times 2⁴⁰ plus its index in the fragment, so that the order
of positions is that of the rows of a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from qkv.core.ordering import RunningTopK
from qkv.core.typing import Bool, Float, Int
from qkv.normalizers.base import Normalizer
from qkv.normalizers.linear import LinearNormalizer

FRAGMENT_ROWS = 2**40
"""Number of positions of a fragment."""

_SLACK = 1e-9
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

    @classmethod
    def of_top_rows(cls, top: RunningTopK) -> RowLists:
        """Return lists of the rows of highest rank; the rank is that of each row in place of the logit."""
        query, place = np.nonzero(top.index >= 0)
        return cls(query, top.index[query, place], top.rank[query, place])

    def take(self, places: Int[np.ndarray, " m"]) -> RowLists:
        """Return the rows at the given places of the arrays."""
        record = None if self.record is None else self.record.take(pa.array(places))
        return RowLists(self.query[places], self.position[places], self.logit[places], record)

    def concat(self, *others: RowLists) -> RowLists:
        """Return the rows of all lists."""
        parts = [part for part in (self, *others) if len(part.query)]
        if len(parts) < 2:
            return parts[0] if parts else self
        records = [part.record for part in parts if part.record is not None]
        record = pa.concat_arrays(records) if len(records) == len(parts) else None
        query, position, logit = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("query", "position", "logit")
        )
        return RowLists(query, position, logit, record).take(np.argsort(query, kind="stable"))

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
        best = self.take(order[rank[order] > -np.inf])
        return best.take(np.flatnonzero(best.places() < count))

    def places(self) -> Int[np.ndarray, " n"]:
        """Return the place of each row among those of its query."""
        _, start, length = np.unique(self.query, return_index=True, return_counts=True)
        return np.asarray(np.arange(len(self.query)) - np.repeat(start, length))

    def padded(self, numbers: Float[np.ndarray, " n"], queries: int) -> Float[np.ndarray, "q m"]:
        """Return a number of each row as a matrix with a row for each query, −inf in unused places."""
        place = self.places()
        matrix = np.full((queries, int(place.max(initial=0)) + 1), -np.inf)
        matrix[self.query, place] = numbers
        return matrix


def select_rows(rows: RowLists, normalizer: Normalizer, queries: int) -> RowLists:
    """Return the rows that can have weight by a normalizer.

    The threshold of some rows is a lower bound of the threshold of all rows, so that a row below that of its fragment
    has no weight in the table. A query with a logit that is NaN or +inf keeps one such row, which makes its answer NaN.
    """
    if normalizer.top_k is not None:
        return rows.largest(normalizer, normalizer.top_k)
    if not (normalizer.has_threshold_bound and len(rows.query)):
        return rows
    logits = np.asarray(normalizer.prepare(rows.logit), np.float64)
    invalid = np.isnan(logits) | (logits == np.inf)
    broken = np.zeros(queries, bool)
    broken[rows.query[invalid]] = True
    first = np.zeros(len(logits), bool)
    marked = np.flatnonzero(invalid)
    first[marked[np.unique(rows.query[marked], return_index=True)[1]]] = True
    finite = rows.padded(np.where(invalid, -np.inf, logits), queries)
    with np.errstate(invalid="ignore", divide="ignore"):
        bound = np.asarray(normalizer.threshold_bound(finite))[:, 0]
        # The bound of a query without rows is NaN.
        above = ~(logits < (bound - _SLACK * (1.0 + np.abs(bound)))[rows.query])
    present: Bool[np.ndarray, " n"] = np.where(broken[rows.query], first, above & (logits > -np.inf))
    return rows.take(np.flatnonzero(present))


def rows_of_any_query(top: RunningTopK) -> Int[np.ndarray, " rows"]:
    """Return the indices of the rows that are among the top rows of any query, in ascending order."""
    rows = np.unique(top.index)
    return rows[rows >= 0]
