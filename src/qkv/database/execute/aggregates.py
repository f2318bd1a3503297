"""What becomes of the values: numbers, timestamps and vectors are averaged, texts and categories vote.

For weights w, whose total is W:

    numbers    value = Σ w v                      spread = sqrt(Σ w (v − mean)² / W),  mean = Σ w v / W
    vectors    the same, with the length of v − mean
    votes      value = the v with most weight     spread = sqrt(1 − Σ p²),  p = its share of the weight

The spread of a vote is that of the one-hot vectors: 0 where all agree, 0.71 where two are even, and it
nears 1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.database.keys.columns import Column

__all__ = ["Reading", "Values", "count_votes", "values_of"]

# LOO errors of more classes, or of wider vectors, say little more and cost in proportion.
_MOST_TARGETS = 16
# A variance is a difference of two sums: below this part of them float64 cannot tell it from 0.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Reading:
    """One answer: the value, its spread (None where weights have both signs), the shares of a vote."""

    value: Any
    spread: Any
    probabilities: dict[Any, float] = field(default_factory=dict)


class Values(ABC):
    """A column of values as the engine averages it."""

    votes = False
    """Whether `read` wants the weights themselves."""

    def __init__(self, column: Column) -> None:
        self.column = column

    @property
    @abstractmethod
    def matrix(self) -> np.ndarray:
        """What is averaged, `(rows, n)`; its last column is 1, so that its average is the total weight."""

    @abstractmethod
    def targets(self, kept: np.ndarray) -> np.ndarray | str:
        """What leave-one-out should predict for these rows, `(rows, n)`, or why nothing can be predicted."""

    @abstractmethod
    def read(self, output: np.ndarray, weights: np.ndarray | None) -> list[Reading]:
        """The answers from the averaged matrix `(q, n)` and, for votes, the weights `(q, rows)`."""


def values_of(column: Column, middle: Any = None) -> Values:
    """The way in which this column answers.

    Args:
        column: its cells.
        middle: a number or vector near the mean, from which deviations are measured; None: the mean of these.
    """
    if column.kind == "vector":
        return VectorValues(column, middle)
    if column.kind in ("number", "timestamp"):
        return NumberValues(column, middle)
    return VoteValues(column)


class NumberValues(Values):
    """Numbers and timestamps, averaged."""

    def __init__(self, column: Column, middle: float | None = None) -> None:
        super().__init__(column)
        if middle is None:
            present = column.cells[~column.missing]
            middle = float(present.mean()) if len(present) else 0.0
        self.middle = middle

    @property
    def matrix(self) -> np.ndarray:
        """The value itself, its deviation from the middle and the square of that, and 1."""
        # The value is carried undisturbed: where one row has all the weight, the answer is that cell to the
        # last bit.
        deviation = np.where(self.column.missing, 0.0, self.column.cells - self.middle)
        return np.stack([self.column.cells, deviation, deviation**2, np.ones(len(deviation))], axis=1)

    def targets(self, kept: np.ndarray) -> np.ndarray | str:
        """The numbers."""
        return np.asarray(self.column.cells[kept][:, None])

    def read(self, output: np.ndarray, weights: np.ndarray | None) -> list[Reading]:
        """Σ w v and its weighted standard deviation."""
        spreads = _spread(output[:, 1:2], output[:, 2], output[:, 3])
        if self.column.kind == "number":
            return [Reading(float(value), spread) for value, spread in zip(output[:, 0], spreads, strict=True)]
        return [
            Reading(self.column.timestamp(value), None if spread is None else self.column.duration(spread))
            for value, spread in zip(output[:, 0], spreads, strict=True)
        ]


class VectorValues(Values):
    """Vectors, averaged."""

    def __init__(self, column: Column, middle: np.ndarray | None = None) -> None:
        super().__init__(column)
        if middle is None:
            present = column.cells[~column.missing]
            middle = present.mean(axis=0) if len(present) else np.zeros(column.cells.shape[1])
        self.middle = middle

    @property
    def matrix(self) -> np.ndarray:
        """The vectors, their deviations, the square of these, and 1."""
        deviation = np.where(self.column.missing[:, None], 0.0, self.column.cells - self.middle)
        square = np.square(deviation).sum(axis=1, keepdims=True)
        return np.concatenate([self.column.cells, deviation, square, np.ones_like(square)], axis=1)

    def targets(self, kept: np.ndarray) -> np.ndarray | str:
        """The vectors, or their sixteen axes of most variance."""
        cells = self.column.cells[kept]
        widest = np.argsort(-cells.var(axis=0), kind="stable")[:_MOST_TARGETS]
        return np.asarray(cells[:, np.sort(widest)])

    def read(self, output: np.ndarray, weights: np.ndarray | None) -> list[Reading]:
        """The mean vector, and the root of the mean squared distance from it."""
        width = self.column.cells.shape[1]
        spreads = _spread(output[:, width : 2 * width], output[:, -2], output[:, -1])
        return [Reading(row[:width], spread) for row, spread in zip(output, spreads, strict=True)]


class VoteValues(Values):
    """Texts, categories and booleans: each row votes for its value with its weight."""

    votes = True

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        labels: dict[Any, int] = {}
        self.codes = self.coded(column, labels)
        self.labels = list(labels)

    @staticmethod
    def coded(column: Column, labels: dict[Any, int]) -> np.ndarray:
        """The number of each cell's label; labels not met before are numbered on."""
        # Texts as they stand, not folded: λ and Λ are the same key, and not the same value.
        cells = column.cells.astype(bool) if column.original is None else column.original
        return np.array([labels.setdefault(cell, len(labels)) for cell in cells.tolist()], dtype=np.int64)

    @property
    def matrix(self) -> np.ndarray:
        """Only 1: the votes are counted from the weights."""
        return np.ones((len(self.codes), 1))

    def targets(self, kept: np.ndarray) -> np.ndarray | str:
        """One-hot columns of the fifteen commonest values; the others are none of these."""
        codes, counts = np.unique(self.codes[kept], return_counts=True)
        if len(codes) > 0.5 * kept.sum():
            return "the values are nearly all different"
        common = codes[np.argsort(-counts, kind="stable")[: _MOST_TARGETS - 1]]
        return np.asarray(self.codes[kept][:, None] == common[None, :], dtype=np.float64)

    def read(self, output: np.ndarray, weights: np.ndarray | None) -> list[Reading]:
        """The value with most weight, ties to the one whose row of weight comes first in the table."""
        assert weights is not None
        readings = []
        for row, total in zip(weights, output[:, -1], strict=True):
            votes = np.bincount(self.codes, weights=row, minlength=len(self.labels))
            first = np.full(len(self.labels), len(row))
            voting = np.flatnonzero(row)[::-1]
            # Written backwards, so that the first row of each label stays.
            first[self.codes[voting]] = voting
            readings.append(count_votes(self.labels, votes, first, total, bool((row < 0).any())))
        return readings


def count_votes(labels: list[Any], votes: np.ndarray, first: np.ndarray, total: float, negative: bool) -> Reading:
    """The answer of a vote.

    Args:
        labels: what is voted for.
        votes: the weight of each.
        first: a number for each, the lowest of which wins a tie.
        total: of all weights.
        negative: some row has a negative weight, so there are no shares.
    """
    order = np.lexsort((first, -votes))
    if not total or negative:
        return Reading(labels[int(order[0])] if len(order) else None, None)
    shares = votes / total
    probabilities = {labels[code]: float(shares[code]) for code in order[:_MOST_TARGETS] if shares[code] > 0}
    disagreement = 1.0 - float(np.square(shares).sum())
    spread = np.sqrt(disagreement) if disagreement > _ROUNDING else 0.0
    return Reading(labels[int(order[0])], float(spread), probabilities)


def _spread(deviation: np.ndarray, square: np.ndarray, total: np.ndarray) -> list[float | None]:
    """sqrt(Σ w d² / W − |Σ w d / W|²), or None where the weights are not those of a mean."""
    spreads: list[float | None] = []
    for first, second, weight in zip(deviation, square, total, strict=True):
        if not weight > 0:
            spreads.append(None)
            continue
        mean_square = second / weight
        variance = mean_square - np.square(first / weight).sum()
        # Weights of both signs can leave a negative "variance": there is no spread then.
        if variance < -1e-6 * abs(mean_square):
            spreads.append(None)
        else:
            spreads.append(float(np.sqrt(variance)) if variance > _ROUNDING * mean_square else 0.0)
    return spreads
