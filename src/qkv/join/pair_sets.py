"""Which pairs of rows are compared at once: a strip of the grid of all pairs, or a list of candidates.

Both offer the three ways in which measures compare, so that every measure is written once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PairGrid", "PairList", "PairSet"]


class PairSet(ABC):
    """Pairs of a left and a right row."""

    @abstractmethod
    def dot(self, left: Any, right: Any) -> np.ndarray:
        """Inner products of the rows of two sparse matrices."""

    @abstractmethod
    def texts(self, scorer: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A RapidFuzz scorer of two arrays of strings."""

    @abstractmethod
    def of(self, function: Callable[[Any, Any], Any], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A function of two arrays that broadcast."""


@dataclass(frozen=True)
class PairGrid(PairSet):
    """Left rows `start` to `stop` with every right row: results are `(stop − start, right rows)`."""

    start: int
    stop: int

    def dot(self, left: Any, right: Any) -> np.ndarray:
        """A product of sparse matrices."""
        return np.asarray((left[self.start : self.stop] @ right.T).toarray())

    def texts(self, scorer: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Every left text with every right one."""
        from rapidfuzz import process

        return np.asarray(process.cdist(left[self.start : self.stop], right, scorer=scorer, dtype="float32"))

    def of(self, function: Callable[[Any, Any], Any], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Left as a column, right as a row."""
        return np.asarray(function(left[self.start : self.stop, None], right[None, :]))


@dataclass(frozen=True, eq=False)
class PairList(PairSet):
    """Left row `rows[n]` with right row `keys[n]`: results are `(n,)`."""

    rows: np.ndarray
    keys: np.ndarray

    def dot(self, left: Any, right: Any) -> np.ndarray:
        """Products of the rows that belong together."""
        return np.asarray(left[self.rows].multiply(right[self.keys]).sum(axis=1)).reshape(-1)

    def texts(self, scorer: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Each text with its own."""
        from rapidfuzz import process

        return np.asarray(process.cpdist(left[self.rows], right[self.keys], scorer=scorer, dtype="float32"))

    def of(self, function: Callable[[Any, Any], Any], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Each cell with its own."""
        return np.asarray(function(left[self.rows], right[self.keys]))
