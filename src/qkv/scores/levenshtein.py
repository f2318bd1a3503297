"""Levenshtein similarity: one minus the edit distance relative to the longer string.

    logit(q, k) = 1 − edits(q, k) / max(length of q, length of k)

Source: Levenshtein (1966), Binary codes capable of correcting deletions, insertions and reversals.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.scores.text import TextScore

__all__ = ["Levenshtein"]


@dataclass(frozen=True, eq=False)
class Levenshtein(TextScore):
    """Similarity of strings by the number of insertions, deletions and substitutions.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: query and key are numbers.

    Example:
        >>> Levenshtein()(["kitten"], ["sitting", "xyz"]).round(3)
        array([[0.571, 0.   ]])
    """

    scorers = ("distance.Levenshtein.normalized_similarity",)
