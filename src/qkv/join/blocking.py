"""Select the pairs of rows of two tables that a join compares, and yield them in batches of bounded memory.

All pairs are candidates if there are at most 25 million. Otherwise, the candidates of a left row are the 50 right rows
with the largest cosine of tf-idf vectors of letter trigrams; trigrams that occur in more than 2 % of the rows are
ignored. Matches among other pairs are not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.join.compared_columns import ComparedColumn, PairIntegers, PairNumbers
from qkv.join.comparison_vectors import ComparisonVectors, PairGrid, PairList, agreement, join_cells, rarity, tfidf_rows

_MAX_PAIRS = 25_000_000
_DEFAULT_COUNT = 50
_BYTES = 48 * 2**20
_ROW_BLOCK = 512
_COMMON_SHARE = 0.02
_MIN_COMMON_ROWS = 1000
_RANDOM_PAIRS = 2**14


class CandidatePairs:
    """Pairs of rows that a join of two tables, or of a table with itself, compares.

    Args:
        measures: comparison vectors of both tables.
        self_join: whether left and right are the same table, so that no row is paired with itself.
        count: number of right rows per left row; None for all pairs if there are at most 25 million, else 50.
    """

    def __init__(self, measures: ComparisonVectors, self_join: bool = False, count: int | None = None) -> None:
        self.measures = measures
        self.self_join = self_join
        self.rows, self.keys = len(measures.fields[0].left), len(measures.fields[0].right)
        if count is None and self.rows * self.keys > _MAX_PAIRS:
            count = _DEFAULT_COUNT
        self.count = count
        self._candidates: tuple[PairIntegers, PairIntegers] | None = None

    @property
    def note(self) -> str:
        """Number of compared pairs and how they were selected, as a text for the notes of a join."""
        if self.count is None:
            return f"all {self.rows:,} × {self.keys:,} pairs compared"
        return (
            f"the {self.count} most similar right rows of each of {self.rows:,} left rows compared "
            f"(tf-idf of letter trigrams), of {self.keys:,}"
        )

    def batches(
        self, progress: Progress | None = None, of: Int[np.ndarray, " rows"] | None = None
    ) -> Iterator[tuple[PairIntegers, PairIntegers, Float[np.ndarray, "pairs similarities"]]]:
        """Yield batches of candidate pairs as `(rows, keys, measures)`, with all pairs of a left row in one batch.

        Args:
            progress: called with the step, the count done and the total.
            of: left rows to include; None for all.
        """
        selected = np.ones(self.rows, bool) if of is None else np.isin(np.arange(self.rows), of)
        width = len(self.measures.names)
        if self.count is None:
            most = max(1, _BYTES // (4 * width * max(self.keys, 1)))
            for start in range(0, self.rows, most):
                stop = min(start + most, self.rows)
                if not selected[start:stop].any():
                    continue
                found = self.measures.compute(PairGrid(start, stop)).reshape(-1, width)
                rows = np.repeat(np.arange(start, stop), self.keys)
                keys = np.tile(np.arange(self.keys), stop - start)
                allowed = selected[rows] & self._allowed(rows, keys)
                if not allowed.all():
                    rows, keys, found = rows[allowed], keys[allowed], found[allowed]
                yield rows, keys, found
                report(progress, "comparing", stop, self.rows)
            return
        if self._candidates is None:
            self._candidates = self._most_similar(self.count, progress)
        rows, keys = self._candidates
        if of is not None:
            rows, keys = rows[selected[rows]], keys[selected[rows]]
        most = max(1, _BYTES // (8 * width * self.count)) * self.count
        # A batch ends with the last pair of a left row.
        ends = np.searchsorted(rows, rows[most - 1 :: most], side="right")
        for start, stop in pairwise(np.unique([0, *ends, len(rows)]).tolist()):
            pairs = PairList(rows[start:stop], keys[start:stop])
            yield pairs.rows, pairs.keys, self.measures.compute(pairs)
            report(progress, "comparing", int(rows[stop - 1]) + 1, self.rows)

    def top_candidates(
        self, count: int, of: Int[np.ndarray, " rows"] | None = None, progress: Progress | None = None
    ) -> tuple[PairIntegers, PairIntegers, Float[np.ndarray, "pairs similarities"]]:
        """Return `(rows, keys, measures)` of the `count` pairs of each left row whose agreement is rarest.

        Rarity is that among random pairs (`qkv.join.comparison_vectors.rarity`).

        Args:
            count: number of pairs per left row.
            of: left rows to include; None for all.
            progress: called with the step, the count done and the total.
        """
        rarest: list[tuple[PairIntegers, PairIntegers, Float[np.ndarray, "pairs similarities"]]] = [
            (np.zeros(0, int), np.zeros(0, int), np.zeros((0, len(self.measures.names)), np.float32))
        ]
        random = agreement(self.measures, self.random(_RANDOM_PAIRS))
        for rows, keys, found in self.batches(progress, of):
            best = top_per_row(rows, rarity(agreement(self.measures, found), random), count)
            rarest.append((rows[best], keys[best], found[best]))
        rows, keys, found = (np.concatenate(parts) for parts in zip(*rarest, strict=True))
        return rows, keys, found

    def random(self, count: int, seed: int = 0) -> Float[np.ndarray, "pairs similarities"]:
        """Return the comparison vectors of `count` random pairs, drawn with replacement from all pairs.

        If there are fewer pairs, each is returned equally often, whatever the order of the rows. In a join of a table
        with itself, pairs of a row with itself are left out, so that fewer may be returned.
        """
        if (pairs := self.rows * self.keys) > count:
            draw = np.random.default_rng(seed)
            rows, keys = draw.integers(self.rows, size=count), draw.integers(self.keys, size=count)
        else:
            rows, keys = np.divmod(np.tile(np.arange(pairs), count // pairs), self.keys)
        allowed = self._allowed(rows, keys)
        return self.measures.compute(PairList(rows[allowed], keys[allowed]))

    def _allowed(self, rows: PairIntegers, keys: PairIntegers) -> Bool[np.ndarray, " pairs"]:
        """Return a boolean array that is False for the pairs of a row with itself in a join of a table with itself."""
        return np.asarray((rows != keys) | (not self.self_join))

    def _most_similar(self, count: int, progress: Progress | None) -> tuple[PairIntegers, PairIntegers]:
        """Return `(rows, keys)` of the pairs of each left row with at most `count` right rows of largest cosine.

        The cosines of tf-idf vectors of letter trigrams are computed by sparse products. Right rows that share no
        trigram with the left row are left out.
        """
        left, right = (_records(self.measures.fields, side) for side in ("left", "right"))
        tfidf = tfidf_rows(left, right, letters=True)
        document_frequency = np.asarray((tfidf.right != 0).sum(axis=0)).reshape(-1)
        rare = (document_frequency <= max(_MIN_COMMON_ROWS, _COMMON_SHARE * self.keys)).nonzero()[0]
        a, b = tfidf.left[:, rare], tfidf.right[:, rare].T.tocsr()
        rows, keys = [np.zeros(0, int)], [np.zeros(0, int)]
        for start in range(0, self.rows, _ROW_BLOCK):
            product = (a[start : start + _ROW_BLOCK] @ b).tocoo()
            allowed = self._allowed(product.row + start, product.col)
            own, other, near = product.row[allowed] + start, product.col[allowed], product.data[allowed]
            best = top_per_row(own, near, count)
            rows.append(own[best].astype(np.int64))
            keys.append(other[best].astype(np.int64))
            report(progress, "finding candidates", min(start + _ROW_BLOCK, self.rows), self.rows)
        return np.concatenate(rows), np.concatenate(keys)


def top_per_row(rows: PairIntegers, score: PairNumbers, count: int) -> Int[np.ndarray, " selected"]:
    """Return the indices into `score` of the `count` largest scores of each row, sorted by row and descending score.

    Example:
        >>> top_per_row(np.array([0, 0, 0, 2]), np.array([1.0, 3.0, 2.0, 0.0]), 2).tolist()
        [1, 2, 3]
    """
    order = np.lexsort((-score, rows))
    ordered = rows[order]
    first = np.searchsorted(ordered, ordered, side="left")
    return np.asarray(order[np.arange(len(rows)) - first < count])


def _records(fields: list[ComparedColumn], side: str) -> Shaped[np.ndarray, " rows"]:
    """Return a string for each row of a side, `"left"` or `"right"`, with the cells of all fields joined by spaces."""
    columns: list[list[str]] = []
    for field in fields:
        cells, missing = getattr(field, side), getattr(field, f"{side}_missing")
        shown = cells if cells.dtype == object else [f"{cell:.10g}" for cell in cells]
        columns.append(["" if absent else cell for cell, absent in zip(shown, missing, strict=True)])
    return join_cells(columns)
