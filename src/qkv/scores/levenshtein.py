"""Levenshtein similarity: one minus the share of letters that must be edited.

    logit(q, k) = 1 − edits(q, k) / max(length of q, length of k)

Source: Levenshtein (1966), Binary codes capable of correcting deletions, insertions and reversals.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.scores.text import TextScore, text_blocks

__all__ = ["Levenshtein"]


@dataclass(frozen=True, eq=False)
class Levenshtein(TextScore):
    """Similarity of strings by insertions, deletions and substitutions.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: numbers were given.

    Example:
        >>> Levenshtein()(["kitten"], ["sitting", "xyz"]).round(3)
        array([[0.571, 0.   ]])
    """

    def compare(self, query: Array, key: Array) -> Array:
        """The similarity of each pair."""
        from rapidfuzz import distance, process

        return text_blocks(
            lambda q, k: process.cdist(q, k, scorer=distance.Levenshtein.normalized_similarity, dtype="float64"),
            query,
            key,
        )
