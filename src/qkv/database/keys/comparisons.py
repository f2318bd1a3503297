"""How a kind of key is compared with a query, and when a query is unlike every key.

Every comparison hands the engine a key array, a score and a normalizer, and afterwards says how near the
rows of the answer are. Which comparison a database takes is chosen in `keys.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from qkv.database.io.formatting import number
from qkv.database.keys.columns import Column
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score
from qkv.scores.exact import Exact

__all__ = [
    "Comparison",
    "DistanceComparison",
    "MixedComparison",
    "ScoreComparison",
    "SimilarityComparison",
    "VectorDistanceComparison",
]


@dataclass(frozen=True, eq=False)
class Comparison(ABC):
    """Fields that every comparison has.

    Fields:
        columns: the key columns it reads, by their place among the key columns of the database.
        score, normalizer: what the engine is asked for; normalizer None is the score's own.
        key: the engine's key array.
        notes: sentences about how it was chosen.
    """

    columns: tuple[int, ...]
    score: Score
    normalizer: Normalizer | None
    key: np.ndarray
    notes: tuple[str, ...]
    measure: ClassVar[str] = ""
    """What `nearness` gives: "similarity", "distance", or "" where there is no one number."""

    @abstractmethod
    def query(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """The engine's query array from the parsed cells of all key columns."""

    def over(self, columns: Sequence[Column]) -> Self:
        """The same comparison with other rows, whose key columns these are."""
        return replace(self, key=self.query([column.cells for column in columns]))

    def nearness(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """The measure of each query `(q, …)` with some rows `(q, n)`; None where there is no one number."""
        return None

    def refusals(self, query: np.ndarray, nearest: np.ndarray) -> list[str | None]:
        """For each query and its nearest row, why it is unlike every key, or None."""
        return [None] * len(nearest)

    @property
    def no_weight(self) -> str:
        """What it means that no key has any weight."""
        return "no key equals it" if isinstance(self.score, Exact) else "no key has any weight"


@dataclass(frozen=True, eq=False)
class ScoreComparison(Comparison):
    """A comparison with no notion of nearness: the engine alone decides, by giving no weight."""

    read: tuple[Column, ...]
    """The columns in the order of `columns`."""
    fields: bool = False
    """Whether the key is a structured array with a field for each column, rather than one array."""

    def query(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """Cells as they are, timestamps in days."""
        own = [in_days(column, cells[index]) for index, column in zip(self.columns, self.read, strict=True)]
        if self.fields:
            return structured({column.name: each for column, each in zip(self.read, own, strict=True)})
        return own[0] if own[0].dtype == object or own[0].ndim == 2 else np.stack(own, axis=1)

    def over(self, columns: Sequence[Column]) -> Self:
        """The columns as well."""
        return replace(super().over(columns), read=tuple(columns[index] for index in self.columns))


@dataclass(frozen=True, eq=False)
class SimilarityComparison(Comparison):
    """A score that is itself a similarity, at most 1: texts by spelling, vectors by cosine."""

    threshold: float | None
    names: tuple[str, ...]
    """What each row's key is called in a sentence."""
    named: bool = False
    """Whether rows have names: the keys as they stand in the table."""
    abbreviations: bool = False
    """Whether a query that is the beginning of its nearest key resembles it, however long the rest is."""
    measure: ClassVar[str] = "similarity"

    def query(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """The one column's cells."""
        return cells[self.columns[0]]

    def over(self, columns: Sequence[Column]) -> Self:
        """Their names as well."""
        names = columns[self.columns[0]].original if self.named else None
        return replace(super().over(columns), names=() if names is None else tuple(names))

    def nearness(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The score of each query with its rows."""
        return np.asarray(self.score(query[:, None], self.key[rows]))[:, 0, :]

    def refusals(self, query: np.ndarray, nearest: np.ndarray) -> list[str | None]:
        """No similarity reaches the threshold, and the query is not the beginning of its nearest key."""
        if self.threshold is None:
            return [None] * len(nearest)
        best = self.nearness(query, nearest[:, None])[:, 0]
        reasons: list[str | None] = []
        for asked, row, similarity in zip(query, nearest, best, strict=True):
            # Not the other way round: every nonsense that happens to begin with a short key would be found.
            begins = self.abbreviations and len(asked) > 1 and self.key[row].startswith(asked)
            if similarity >= self.threshold or begins:
                reasons.append(None)
                continue
            which = f"the nearest key, {self.names[row]!r}," if self.names else "the nearest key"
            reasons.append(f"{which} has similarity {similarity:.2f}, under {self.threshold:g}")
        return reasons


@dataclass(frozen=True, eq=False)
class DistanceComparison(Comparison):
    """Numbers, timestamps and booleans as points, compared by their distance.

    Fields:
        place, scale: what is taken from and divides each column, before the score sees it.
        unit: what one unit of distance is in the measure that is shown.
        reach: the largest distance, in the measure that is shown, at which a key still answers; None for any.
        points: the columns, for showing a key.
    """

    place: np.ndarray
    scale: np.ndarray
    unit: float
    unit_name: str
    reach: float | None
    points: tuple[Column, ...]
    measure: ClassVar[str] = "distance"

    def query(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """The columns side by side, standardised as the key is."""
        stacked = np.stack([in_days(c, cells[i]) for c, i in zip(self.points, self.columns, strict=True)], axis=1)
        return np.asarray((stacked - self.place) / self.scale)

    def over(self, columns: Sequence[Column]) -> Self:
        """The columns as well."""
        return replace(super().over(columns), points=tuple(columns[index] for index in self.columns))

    def nearness(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Euclidean distances, differences taken one by one so that equal keys are at distance 0."""
        squares = np.square(query[:, None, :] - self.key[rows])
        return np.asarray(np.sqrt(squares.sum(axis=-1)) * self.unit)

    def refusals(self, query: np.ndarray, nearest: np.ndarray) -> list[str | None]:
        """The nearest key is out of reach."""
        if self.reach is None:
            return [None] * len(nearest)
        reasons: list[str | None] = []
        for row, distance in zip(nearest, self.nearness(query, nearest[:, None])[:, 0], strict=True):
            away = f"{number(distance, distance)}{self.unit_name} away; no match beyond a distance of {self.reach:.3g}"
            far = distance > self.reach
            reasons.append(f"the nearest key{self._shown(row)} is {away}" if far else None)
        return reasons

    def _shown(self, row: int) -> str:
        cells = [c.timestamp(c.cells[row]) if c.kind == "timestamp" else f"{c.cells[row]:.6g}" for c in self.points]
        return f", {', '.join(str(cell) for cell in cells)},"


@dataclass(frozen=True, eq=False)
class VectorDistanceComparison(DistanceComparison):
    """A column of vectors, compared by their distance as they stand."""

    def query(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """The one column's cells."""
        return cells[self.columns[0]]

    def _shown(self, row: int) -> str:
        return ""


@dataclass(frozen=True, eq=False)
class MixedComparison(Comparison):
    """Several key columns of different kinds: each is compared in its own way and must itself be near."""

    parts: tuple[tuple[str, Comparison], ...]

    def query(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """One structured array, a field for each part."""
        return structured({name: part.query(cells) for name, part in self.parts})

    def over(self, columns: Sequence[Column]) -> Self:
        """In each of its parts."""
        return replace(super().over(columns), parts=tuple((name, part.over(columns)) for name, part in self.parts))

    def refusals(self, query: np.ndarray, nearest: np.ndarray) -> list[str | None]:
        """The first part that is unlike its key."""
        found: list[str | None] = [None] * len(nearest)
        for name, part in self.parts:
            for index, reason in enumerate(part.refusals(query[name], nearest)):
                if reason is not None and found[index] is None:
                    found[index] = f"{name}: {reason}"
        return found


def structured(fields: dict[str, np.ndarray]) -> np.ndarray:
    """One record array from columns of equal length; a matrix becomes a field of vectors."""
    dtype = [(name, cells.dtype, cells.shape[1:]) for name, cells in fields.items()]
    rows = np.empty(len(next(iter(fields.values()))), dtype=dtype)
    for name, cells in fields.items():
        rows[name] = cells
    return rows


def in_days(column: Column, cells: np.ndarray) -> np.ndarray:
    """Moments in days, from their first; everything else as it is."""
    return cells / column.units_per_day if column.kind == "timestamp" else cells
