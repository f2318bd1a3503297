"""Token set ratio: how alike two texts are as sets of words, whatever their order and repetition.

    logit(q, k) = token_set_ratio(q, k) / 100

Source: RapidFuzz, fuzz.token_set_ratio, https://rapidfuzz.github.io/RapidFuzz/Usage/fuzz.html
"""

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.scores.text import TextScore, text_blocks

__all__ = ["TokenSetRatio"]


@dataclass(frozen=True, eq=False)
class TokenSetRatio(TextScore):
    """Similarity of texts as sets of words.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: numbers were given.

    Example:
        >>> TokenSetRatio()(["new york mets"], ["mets of new york", "xyz"]).round(3)
        array([[1.   , 0.125]])
    """

    def compare(self, query: Array, key: Array) -> Array:
        """The similarity of each pair."""
        from rapidfuzz import fuzz, process

        return text_blocks(
            lambda q, k: process.cdist(q, k, scorer=fuzz.token_set_ratio, dtype="float64") / 100.0, query, key
        )
