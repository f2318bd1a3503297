"""Improve the scores of a join without labels: logistic regression on the weights that the pairs have so far.

    target(r, k) = min(weight(r, k), weight(k, r))        logit = slope · (a · measures) + intercept,    a ≥ 0

Expectation–maximization knows each column by one agreement level. Its weights are the targets of a logistic regression
on the whole comparison vector, in which similarities of words, digits and records that agree with the other columns
gain weight. Slope and intercept come from the mixture of best matches (`qkv.join.best_match_mixture`), so that the
base rate of matches is estimated from the tables and not from the targets. Both steps are repeated.

The mixture knows best matches only, and its log odds fall slowly: thousands of unlike rows would take the weight of a
left row. All log odds are therefore multiplied by the smallest factor at which the rows that are not among the 20 most
similar have less than a tenth of the weight of "no match"; which pairs are more likely a match than not stays the same.

Measures are scaled to unit variance before they are regularized by λ/2 ‖a‖².

Source: Nigam, McCallum, Thrun, Mitchell (2000), Text classification from labeled and unlabeled documents using EM.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.core.progress import Progress, track
from qkv.core.typing import Float
from qkv.join.attention_weights import two_way_weights
from qkv.join.best_match_mixture import fit_best_matches, mutual_best
from qkv.join.expectation_maximization import EstimationSample
from qkv.join.supervised import fit_logistic

__all__ = ["SelfTrained", "limit_sharpness", "self_train"]

_STEPS = 4
_STRENGTH = 300.0
"""λ, chosen on the training pairs of five pairs of tables; 100 gives F1 that differ by less than .02 on each."""
_CANDIDATES = 20
_MAX_MASS = 0.1
_MAX_SHARPNESS = 8.0
_MIN_MATCHES = 100
"""Number of expected matches below which there is too little to learn from."""


class SelfTrained(NamedTuple):
    """Learned score of a pair, and whether it tells matches from other pairs.

    Attributes:
        weights, bias: the log odds of a match are `measures @ weights + bias`.
        separated: whether the scores of matches and of other best candidates differ by two standard deviations.
    """

    weights: Float[np.ndarray, " measures"]
    bias: float
    separated: bool


def self_train(
    sample: EstimationSample,
    measures: Float[np.ndarray, "pairs measures"],
    logits: Float[np.ndarray, " pairs"],
    random: Float[np.ndarray, "random measures"],
    progress: Progress | None = None,
) -> SelfTrained | None:
    """Return weights of the measures that explain the scores so far, or None if they expect fewer than 100 matches.

    Args:
        sample: candidate pairs.
        measures: measures of each pair.
        logits: log odds of each pair so far.
        random: measures of random pairs.
        progress: called with the step, the count done and the total.
    """
    rows, keys = sample.rows, sample.keys
    target = two_way_weights(rows, keys, logits)
    if target.sum() < _MIN_MATCHES:
        return None
    mean, scale = measures.mean(axis=0), measures.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    scaled = (measures - mean) / scale
    trained = SelfTrained(np.zeros(measures.shape[1]), 0.0, False)
    for _ in track(range(_STEPS), "learning", progress):
        weights = fit_logistic(scaled, target, _STRENGTH)[:-1]
        score = scaled @ weights
        best, second = mutual_best(rows, keys, score)
        # The mixture has prior pairs at 0 and 1: here the means of runners-up and of the matches so far.
        low, high = float(np.nanmean(second)), float(np.average(score[best], weights=target[best] + 1e-9))
        if not high > low:
            return None
        mixture = fit_best_matches(
            (score[best] - low) / (high - low), (second - low) / (high - low), min(sample.sizes), target[best]
        )
        slope = mixture.slope / (high - low)
        target = two_way_weights(rows, keys, slope * (score - low) + mixture.intercept)
        bias = mixture.intercept - slope * (low + float(mean / scale @ weights))
        trained = SelfTrained(slope * weights / scale, bias, mixture.separated)
    sharpness = limit_sharpness(random @ trained.weights + trained.bias, sample.sizes[1])
    return SelfTrained(sharpness * trained.weights, sharpness * trained.bias, trained.separated)


def limit_sharpness(logits: Float[np.ndarray, " random"], keys: int) -> float:
    """Return the factor of the log odds at which all but the 20 most similar of `keys` rows have little weight."""
    others = np.sort(logits)[: int(len(logits) * max(0.0, 1.0 - _CANDIDATES / keys))]
    sharpness = 1.0
    while len(others) and sharpness < _MAX_SHARPNESS and keys * np.exp(sharpness * others).mean() > _MAX_MASS:
        sharpness *= 1.1
    return sharpness
