"""Which comparison a key gets: the defaults of `ask`, and what changes where a score is given.

    key                    score                     normalizer                    no match where
    one text               Spelling                  ten best, softmax of s/0.02   similarity < 0.8
    one category, boolean  Exact                     Sum                           nothing is equal
    one vector             Cosine                    ten best, softmax of s/0.05   cosine < 0.5
    numbers and timestamps    Gaussian, standardised    Softmax                       out of reach
    of several kinds       ByColumn of the above     Softmax                       out of reach of one

`reach` is the larger of three bandwidths (at most one standard deviation) and the 99th percentile of the
distances between a key and its nearest other key. A key that fills more than ten rows raises "ten" to that
number, so that no equal key is left out. A score given as an object sees numbers as they stand in the table
(timestamps in days); a kernel given by name and without a bandwidth sees standardised columns, and its
bandwidth is chosen.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkv.database.io.formatting import number
from qkv.database.keys.bandwidth import Bandwidth
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import (
    Comparison,
    DistanceComparison,
    MixedComparison,
    ScoreComparison,
    SimilarityComparison,
    VectorDistanceComparison,
    in_days,
    structured,
)
from qkv.database.keys.neighbor_blocks import nearest_distances
from qkv.database.keys.part_registry import ParsedScore, parse_score
from qkv.errors import OptionError
from qkv.normalizers import Softmax, TopK
from qkv.scores import ByColumn, Cosine, Exact, Gaussian, Spelling
from qkv.scores.base import Score

__all__ = ["ComparisonChooser"]

_TEXT_TEMPERATURE = 0.02
_TEXT_THRESHOLD = 0.8
_VECTOR_TEMPERATURE = 0.05
_VECTOR_THRESHOLD = 0.5
_BEST = 10
# The bandwidth at which a kernel smooths as much as a Gaussian of bandwidth 1: Marron and Nolan (1988),
# Canonical kernels for density estimation; the ratio of (R(K) / μ₂(K)²)^(1/5).
_AS_WIDE_AS_GAUSSIAN = {"laplace": 0.7398, "boxcar": 1.7401, "epanechnikov": 2.2138, "triangular": 2.4326}


@dataclass(eq=False)
class ComparisonChooser:
    """The key columns of a database.

    Fields:
        columns: in the order in which the key was named.
        kept: `(rows,)`, where key and value are present; only these rows speak about bandwidths and reach.
        bandwidth: chooses one for standardised points `(rows, width)` and these rows; the database caches it.
    """

    columns: tuple[Column, ...]
    kept: np.ndarray
    bandwidth: Callable[[np.ndarray], Bandwidth]
    scott: Callable[[np.ndarray], Bandwidth]

    def compare(self, score: Score | str | None, threshold: float | None) -> Comparison:
        """The comparison for this score, or the default one.

        Raises:
            OptionError: a score's name is unknown, or names one column's score for a key of several kinds.
        """
        named = parse_score(score) if isinstance(score, str) else None
        if named is not None and not named.needs_bandwidth:
            score, named = named.build(), None
        every = tuple(range(len(self.columns)))
        if isinstance(score, Score):
            return self._given(score, every, threshold)
        if self._one("text", "category", "vector") or (self._one("boolean") and named is None):
            if named is not None:
                raise OptionError(
                    f"the score {score!r} compares numbers, and the key {self.columns[0].name!r} holds "
                    f"{self.columns[0].kind}s. "
                    "Choose spelling, jaro-winkler, levenshtein, token-set-ratio or exact."
                )
            return self._alone(0, threshold)
        if all(_is_point(column) for column in self.columns):
            return self._points(every, named, threshold, self.bandwidth)
        if named is not None:
            raise OptionError(
                f"the score {score!r} compares one kind of key, and this key has several. "
                "Leave the score out, or give scores.ByColumn."
            )
        return self._mixture(threshold)

    def _one(self, *kinds: str) -> bool:
        return len(self.columns) == 1 and self.columns[0].kind in kinds

    # -- a score was given ------------------------------------------------------------------------------

    def _given(self, score: Score, every: tuple[int, ...], threshold: float | None) -> Comparison:
        notes: tuple[str, ...] = (f"compared by {score}",)
        first = self.columns[0]
        if isinstance(score, ByColumn) or (len(self.columns) > 1 and not all(map(_is_point, self.columns))):
            key = structured({c.name: in_days(c, c.cells) for c in self.columns})
            return ScoreComparison(every, score, None, key, notes, self.columns, fields=True)
        if self._one("text", "category"):
            if score.accepts == "text" and score.default_normalizer == "sum":
                return self._texts(0, score, threshold, notes)
            return ScoreComparison(every, score, None, first.cells, notes, self.columns)
        if self._one("vector"):
            if isinstance(score, Cosine) and score.temperature == 1.0:
                return self._vectors(0, threshold)
            if threshold is None or not isinstance(getattr(score, "bandwidth", None), float | int):
                return ScoreComparison(every, score, None, first.cells, notes, self.columns)
            notes += (f"no match beyond a distance of {threshold:.3g}",)
            blank = np.zeros(1)
            return VectorDistanceComparison(
                every, score, None, first.cells, notes, blank, blank + 1, 1.0, "", threshold, self.columns
            )
        stacked = self._stacked(every)
        width = getattr(score, "bandwidth", None)
        if not isinstance(width, float | int):
            return ScoreComparison(every, score, None, stacked, notes, self.columns)
        ones = np.ones(len(every))
        reach = self._reach(stacked, 3.0 * width, "own") if threshold is None else threshold
        notes += (f"no match beyond a distance of {reach:.3g}",)
        points = tuple(self.columns)
        return DistanceComparison(
            every, score, None, stacked, notes, ones * 0.0, ones, 1.0, _unit_name(points), reach, points
        )

    # -- the defaults -----------------------------------------------------------------------------------

    def _alone(self, index: int, threshold: float | None) -> Comparison:
        column = self.columns[index]
        if column.kind == "text":
            return self._texts(
                index,
                Spelling(),
                threshold,
                ("compared by Spelling, the mean of Jaro–Winkler and edit similarity",),
            )
        if column.kind == "vector":
            return self._vectors(index, threshold)
        notes = ("compared by equality",)
        if column.kind == "category":
            return ScoreComparison((index,), Exact(), None, column.cells, notes, (column,))
        return ScoreComparison((index,), Exact(), None, column.cells[:, None], notes, (column,))

    def _texts(self, index: int, score: Score, threshold: float | None, notes: tuple[str, ...]) -> Comparison:
        column = self.columns[index]
        assert column.original is not None
        best = self._best(column)
        least = _TEXT_THRESHOLD if threshold is None else threshold
        spelling = isinstance(score, Spelling)
        notes += (f"the {best} best keys take part", f"no match under a similarity of {least:g}")
        if spelling:
            notes = (*notes[:-1], f"{notes[-1]}, unless the query begins the key")
        normalizer = TopK(best, normalizer=Softmax(temperature=_TEXT_TEMPERATURE))
        names = tuple(column.original)
        return SimilarityComparison(
            (index,), score, normalizer, column.cells, notes, least, names, True, abbreviations=spelling
        )

    def _vectors(self, index: int, threshold: float | None) -> Comparison:
        least = _VECTOR_THRESHOLD if threshold is None else threshold
        notes = (
            f"compared by cosine; the {_BEST} best keys take part",
            f"no match under a cosine of {least:g}",
        )
        normalizer = TopK(_BEST, normalizer=Softmax(temperature=_VECTOR_TEMPERATURE))
        return SimilarityComparison((index,), Cosine(), normalizer, self.columns[index].cells, notes, least, ())

    def _points(
        self,
        indices: tuple[int, ...],
        named: ParsedScore | None,
        threshold: float | None,
        choose: Callable[[np.ndarray], Bandwidth],
    ) -> DistanceComparison:
        points = tuple(self.columns[index] for index in indices)
        stacked = self._stacked(indices)
        place, scale = self.moments(indices, stacked)
        # A column that never changes says nothing; dividing by 1 keeps it from deciding by rounding.
        scale = np.where(scale > 0, scale, 1.0)
        key = (stacked - place) / scale
        chosen = choose(key)
        kind = named.kind.__name__.lower() if named is not None else "gaussian"
        width = chosen.value * _AS_WIDE_AS_GAUSSIAN.get(kind, 1.0)
        score = named.build(width) if named is not None else Gaussian(width)
        alone = len(points) == 1
        unit = float(scale[0]) if alone else 1.0
        reach = threshold
        if reach is None:
            reach = self._reach(key, min(3.0 * width, 1.0), "standard") * unit
        own = ", ".join(
            f"{width * s:.3g} {c.name}" + " days" * (c.kind == "timestamp") for c, s in zip(points, scale, strict=True)
        )
        unit_name = _unit_name(points) if alone else " standard deviations"
        notes = (
            f"compared by {type(score).__name__} of standardised columns, bandwidth {width:.3g} ({own})",
            f"bandwidth {_how(chosen)}",
            f"no match beyond a distance of {reach:.3g}{unit_name}",
        )
        return DistanceComparison(indices, score, None, key, notes, place, scale, unit, unit_name, reach, points)

    def _mixture(self, threshold: float | None) -> MixedComparison:
        parts: list[tuple[str, Comparison, float]] = []
        points = tuple(i for i, column in enumerate(self.columns) if _is_point(column))
        texts = sum(column.kind == "text" for column in self.columns)
        if points:
            name = "+".join(self.columns[i].name for i in points)
            parts.append((name, self._points(points, None, None, self.scott), 1.0))
        for index, column in enumerate(self.columns):
            if index in points:
                continue
            # A similarity counts as it would alone; two texts share it, for each is half of the name.
            weight = 1.0 / (_VECTOR_TEMPERATURE if column.kind == "vector" else _TEXT_TEMPERATURE)
            own = self._alone(index, threshold if column.kind == "text" else None)
            if column.kind == "category":
                names = () if column.original is None else tuple(column.original)
                own = SimilarityComparison((index,), Exact(), None, column.cells, own.notes, 1.0, names, True)
            parts.append((column.name, own, weight / texts if column.kind == "text" else weight))
        score = ByColumn(tuple((name, part.score, weight) for name, part, weight in parts))
        key = structured({name: part.key for name, part, _ in parts})
        notes = tuple(f"{name}: {note}" for name, part, _ in parts for note in part.notes if "take part" not in note)
        return MixedComparison((), score, Softmax(), key, notes, tuple((name, part) for name, part, _ in parts))

    # -- what the rows say ------------------------------------------------------------------------------

    def moments(self, indices: tuple[int, ...], stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of some columns side by side."""
        present = stacked[self.kept]
        if not len(present):
            return np.zeros(len(indices)), np.ones(len(indices))
        return present.mean(axis=0), present.std(axis=0)

    def repeats(self, column: Column) -> int:
        """How many rows the commonest key fills."""
        return max(Counter(column.cells[self.kept].tolist()).values(), default=0)

    def between(self, key: np.ndarray, unit: str) -> float:
        """The distance that 99 % of the keys do not exceed from their nearest other.

        Args:
            key: `(rows, width)`.
            unit: "own", or "standard" where columns are standardised.
        """
        found = nearest_distances(key[self.kept])
        found = found[np.isfinite(found)]
        return float(np.quantile(found, 0.99)) if len(found) else 0.0

    def _stacked(self, indices: tuple[int, ...]) -> np.ndarray:
        return np.stack([in_days(self.columns[i], self.columns[i].cells) for i in indices], axis=1)

    def _best(self, column: Column) -> int:
        return max(_BEST, self.repeats(column))

    def _reach(self, key: np.ndarray, bandwidths: float, unit: str) -> float:
        return max(bandwidths, self.between(key, unit))


def _is_point(column: Column) -> bool:
    return column.kind in ("number", "timestamp", "boolean")


def _unit_name(points: tuple[Column, ...]) -> str:
    return " days" if len(points) == 1 and points[0].kind == "timestamp" else ""


def _how(chosen: Bandwidth) -> str:
    how = f"by {chosen.method} over {chosen.rows:,} rows"
    if chosen.error is None:
        return how
    of_mean = (chosen.baseline or 0.0) ** 0.5
    return f"{how}: error {number(chosen.error**0.5)} (root mean square; {number(of_mean)} for the mean of all)"
