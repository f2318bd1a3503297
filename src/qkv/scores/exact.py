"""Exact match: a score that is 1 if query and key are equal and 0 otherwise.

    logit(q, k) = [q = k]

With `Sum` this is a database lookup: the weight is divided equally among the keys that equal the query, and all
weights are 0 if no key does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import cast, is_floating, is_text, namespace
from qkv.core.typing import Array, Shaped
from qkv.scores.base import GeneralScore
from qkv.scores.text import map_batch

__all__ = ["Exact"]


@dataclass(frozen=True, eq=False)
class Exact(GeneralScore):
    """Score that is 1 if query and key are equal in all features and 0 otherwise. Its default normalizer is `Sum`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)`, or text `(*batch, q)`, `(*batch, k)` -> logits
        `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.

    Example:
        >>> import numpy as np
        >>> Exact()(np.array(["Li"], dtype=object), np.array(["Zhang", "Li"], dtype=object))
        array([[0., 1.]])
    """

    accepts = "any"
    default_normalizer = "sum"
    keeps_dtype = True

    def compare(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"]) -> Shaped[Array, "*#batch q k"]:
        """Return 1 for each pair of equal query and key, 0 for the other pairs. A missing text equals nothing."""
        if is_text(query):
            return map_batch(_equal_texts, query, key)
        xp = namespace(query)
        equal = xp.all(query[..., :, None, :] == key[..., None, :, :], axis=-1)
        # Integers are compared as integers; only the result is floating.
        return cast(equal, query.dtype if is_floating(query) else xp.float32)


def _equal_texts(query: Shaped[np.ndarray, " q"], key: Shaped[np.ndarray, " k"]) -> Shaped[np.ndarray, "q k"]:
    # A missing value (None) equals nothing, itself included.
    missing = np.array(None, dtype=object)
    present = np.not_equal(query, missing)[:, None] & np.not_equal(key, missing)[None, :]
    equal: np.ndarray = np.equal.outer(query, key) & present
    return equal
