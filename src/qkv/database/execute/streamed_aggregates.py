"""Values that come tile by tile, weighed: averages and votes that are not finished."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from qkv.database.execute.aggregates import Reading, Values, VoteValues, count_votes, values_of
from qkv.database.execute.statistics import ColumnStatistics
from qkv.database.io import arrow_columns
from qkv.database.keys.columns import Column

__all__ = ["Averages", "Tally", "Votes", "tally_of"]


_SOME = 2**16
"""Numbers that are summed in float32; longer sums lose digits."""


class Tally(ABC):
    """Weighed sums of the values.

    Fields:
        sums: `(q, n)`, for masses that may still be rescaled.
    """

    sums: np.ndarray

    @abstractmethod
    def add(self, mass: np.ndarray, values: Any, total: np.ndarray) -> None:
        """Add `Σ mass · value` of some rows.

        Args:
            mass: `(q, rows)`.
            values: what `part` gave of these rows.
            total: Σ mass, `(q, 1)`.
        """

    @abstractmethod
    def read(self, table: Any, clean: bool) -> Any:
        """The values of a tile; `clean`: none is missing."""

    @abstractmethod
    def missing(self, values: Any) -> np.ndarray | None:
        """Which values of a tile are missing; None: none is."""

    @abstractmethod
    def part(self, values: Any, start: int, stop: int) -> Any:
        """The values of some rows of the tile."""

    @abstractmethod
    def readings(self, scale: np.ndarray, total: np.ndarray) -> list[Reading]:
        """The answers: the sums times `scale` `(q, 1)`; `total` is Σ mass times scale."""


class Averages(Tally):
    """Numbers, timestamps and vectors: Σ w v, Σ w (v − middle), Σ w (v − middle)²."""

    def __init__(self, like: Column, folded: bool, facts: ColumnStatistics, queries: int) -> None:
        self.like, self.folded = like, folded
        middle: Any = np.array(facts.mean or [0.0])
        self.middle = middle if like.kind == "vector" else float(middle[0])
        self.centre: Any = self.middle  # the spread is the same from wherever deviations are measured
        self.values: Values = values_of(like, self.middle)
        self.sums = np.zeros((queries, self.values.matrix.shape[1]))
        self._room = np.empty(0)

    def read(self, table: Any, clean: bool) -> Any:
        """The numbers as they lie in memory where that is all, else a column."""
        column = table.column(self.like.name)
        if clean and self.like.kind == "number" and column.num_chunks == 1:
            (chunk,) = arrow_columns.decoded_chunks(column)
            cells = arrow_columns.units(chunk)
            if not chunk.null_count and cells.dtype.kind == "f":
                return cells
        return Column.from_table(table, self.like.name, self.folded, self.like)

    def missing(self, values: Any) -> np.ndarray | None:
        """Of a column."""
        return values.missing if isinstance(values, Column) and values.missing.any() else None

    def part(self, values: Any, start: int, stop: int) -> Any:
        """Its cells, or its matrix."""
        if isinstance(values, Column):
            cut = Column(
                values.name,
                values.kind,
                values.cells[start:stop],
                values.missing[start:stop],
                values.type,
                values.origin,
            )
            return values_of(cut, self.centre).matrix
        return values[start:stop]

    def add(self, mass: np.ndarray, values: Any, total: np.ndarray) -> None:
        """In float64; numbers as they lie, for one query, in their own dtype."""
        if values.ndim == 2 or len(mass) > 1:
            cells = values if values.ndim == 2 else self._matrix(values)
            self.sums += mass.astype(np.float64, copy=False) @ cells
            return
        dtype = np.result_type(mass, values)
        weights, cells = mass[0].astype(dtype, copy=False), values.astype(dtype, copy=False)
        self._recentre()
        if len(self._room) < len(cells) or self._room.dtype != dtype:
            self._room = np.empty(len(cells), dtype)
        apart = np.subtract(cells, dtype.type(self.centre), out=self._room[: len(cells)])
        for start in range(0, len(cells), _SOME):
            some, away = weights[start : start + _SOME], apart[start : start + _SOME]
            self.sums[0, 0] += np.dot(some, cells[start : start + _SOME])
            self.sums[0, 1] += np.dot(some, away)
            np.multiply(away, away, out=away)
            self.sums[0, 2] += np.dot(some, away)
        self.sums[:, 3] += total[:, 0]

    def _matrix(self, values: np.ndarray) -> np.ndarray:
        cells = values.astype(np.float64)
        apart = cells - self.centre
        return np.stack([cells, apart, apart * apart, np.ones_like(cells)], axis=1)

    def _recentre(self) -> None:
        """Measure from the mean so far: sums of squares in float32 then lose no digits of a small spread."""
        first, second, total = self.sums[0, 1:]
        if not total > 0:
            return
        centre = float(np.float32(self.centre + first / total))
        by = centre - self.centre
        self.sums[0, 1:3] = first - by * total, second - 2 * by * first + by * by * total
        self.centre = centre

    def readings(self, scale: np.ndarray, total: np.ndarray) -> list[Reading]:
        """As the values of a table do."""
        sums = self.sums.copy()
        if self.like.kind == "number" and len(sums) == 1:
            _, first, second, mass = sums[0]
            # Unless all weight is on one value, which is then given undisturbed, small deviations lose less.
            if mass > 0 and second * mass - first * first > 1e-9 * second * mass:
                sums[0, 0] = self.centre * mass + first
        output = sums * scale
        output[:, -1] = total[:, 0]
        return self.values.read(output, None)


class Votes(Tally):
    """Texts, categories and booleans: the mass of each label, and which came first."""

    def __init__(self, like: Column, folded: bool, queries: int) -> None:
        self.like, self.folded = like, folded
        self.labels: dict[Any, int] = {}
        self.sums = np.zeros((queries, 0))
        self.first = np.zeros((queries, 0), np.int64)
        self.negative = np.zeros(queries, bool)
        self.seen = 0

    def read(self, table: Any, clean: bool) -> Any:
        """The cells, and the numbers of their labels."""
        column = Column.from_table(table, self.like.name, self.folded, self.like)
        return VoteValues.coded(column, self.labels), column.missing

    def missing(self, values: Any) -> np.ndarray | None:
        """Of the column."""
        absent: np.ndarray = values[1]
        return absent if absent.any() else None

    def part(self, values: Any, start: int, stop: int) -> Any:
        """Their labels."""
        return values[0][start:stop]

    def add(self, mass: np.ndarray, values: Any, total: np.ndarray) -> None:
        """Count."""
        queries, labels = len(mass), len(self.labels)
        more = labels - self.sums.shape[1]
        if more > 0:
            # Twice as many as are there, so that labels which never end are not copied at every tile.
            more = max(more, self.sums.shape[1])
            self.sums = np.concatenate([self.sums, np.zeros((queries, more))], axis=1)
            never = np.full((queries, more), np.iinfo(np.int64).max)
            self.first = np.concatenate([self.first, never], axis=1)
        for query in range(queries):
            self.sums[query] += np.bincount(values, weights=mass[query], minlength=self.sums.shape[1])
            voting = np.flatnonzero(mass[query])[::-1]
            first = np.full(self.sums.shape[1], np.iinfo(np.int64).max)
            first[values[voting]] = voting + self.seen
            np.minimum(self.first[query], first, out=self.first[query])
        self.negative |= (mass < 0).any(axis=1)
        self.seen += len(values)

    def readings(self, scale: np.ndarray, total: np.ndarray) -> list[Reading]:
        """The label with most mass."""
        labels = list(self.labels)
        return [
            count_votes(
                labels,
                self.sums[i, : len(labels)] * scale[i],
                self.first[i, : len(labels)],
                float(total[i, 0]),
                bool(self.negative[i]),
            )
            for i in range(len(self.sums))
        ]


def tally_of(like: Column, folded: bool, facts: ColumnStatistics, queries: int) -> Tally:
    """The way in which this column's values are summed."""
    if like.kind in ("number", "timestamp", "vector"):
        return Averages(like, folded, facts, queries)
    return Votes(like, folded, queries)
