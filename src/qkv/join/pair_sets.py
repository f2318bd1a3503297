"""Sets of row pairs to compare: a block of the grid of all pairs, or a list of candidate pairs.

Both provide the three operations from which all similarities are computed.
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
    """A set of pairs of a left and a right row."""

    @abstractmethod
    def inner_products(self, left: csr_matrix, right: csr_matrix) -> np.ndarray:
        """Return the inner products of rows of two sparse matrices."""

    @abstractmethod
    def string_similarity(self, scorer: Callable[..., float], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the values of a RapidFuzz scorer on two arrays of strings."""

    @abstractmethod
    def apply(self, function: ElementwiseFunction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the values of an elementwise function of two arrays."""


@dataclass(frozen=True)
class PairGrid(PairSet):
    """Left rows `start` to `stop` with every right row; results have shape `(stop − start, right rows)`."""

    start: int
    stop: int

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> np.ndarray:
        """Return the product of sparse matrices."""
        return np.asarray((left[self.start : self.stop] @ right.T).toarray())

    def string_similarity(self, scorer: Callable[..., float], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Compare every left text with every right text."""
        from rapidfuzz import process

        return np.asarray(process.cdist(left[self.start : self.stop], right, scorer=scorer, dtype="float32"))

    def apply(self, function: ElementwiseFunction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Apply the function to the broadcast grid."""
        return np.asarray(function(left[self.start : self.stop, None], right[None, :]))


@dataclass(frozen=True, eq=False)
class PairList(PairSet):
    """Left row `rows[n]` with right row `keys[n]`; results have shape `(n,)`."""

    rows: np.ndarray
    keys: np.ndarray

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> np.ndarray:
        """Return the inner products of paired rows."""
        return np.asarray(left[self.rows].multiply(right[self.keys]).sum(axis=1)).reshape(-1)

    def string_similarity(self, scorer: Callable[..., float], left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Compare paired texts."""
        from rapidfuzz import process

        return np.asarray(process.cpdist(left[self.rows], right[self.keys], scorer=scorer, dtype="float32"))

    def apply(self, function: ElementwiseFunction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Apply the function to paired cells."""
        return np.asarray(function(left[self.rows], right[self.keys]))
