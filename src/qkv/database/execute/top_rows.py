"""Functions that select the rows of largest weight."""

from __future__ import annotations

import numpy as np

from qkv.core.ordering import RunningTopK, top_k_indices
from qkv.core.typing import Float, Int

__all__ = ["largest_weights", "rows_of_any_query"]


def rows_of_any_query(top: RunningTopK) -> Int[np.ndarray, " rows"]:
    """Return the indices of the rows that are among the top rows of any query, in ascending order."""
    rows = np.unique(top.index)
    return rows[rows >= 0]


def largest_weights(
    weights: Float[np.ndarray, "q rows"], top: int
) -> tuple[Int[np.ndarray, "q n"], Float[np.ndarray, "q n"]]:
    """Return for each query the column indices of its largest weights, −1 for a weight of 0, and these weights."""
    weights = weights if weights.shape[1] else np.zeros((len(weights), 1))
    rank = np.where(weights == 0, -np.inf, weights)
    order = np.asarray(top_k_indices(rank, min(top, weights.shape[1])))
    heavy = np.take_along_axis(weights, order, axis=1)
    return np.where(heavy == 0, -1, order), heavy
