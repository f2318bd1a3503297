"""Spelling: how alike two spellings are, the mean of two similarities that fail in different places.

    logit(q, k) = (JaroWinkler(q, k) + Alignment(q, k)) / 2
    Alignment(q, k) = 1 − edits(q, k) / max(len q, len k)

An edit is a letter put in, left out or changed, or two neighbours swapped (optimal string alignment
distance).

Jaro–Winkler alone finds a resemblance of 0.8 among many thousands of names for every third string of random
letters, because it forgives the order of shared letters; edits alone forgive a wrong beginning as readily
as a wrong end. Source of the distance: Boytsov (2011), Indexing methods for approximate dictionary
searching, section 2.
"""

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array
from qkv.scores.text import TextScore, text_blocks

__all__ = ["Spelling"]


@dataclass(frozen=True, eq=False)
class Spelling(TextScore):
    """The mean of Jaro–Winkler and edit similarity, the default for text keys of a database.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: numbers were given.

    Example:
        >>> import numpy as np
        >>> Spelling()(np.array(["smiht"], object), np.array(["smith", "smythe"], object)).round(2)
        array([[0.88, 0.65]])
    """

    def compare(self, query: Array, key: Array) -> Array:
        """The mean of both."""
        return text_blocks(_both, query, key)

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: two comparisons of strings."""
        return 1000


def _both(query: Any, key: Any) -> Any:
    from rapidfuzz import distance, process

    scorers = (distance.JaroWinkler.normalized_similarity, distance.OSA.normalized_similarity)
    first, second = (process.cdist(query, key, scorer=scorer, dtype="float64") for scorer in scorers)
    return (first + second) / 2
