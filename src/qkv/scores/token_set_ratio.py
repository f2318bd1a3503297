"""Token set ratio: similarity of two texts as sets of words, regardless of word order and repetition.

    logit(q, k) = token_set_ratio(q, k) / 100

Source: RapidFuzz, fuzz.token_set_ratio, https://rapidfuzz.github.io/RapidFuzz/Usage/fuzz.html
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.scores.text import TextScore

__all__ = ["TokenSetRatio"]


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
