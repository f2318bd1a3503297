"""Scores of numbers that are computed from differences, so that keys at equal distances get equal logits.

    l_ij = −‖q_i − k_j‖² / 2h²

A matrix product computes ‖q‖² − 2<q, k> + ‖k‖², which rounds differently for one query and for several, and decides by
rounding which of two equally distant keys comes first. In tables such keys are common: 3.67 and 3.70 around 3.685.
"""

from __future__ import annotations

from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

__all__ = ["from_differences"]


_MOST_COLUMNS = 8
"""Number of key columns up to which keys are selected by differences; for more, a matrix product is much faster."""


def from_differences(score: Score, normalizer: Normalizer, width: int) -> Score:
    """Return a score with the same logits that computes them from differences, where ties matter and it costs little.

    That is for one key column, and for up to 8 of them if the normalizer selects keys by their rank.

    Args:
        score: any score; scores that compute no squared distances are returned as they are.
        normalizer: the normalizer of the call.
        width: number of key columns.
    """
    few = width == 1 or (normalizer.selects_keys and width <= _MOST_COLUMNS)
    return score.by_differences() if few else score
