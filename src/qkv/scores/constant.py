"""Constant score: the logit 0 for every pair of a query and a key.

    logit(q, k) = 0

With softmax this is average pooling: the output is the mean of the values.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace
from qkv.core.typing import Array, KeyArray, Num, QueryArray
from qkv.scores.base import GeneralScore
from qkv.scores.forms import Pairwise, column_of_ones

__all__ = ["Constant"]


@dataclass(frozen=True, eq=False)
class Constant(GeneralScore):
    """Score that is 0 for every pair of a query and a key, whose widths may differ.

    Shapes:
        query `(*batch, q, query_width)`, key `(*batch, k, key_width)` -> logits `(*batch, q, k)`

    Example:
        >>> import numpy as np
        >>> Constant()(np.ones((1, 3)), np.ones((2, 5)))
        array([[0., 0.]])
    """

    form = Pairwise(constant=True)

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Accept queries and keys of any widths, which may differ."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return 1, because `compare` computes no array of features for each pair."""
        return 1

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return 1

    def compare(self, query: QueryArray, key: KeyArray) -> Num[Array, "*#batch q k"]:
        # Ones minus ones: 0 · q would be NaN where q is not finite, and sums of zeros take time.
        return column_of_ones(query) - namespace(key).matrix_transpose(column_of_ones(key))
