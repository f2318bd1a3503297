"""Reasons why a query has no match."""

from __future__ import annotations

import numpy as np

from qkv.core.printable import quoted_key
from qkv.core.typing import Float, Int, Shaped
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.queries import Queries
from qkv.normalizers.base import Normalizer

__all__ = ["ambiguous_reason", "no_match_reasons"]

# Number of candidates in the reason of an ambiguous query.
_SHOWN = 5


def ambiguous_reason(candidates: tuple[str, ...], more: bool = False) -> str:
    """Return the reason why a query that several keys, or more than these, match about equally well has no answer."""
    shown = ", ".join(map(quoted_key, candidates[:_SHOWN])) + ", …" * (len(candidates) > _SHOWN)
    return f"{len(candidates)}{' or more' * more} keys match about equally: {shown}; ask for one of them"


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
