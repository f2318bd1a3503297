"""Levenshtein similarity: 1 minus the edit distance of two strings divided by the length of the longer one.

    logit(q, k) = 1 − edits(q, k) / max(length of q, length of k)

Source: Levenshtein (1966), Binary codes capable of correcting deletions, insertions and reversals.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.scores.text import TextScore

__all__ = ["Levenshtein"]


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
