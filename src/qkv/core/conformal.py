"""Conformal quantiles: bounds that a new value respects with a given probability, for any distribution.

For n scores and a new one that are exchangeable, and their sorted values z_(1) ≤ … ≤ z_(n),

    P(new ≤ z_(k)) ≥ k / (n + 1)        with equality if no two scores are equal
    k = ⌈p (n + 1)⌉                     the smallest k of which the probability is at least p

Source: Vovk, Gammerman, Shafer (2005), Algorithmic learning in a random world, section 2.2; Lei, G'Sell, Rinaldo,
Tibshirani, Wasserman (2018), Distribution-free predictive inference for regression, theorem 2.2.
"""

from __future__ import annotations

import math

import numpy as np

from qkv.core.typing import Float

# Rounding must not turn 0.9 · 10 into a number above 9.
_ROUNDING = 1e-9


def conformal_quantile(
    scores: Float[np.ndarray, " n"], probability: float, weights: Float[np.ndarray, " n"] | None = None
) -> float:
    """Return the smallest score below which a new score lies with at least a given probability, or infinity.

    Args:
        scores: scores of n rows, without NaN.
        probability: p, above 0 and below 1.
        weights: weights of the scores in units of that of the new one; None means equal weights.

    Returns:
        The k-th smallest score, k = ⌈p (n + 1)⌉; infinity if k > n. With weights, the smallest score z with
        Σ_{i: z_i ≤ z} w_i ≥ p (1 + Σ w_i).

    Example:
        >>> scores = np.arange(1.0, 20.0)
        >>> conformal_quantile(scores, 0.9), conformal_quantile(scores[:8], 0.9)
        (18.0, inf)
    """
    order = np.argsort(scores, kind="stable")
    totals = np.arange(1.0, len(scores) + 1.0) if weights is None else np.cumsum(weights[order])
    total = float(totals[-1]) if len(scores) else 0.0
    place = int(np.searchsorted(totals, probability * (1.0 + total) * (1.0 - _ROUNDING)))
    return float(scores[order[place]]) if place < len(scores) else math.inf
