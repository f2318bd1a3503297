"""Jaro–Winkler similarity: the share of matching letters at similar positions, with a bonus for a common prefix.

    logit(q, k) = J + 0.1 · l · (1 − J),   l = length of the common prefix, at most 4

Source: Winkler (1990), String comparator metrics and enhanced decision rules in the Fellegi–Sunter model.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.scores.text import TextScore

__all__ = ["JaroWinkler"]


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
