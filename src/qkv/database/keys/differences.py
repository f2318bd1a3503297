"""Scores of numbers that are computed from differences, so that keys at equal distances get equal logits.

    l_ij = −‖q_i − k_j‖² / 2h²

A matrix product computes ‖q‖² − 2<q, k> + ‖k‖², which rounds differently for one query and for several, and decides by
rounding which of two equally distant keys comes first. In tables such keys are common: 3.67 and 3.70 around 3.685.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.typing import Array, Num
from qkv.normalizers.base import Normalizer
from qkv.scores import Gaussian
from qkv.scores.base import Score
from qkv.scores.distance import DistanceKernel

__all__ = ["from_differences"]


@dataclass(frozen=True, eq=False)
class _GaussianOfDifferences(DistanceKernel):
    """The logits of `Gaussian`, computed from the differences of queries and keys."""

    saved_arrays = 1.0

    def log_kernel(self, u: Num[Array, "*batch q k"]) -> Num[Array, "*batch q k"]:
        """Return −u²/2 for each element u."""
        return -0.5 * (u * u)

    def __str__(self) -> str:
        return str(Gaussian(self.bandwidth))


_MOST_COLUMNS = 8
"""Number of key columns up to which keys are selected by differences; for more, a matrix product is much faster."""


def from_differences(score: Score, normalizer: Normalizer, width: int) -> Score:
    """Return a score with the same logits that computes them from differences, where ties matter and it costs little.

    That is for one key column, and for up to 8 of them if the normalizer selects keys by their rank.

    Args:
        score: any score; others than `Gaussian` are returned as they are.
        normalizer: the normalizer of the call.
        width: number of key columns.
    """
    few = width == 1 or (normalizer.selects_keys and width <= _MOST_COLUMNS)
    return _GaussianOfDifferences(score.bandwidth) if few and type(score) is Gaussian else score
