"""Exact match: 1 where query and key are equal, 0 elsewhere.

    logit(q, k) = [q = k]

Normalised by `Sum`, this is a database look-up: the weights are one-hot on the equal key, shared if several
are equal, and empty if none is.
"""

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import Array, cast, is_floating, is_text, namespace
from qkv.scores.base import GeneralScore
from qkv.scores.text import text_blocks

__all__ = ["Exact"]


@dataclass(frozen=True, eq=False)
class Exact(GeneralScore):
    """Equality, of text or of numbers (all of the width). Its own normalizer is `Sum`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`; text without the
        width.

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

    def compare(self, query: Array, key: Array) -> Array:
        """[q = k]"""
        if is_text(query):
            return text_blocks(_equal_texts, query, key)
        xp = namespace(query)
        equal = xp.all(query[..., :, None, :] == key[..., None, :, :], axis=-1)
        # Integers are compared as integers; only what comes out is floating.
        return cast(equal, query.dtype if is_floating(query) else xp.float32)


def _equal_texts(query: Array, key: Array) -> Array:
    # What is missing (None) equals nothing, itself included.
    nothing = np.array(None, dtype=object)
    present = np.not_equal(query, nothing)[:, None] & np.not_equal(key, nothing)[None, :]
    return np.equal.outer(query, key) & present
