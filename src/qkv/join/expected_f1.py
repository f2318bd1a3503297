"""Choose the threshold of a join without labels: half of the largest F1 that its weights lead to expect.

    F(t) = 2 Σ_{w ≥ t} w / (#{w ≥ t} + Σ w)        threshold = max_t F(t) / 2

If the weights w are the probabilities of a match, a pair adds to F exactly if its weight is above half of it: a
threshold below one half, because a missed match costs as much as a wrong one. It matters where a left row has two right
rows that are equal in the compared columns. Each has a weight of nearly one half, and a threshold of one half would
find neither, although one of them is almost certainly a match.

Where less than one match or an F1 below 0.8 is expected, the weights say too little, and the threshold is one half.

Source: Lipton, Elkan, Naryanaswamy 2014, Optimal thresholding of classifiers to maximize F1 measure.
"""

from __future__ import annotations

import numpy as np

from qkv.core.typing import Float

__all__ = ["DEFAULT_THRESHOLD", "expected_f1_threshold"]

DEFAULT_THRESHOLD = 0.5
_MIN_MATCHES = 1.0
_MIN_F1 = 0.8


def expected_f1_threshold(weights: Float[np.ndarray, " pairs"]) -> float:
    """Return the threshold of the weights at which the expected F1 is largest, from 0.4 to 0.5.

    Example:
        >>> round(expected_f1_threshold(np.array([0.99, 0.98, 0.49, 0.49, 0.01])), 3)  # F(0.49) = 5.9 / 6.96
        0.424
    """
    ordered = np.sort(weights)[::-1]
    total = float(ordered.sum())
    if total < _MIN_MATCHES:
        return DEFAULT_THRESHOLD
    f1 = float((2 * np.cumsum(ordered) / (np.arange(1, len(ordered) + 1) + total)).max())
    return min(f1 / 2, DEFAULT_THRESHOLD) if f1 >= _MIN_F1 else DEFAULT_THRESHOLD
