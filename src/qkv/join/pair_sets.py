"""Define the sets of row pairs for which similarities are computed: a block of all pairs, or a list of pairs.

`PairGrid` and `PairList` provide the three operations from which all similarities are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from qkv.core.typing import Float, Int, Shaped
from qkv.scores.string_functions import compare_all

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_ElementwiseFunction: TypeAlias = Callable[
    [Shaped[np.ndarray, "*left"], Shaped[np.ndarray, "*right"]], Shaped[np.ndarray, "*pairs"]
]

__all__ = ["PairGrid", "PairList", "PairSet"]


@dataclass(frozen=True)
class PairGrid:
    """Pairs of the left rows `start:stop` with all right rows; results have shape `(stop − start, right rows)`."""

    start: int
    stop: int

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> Float[np.ndarray, "rows right"]:
        """Return the inner products of the left rows `start:stop` with all right rows."""
        return np.asarray((left[self.start : self.stop] @ right.T).toarray())

    def string_similarity(
        self, scorer: Callable[..., float], left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Float[np.ndarray, "rows right"]:
        """Return the similarity of left strings `start:stop` to each right string, computed by a RapidFuzz scorer."""
        return compare_all(left[self.start : self.stop], right, scorer=scorer, dtype="float32")

    def apply(
        self, function: _ElementwiseFunction, left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Shaped[np.ndarray, "rows right"]:
        """Return the value of an elementwise function for each of the left cells `start:stop` and each right cell."""
        return np.asarray(function(left[self.start : self.stop, None], right[None, :]))


@dataclass(frozen=True, eq=False)
class PairList:
    """Pairs of left row `rows[i]` with right row `keys[i]`; results have shape `(pairs,)`."""

    rows: Int[np.ndarray, " pairs"]
    keys: Int[np.ndarray, " pairs"]

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> Float[np.ndarray, " pairs"]:
        """Return the inner product of left row `rows[i]` and right row `keys[i]` for each i."""
        return np.asarray(left[self.rows].multiply(right[self.keys]).sum(axis=1)).reshape(-1)

    def string_similarity(
        self, scorer: Callable[..., float], left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Float[np.ndarray, " pairs"]:
        """Return the similarity of the two strings of each pair, computed by a RapidFuzz scorer."""
        from rapidfuzz import process

        return np.asarray(process.cpdist(left[self.rows], right[self.keys], scorer=scorer, dtype="float32"))

    def apply(
        self, function: _ElementwiseFunction, left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Shaped[np.ndarray, " pairs"]:
        """Return the value of an elementwise function for the two cells of each pair."""
        return np.asarray(function(left[self.rows], right[self.keys]))


PairSet: TypeAlias = PairGrid | PairList
