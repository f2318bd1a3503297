"""Reasons why a query has no match."""

from __future__ import annotations

import numpy as np

from qkv.core.typing import Float, Int, Shaped
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.queries import Queries
from qkv.normalizers.base import Normalizer

__all__ = ["no_match_reasons"]


def no_match_reasons(
    queries: Queries,
    query: Shaped[np.ndarray, "q ..."],
    comparison: Comparison,
    nearest: Int[np.ndarray, " q"],
    weights: Float[np.ndarray, "q n"],
    normalizer: Normalizer,
    no_row_reason: str,
) -> list[str]:
    """Return for each query the reason why it has no match, or an empty string if it has a match."""
    without_weight = (nearest < 0) | (weights[:, 0] == 0)
    # Equal weights do not depend on the query, so every query has a match.
    mismatches: list[str | None] = [None] * len(nearest)
    if not normalizer.constant and len(comparison.key):
        mismatches = comparison.mismatches(query, np.maximum(nearest, 0))
    errors = queries.errors or [""] * len(queries)
    return [
        error or "the query is missing"
        if missing
        else no_row_reason or (comparison.no_weight_reason if no_weight else mismatch or "")
        for missing, error, no_weight, mismatch in zip(queries.missing, errors, without_weight, mismatches, strict=True)
    ]
