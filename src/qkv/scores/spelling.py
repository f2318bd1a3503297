"""Spelling similarity: the mean of the Jaro–Winkler similarity and an edit similarity.

    logit(q, k) = (JaroWinkler(q, k) + Alignment(q, k)) / 2
    Alignment(q, k) = 1 − edits(q, k) / max(len q, len k)

An edit inserts, deletes or changes a letter, or swaps two neighbors (optimal string alignment distance).

The Jaro–Winkler similarity alone ignores much of the order of shared letters: among many thousands of names, one in
three random strings has a similarity of 0.8 to some name. The edit similarity alone does not penalize errors at the
beginning more than errors at the end. Source of the distance: Boytsov (2011), Indexing methods for approximate
dictionary searching, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.scores.text import TextScore

__all__ = ["Spelling"]


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
