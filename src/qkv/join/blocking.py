"""Which pairs of two tables are looked at, in strips of bounded memory.

All of them, as long as there are no more than 25 million. Beyond, the 50 right rows whose records share most
with a left one: cosine of tf-idf over three letters in a row, those that stand in more than a fiftieth of the
rows left out. What the candidates do not hold cannot be found.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.join.agreement_levels import agreement, mean_agreement
from qkv.join.compared_columns import ComparedColumn
from qkv.join.comparison_vectors import ComparisonVectors, weigh
from qkv.join.pair_sets import PairGrid, PairList, PairSet

__all__ = ["CandidatePairs"]

ALL_PAIRS = 25_000_000
MANY = 50
_BYTES = 48 * 2**20
_STRIP = 512
_COMMON = 0.02
_COMMON_ROWS = 1000


class CandidatePairs:
    """The pairs of two tables, or of a table with itself.

    Args:
        measures: of both tables.
        itself: whether left and right are the same table: then no row meets itself.
        count: how many right rows per left row; None for all pairs where these are few enough.
    """

    def __init__(self, measures: ComparisonVectors, itself: bool = False, count: int | None = None) -> None:
        self.measures = measures
        self.itself = itself
        self.rows, self.keys = len(measures.fields[0].left), len(measures.fields[0].right)
        if count is None and self.rows * self.keys > ALL_PAIRS:
            count = MANY
        self.count = count
        self._listed: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def note(self) -> str:
        """A sentence about which pairs are compared."""
        if self.count is None:
            return f"all {self.rows:,} × {self.keys:,} pairs compared"
        return (
            f"the {self.count} most similar right rows of each of {self.rows:,} left rows compared "
            f"(tf-idf of three letters in a row), of {self.keys:,}"
        )

    def strips(
        self, progress: Progress | None = None, of: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """`(rows, keys, measures)` of some pairs after another; all pairs of a left row come together.

        Args:
            progress: called with what is done, how much and of how much.
            of: only these left rows; None for all.
        """
        wanted = np.ones(self.rows, bool) if of is None else np.isin(np.arange(self.rows), of)
        width = len(self.measures.names)
        if self.count is None:
            most = max(1, _BYTES // (4 * width * max(self.keys, 1)))
            for start in range(0, self.rows, most):
                stop = min(start + most, self.rows)
                if not wanted[start:stop].any():
                    continue
                found = self.measures.of(PairGrid(start, stop)).reshape(-1, width)
                rows = np.repeat(np.arange(start, stop), self.keys)
                keys = np.tile(np.arange(self.keys), stop - start)
                kept = wanted[rows] & ((rows != keys) | (not self.itself))
                if not kept.all():
                    rows, keys, found = rows[kept], keys[kept], found[kept]
                yield rows, keys, found
                _say(progress, "comparing", stop, self.rows)
            return
        if self._listed is None:
            self._listed = self._near(self.count, progress)
        rows, keys = self._listed
        if of is not None:
            rows, keys = rows[wanted[rows]], keys[wanted[rows]]
        most = max(1, _BYTES // (8 * width * self.count)) * self.count
        # A strip ends where a left row ends.
        ends = np.searchsorted(rows, rows[most - 1 :: most], side="right") if len(rows) else np.zeros(0, int)
        start = 0
        for stop in [*dict.fromkeys(ends.tolist()), len(rows)]:
            if stop > start:
                pairs: PairSet = PairList(rows[start:stop], keys[start:stop])
                yield rows[start:stop], keys[start:stop], self.measures.of(pairs)
                _say(progress, "comparing", int(rows[stop - 1]) + 1, self.rows)
            start = stop

    def closest(
        self, count: int, of: np.ndarray | None = None, progress: Progress | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`(rows, keys, measures)` of the `count` pairs of each left row that agree most.

        Args:
            count: how many.
            of: only these left rows; None for all.
        """
        kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [
            (np.zeros(0, int), np.zeros(0, int), np.zeros((0, len(self.measures.names)), np.float32))
        ]
        for rows, keys, found in self.strips(progress, of):
            best = best_of_rows(rows, mean_agreement(agreement(self.measures, found)), count)
            kept.append((rows[best], keys[best], found[best]))
        rows, keys, found = (np.concatenate(parts) for parts in zip(*kept, strict=True))
        return rows, keys, found

    def random(self, count: int, seed: int = 0) -> np.ndarray:
        """The measures of pairs drawn at random, no row with itself."""
        draw = np.random.default_rng(seed)
        rows, keys = draw.integers(self.rows, size=count), draw.integers(self.keys, size=count)
        if self.itself:
            apart = rows != keys
            rows, keys = rows[apart], keys[apart]
        return self.measures.of(PairList(rows, keys))

    def _near(self, count: int, progress: Progress | None) -> tuple[np.ndarray, np.ndarray]:
        """The right rows whose records share most with each left one, by sparse products of strips."""
        left, right = (_records(self.measures.fields, side) for side in ("left", "right"))
        weighed = weigh(left, right, letters=True)
        often = np.asarray((weighed.right != 0).sum(axis=0)).reshape(-1)
        rare = (often <= max(_COMMON_ROWS, _COMMON * self.keys)).nonzero()[0]
        a, b = weighed.left[:, rare], weighed.right[:, rare].T.tocsr()
        rows, keys = [np.zeros(0, int)], [np.zeros(0, int)]
        for start in range(0, self.rows, _STRIP):
            product = (a[start : start + _STRIP] @ b).tocoo()
            own, other, near = product.row + start, product.col, product.data
            if self.itself:
                apart = own != other
                own, other, near = own[apart], other[apart], near[apart]
            order = np.argsort(own, kind="stable")
            own, other, near = own[order], other[order], near[order]
            best = best_of_rows(own, near, count)
            rows.append(own[best].astype(np.int64))
            keys.append(other[best].astype(np.int64))
            _say(progress, "finding candidates", min(start + _STRIP, self.rows), self.rows)
        return np.concatenate(rows), np.concatenate(keys)


def best_of_rows(rows: np.ndarray, score: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest scores of each row; rows are sorted, and stay so.

    Example:
        >>> best_of_rows(np.array([0, 0, 0, 2]), np.array([1.0, 3.0, 2.0, 0.0]), 2).tolist()
        [1, 2, 3]
    """
    order = np.lexsort((-score, rows))
    ordered = rows[order]
    first = np.searchsorted(ordered, ordered, side="left")
    return np.asarray(order[np.arange(len(rows)) - first < count])


def _records(fields: list[ComparedColumn], side: str) -> np.ndarray:
    """All cells of each row as one text."""
    columns: list[Any] = []
    for field in fields:
        cells, missing = getattr(field, side), getattr(field, f"{side}_missing")
        shown = cells if cells.dtype == object else [f"{cell:.10g}" for cell in cells]
        columns.append(["" if absent else cell for cell, absent in zip(shown, missing, strict=True)])
    return np.array([" ".join(filter(None, row)) for row in zip(*columns, strict=True)], dtype=object)


def _say(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)
