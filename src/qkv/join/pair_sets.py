"""Sets of row pairs to compare: a block of the grid of all pairs, or a list of candidate pairs.

Both classes provide the three operations from which all similarities are computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ElementwiseFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

__all__ = ["PairGrid", "PairList", "PairSet"]


class PairSet(ABC):
    """Base class of sets of pairs, each of a left row and a right row."""

    @abstractmethod
    def inner_products(self, left: csr_matrix, right: csr_matrix) -> np.ndarray:
        """Return the inner product of the left row and the right row of each pair."""

    @abstractmethod
    def string_similarity(self, scorer: Callable[..., float], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the similarity of the two strings of each pair, computed by a RapidFuzz scorer."""

    @abstractmethod
    def apply(self, function: ElementwiseFunction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the values of an elementwise function of the two cells of each pair."""


@dataclass(frozen=True)
class PairGrid(PairSet):
    """Pairs of the left rows `start:stop` with all right rows; results have shape `(stop − start, right rows)`."""

    start: int
    stop: int

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> np.ndarray:
        """Return the inner products of the left rows of the block with all right rows."""
        return np.asarray((left[self.start : self.stop] @ right.T).toarray())

    def string_similarity(self, scorer: Callable[..., float], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the similarity of every left string of the block to every right string."""
        from rapidfuzz import process

        return np.asarray(process.cdist(left[self.start : self.stop], right, scorer=scorer, dtype="float32"))

    def apply(self, function: ElementwiseFunction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Apply the function to all pairs of cells by broadcasting."""
        return np.asarray(function(left[self.start : self.stop, None], right[None, :]))


@dataclass(frozen=True, eq=False)
class PairList(PairSet):
    """Pairs of left row `rows[i]` with right row `keys[i]`; results have shape `(pairs,)`."""

    rows: np.ndarray
    keys: np.ndarray

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> np.ndarray:
        """Return the inner product of the two rows of each pair."""
        return np.asarray(left[self.rows].multiply(right[self.keys]).sum(axis=1)).reshape(-1)

    def string_similarity(self, scorer: Callable[..., float], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the similarity of the two strings of each pair."""
        from rapidfuzz import process

        return np.asarray(process.cpdist(left[self.rows], right[self.keys], scorer=scorer, dtype="float32"))

    def apply(self, function: ElementwiseFunction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Apply the function to the two cells of each pair."""
        return np.asarray(function(left[self.rows], right[self.keys]))
