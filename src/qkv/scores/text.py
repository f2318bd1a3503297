"""What text scores share: arrays of strings, no width axis, similarities between 0 and 1.

The similarities come from RapidFuzz (https://rapidfuzz.github.io/RapidFuzz), computed for a block at a time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.core.arrays import Array
from qkv.core.extras import require_packages
from qkv.scores.base import GeneralScore

__all__ = ["TextScore", "text_blocks"]


class TextScore(GeneralScore):
    """A similarity of strings in [0, 1]; 1 means equal. What is missing (None) is similar to nothing."""

    accepts = "text"
    default_normalizer = "sum"

    def validate(self) -> None:
        """Raise a `MissingPackageError` where RapidFuzz is not installed."""
        require_packages("text scores need", "ask", "rapidfuzz")

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: one number."""
        return 1

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: a comparison of two strings, counted as 500."""
        return 500


def text_blocks(function: Callable[[Any, Any], Any], query: Array, key: Array) -> Array:
    """Similarities `(*batch, q, k)` from a function of two flat arrays of strings."""
    if query.ndim == key.ndim == 1:
        return np.asarray(function(query, key), dtype=np.float64)
    batch = np.broadcast_shapes(query.shape[:-1], key.shape[:-1])
    query = np.broadcast_to(query, (*batch, query.shape[-1]))
    key = np.broadcast_to(key, (*batch, key.shape[-1]))
    out = np.empty((*batch, query.shape[-1], key.shape[-1]))
    for index in np.ndindex(*batch):
        out[index] = function(query[index], key[index])
    return out
