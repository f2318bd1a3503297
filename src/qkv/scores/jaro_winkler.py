"""Jaro–Winkler similarity: how many letters two names share near the same places, with a bonus for a common
start.

    logit(q, k) = J + 0.1 · l · (1 − J),   l = length of the common prefix, at most 4

Source: Winkler (1990), String comparator metrics and enhanced decision rules in the Fellegi–Sunter model.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.scores.text import TextScore, text_blocks

__all__ = ["JaroWinkler"]


@dataclass(frozen=True, eq=False)
class JaroWinkler(TextScore):
    """Similarity of names, strong where they begin alike.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: numbers were given.

    Example:
        >>> JaroWinkler()(["martha"], ["marhta", "xyz"]).round(3)
        array([[0.961, 0.   ]])
    """

    def compare(self, query: Array, key: Array) -> Array:
        """The similarity of each pair."""
        from rapidfuzz import distance, process

        return text_blocks(
            lambda q, k: process.cdist(q, k, scorer=distance.JaroWinkler.normalized_similarity, dtype="float64"),
            query,
            key,
        )
