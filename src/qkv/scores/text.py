"""Base class of the text scores, which compute similarities of strings with RapidFuzz.

Arrays of strings have no width axis. Source: https://rapidfuzz.github.io/RapidFuzz.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar

import numpy as np

from qkv.core.typing import Array, Float, Shaped
from qkv.scores.base import GeneralScore
from qkv.scores.string_functions import compare_all, require_string_functions, string_functions

__all__ = ["TextScore", "map_batch"]


class TextScore(GeneralScore):
    """Base class of scores that are similarities of strings between 0 and 1; equal strings have similarity 1.

    The similarity to a missing value (None) is 0. The default normalizer is `Sum`. A subclass lists functions of
    RapidFuzz in `scorers`; the score is the mean of their results.
    """

    accepts = "text"
    default_normalizer = "sum"
    scorers: ClassVar[tuple[str, ...]] = ()
    """Dotted names of functions in the package `rapidfuzz`."""
    scorer_maximum: ClassVar[float] = 1.0
    """The result of each function for equal strings."""

    def validate(self) -> None:
        require_string_functions()

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return 500 * len(self.scorers)

    def compare(
        self, query: Shaped[Array, "*#batch q"], key: Shaped[Array, "*#batch k"]
    ) -> Float[np.ndarray, "*#batch q k"]:
        return map_batch(self._similarities, query, key)

    def _similarities(self, query: Shaped[np.ndarray, " q"], key: Shaped[np.ndarray, " k"]) -> Float[np.ndarray, "q k"]:
        rapidfuzz = string_functions()
        total: np.ndarray | float = 0.0
        for name in self.scorers:
            scorer = attrgetter(name)(rapidfuzz)
            total = total + compare_all(query, key, scorer=scorer, dtype="float64")
        return np.asarray(total / (len(self.scorers) * self.scorer_maximum))


def map_batch(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    query: Shaped[Array, "*#batch q"],
    key: Shaped[Array, "*#batch k"],
) -> Float[np.ndarray, "*#batch q k"]:
    """Apply a function of arrays `(q,)` and `(k,)` to each batch element and stack the results as float64."""
    query, key = np.asarray(query), np.asarray(key)
    if query.ndim == key.ndim == 1:
        if not len(query):  # the words of the keys are not needed
            return np.zeros((0, len(key)))
        return np.asarray(function(query, key), dtype=np.float64)
    return np.asarray(np.vectorize(function, otypes=[np.float64], signature="(q),(k)->(q,k)")(query, key))
