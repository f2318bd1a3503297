"""Text scores: similarities of strings, computed by RapidFuzz, https://rapidfuzz.github.io/RapidFuzz.

    Levenshtein        1 − edits / max(len q, len k)
    JaroWinkler        J + 0.1 · l · (1 − J),   l = length of the common prefix, at most 4
    TokenSetRatio      token_set_ratio(q, k) / 100
    Spelling           (JaroWinkler + 1 − edits / max(len q, len k)) / 2, where an edit may also swap two neighbors

Arrays of strings have no width axis. The Jaro–Winkler similarity alone ignores much of the order of shared letters:
among many thousands of names, one in three random strings has a similarity of 0.8 to some name. The edit similarity
alone does not penalize errors at the beginning more than errors at the end.

Sources: Levenshtein (1966), Binary codes capable of correcting deletions, insertions and reversals; Winkler (1990),
String comparator metrics and enhanced decision rules in the Fellegi–Sunter model; Boytsov (2011), Indexing methods for
approximate dictionary searching, section 2, for the optimal string alignment distance of `Spelling`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

import numpy as np

from qkv.core.typing import Array, Float, Shaped
from qkv.scores.base import GeneralScore
from qkv.scores.string_functions import compare_all, require_string_functions, string_functions

__all__ = ["JaroWinkler", "Levenshtein", "Spelling", "TokenSetRatio"]


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


@dataclass(frozen=True, eq=False)
class Levenshtein(TextScore):
    """Levenshtein similarity of strings, where an edit inserts, deletes or substitutes one letter.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: query and key are numbers.

    Example:
        >>> Levenshtein()(["kitten"], ["sitting", "xyz"]).round(3)
        array([[0.571, 0.   ]])
    """

    scorers = ("distance.Levenshtein.normalized_similarity",)


@dataclass(frozen=True, eq=False)
class JaroWinkler(TextScore):
    """Jaro–Winkler similarity of strings, which gives a bonus for a common prefix and is intended for names.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: query and key are numbers.

    Example:
        >>> JaroWinkler()(["martha"], ["marhta", "xyz"]).round(3)
        array([[0.961, 0.   ]])
    """

    scorers = ("distance.JaroWinkler.normalized_similarity",)


@dataclass(frozen=True, eq=False)
class TokenSetRatio(TextScore):
    """Similarity of texts by the words that they share, regardless of word order and repetition.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: query and key are numbers.

    Example:
        >>> TokenSetRatio()(["new york mets"], ["mets of new york", "xyz"]).round(3)
        array([[1.   , 0.125]])
    """

    scorers = ("fuzz.token_set_ratio",)
    scorer_maximum = 100.0


@dataclass(frozen=True, eq=False)
class Spelling(TextScore):
    """Mean of Jaro–Winkler similarity and edit similarity, the default score for text keys of a database.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: query and key are numbers.

    Example:
        >>> import numpy as np
        >>> Spelling()(np.array(["smiht"], object), np.array(["smith", "smythe"], object)).round(2)
        array([[0.88, 0.65]])
    """

    scorers = ("distance.JaroWinkler.normalized_similarity", "distance.OSA.normalized_similarity")
