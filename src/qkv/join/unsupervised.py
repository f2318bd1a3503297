"""Estimate the scores of a join without labels, by the method that suits the number of compared columns.

The threshold is half of the largest F1 that the weights lead to expect:

    F(t) = 2 Σ_{w ≥ t} w / (#{w ≥ t} + Σ w)        threshold = max_t F(t) / 2

If the weights w are the probabilities of a match, a pair adds to F exactly if its weight is above half of it: a
threshold below one half, because a missed match costs as much as a wrong one. It matters where a left row has two right
rows that are equal in the compared columns. Each has a weight of nearly one half, and a threshold of one half would
find neither, although one of them is almost certainly a match.

Where less than one match or an F1 below 0.8 is expected, the weights say too little, and the threshold is one half.

Source: Lipton, Elkan, Naryanaswamy 2014, Optimal thresholding of classifiers to maximize F1 measure.

`self_train` improves the scores by logistic regression on the weights that the pairs have so far:

    target(r, k) = min(weight(r, k), weight(k, r))        logit = slope · (a · measures) + intercept,    a ≥ 0

Expectation–maximization knows each column by one agreement level. Its weights are the targets of a logistic regression
on the whole comparison vector, in which similarities of words, digits and records that agree with the other columns
gain weight. Slope and intercept come from the mixture of best matches (`qkv.join.expectation_maximization`), so that
the base rate of matches is estimated from the tables and not from the targets. Both steps are repeated.

The mixture knows best matches only, and its log odds fall slowly: thousands of unlike rows would take the weight of a
left row. All log odds are therefore multiplied by the smallest factor at which the rows that are not among the 20 most
similar have less than a tenth of the weight of "no match"; which pairs are more likely a match than not stays the same.

Measures are scaled to unit variance before they are regularized by λ/2 ‖a‖².

Source: Nigam, McCallum, Thrun, Mitchell (2000), Text classification from labeled and unlabeled documents using EM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qkv.core.progress import Progress, track
from qkv.core.typing import Float
from qkv.join.attention_weights import attention_weights, two_way_weights
from qkv.join.blocking import CandidatePairs
from qkv.join.compared_columns import PairNumbers
from qkv.join.comparison_vectors import LEVELS, append_log_odds, level_log_odds, log_odds_weights
from qkv.join.expectation_maximization import (
    NEGLIGIBLE,
    BestMatchMixture,
    EstimatedWeights,
    EstimationSample,
    estimate_log_odds,
    estimate_text_weights,
    estimation_sample,
    fit_best_matches,
    mutual_best,
)
from qkv.join.model import JoinModel
from qkv.join.supervised import fit_logistic

_STEPS = 4
_STRENGTH = 300.0
"""λ, chosen on the training pairs of five pairs of tables; 100 gives F1 that differ by less than .02 on each."""
_CANDIDATES = 20
_MAX_MASS = 0.1
_MAX_SHARPNESS = 8.0
_FEWEST_MATCHES = 100
"""Number of expected matches below which there is too little to learn from."""


def self_train(
    sample: EstimationSample,
    measures: Float[np.ndarray, "pairs measures"],
    target: PairNumbers,
    random: Float[np.ndarray, "random measures"],
    progress: Progress | None = None,
) -> EstimatedWeights | None:
    """Return weights of the measures that explain the weights so far, or None if they expect fewer than 100 matches.

    Args:
        sample: candidate pairs.
        measures: measures of each pair.
        target: weight of each pair so far, in both directions.
        random: measures of random pairs.
        progress: called with the step, the count done and the total.
    """
    if target.sum() < _FEWEST_MATCHES:
        return None
    mean, scale = measures.mean(axis=0), measures.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    scaled = (measures - mean) / scale
    trained = EstimatedWeights(np.zeros(measures.shape[1]), 0.0, False)
    for _ in track(range(_STEPS), "learning", progress):
        weights = fit_logistic(scaled, target, _STRENGTH)[:-1]
        score = scaled @ weights
        found = _mixture_of_scores(sample, score, target)
        if found is None:
            return None
        mixture, low, high = found
        slope = mixture.slope / (high - low)
        target = two_way_weights(sample.rows, sample.keys, slope * (score - low) + mixture.intercept)
        bias = mixture.intercept - slope * (low + float(mean / scale @ weights))
        trained = EstimatedWeights(slope * weights / scale, bias, mixture.separated)
    sharpness = limit_sharpness(random @ trained.weights + trained.bias, sample.sizes[1])
    return EstimatedWeights(sharpness * trained.weights, sharpness * trained.bias, trained.separated)


def _mixture_of_scores(
    sample: EstimationSample, score: PairNumbers, target: PairNumbers
) -> tuple[BestMatchMixture, float, float] | None:
    """Return the mixture of the scores of best matches, in which scores `low` and `high` are 0 and 1; None if it fails.

    The mixture has prior pairs at 0 and 1: here the means of runners-up and of the matches so far.
    """
    best, second = mutual_best(sample.rows, sample.keys, score)
    if np.isnan(second).all():
        return None
    low, high = float(np.nanmean(second)), float(np.average(score[best], weights=target[best] + 1e-9))
    if not high > low:
        return None
    scaled = (score[best] - low) / (high - low), (second - low) / (high - low)
    return fit_best_matches(*scaled, min(sample.sizes), target[best]), low, high


def limit_sharpness(logits: Float[np.ndarray, " random"], keys: int) -> float:
    """Return the factor of the log odds at which all but the 20 most similar of `keys` rows have little weight."""
    others = np.sort(logits)[: int(len(logits) * max(0.0, 1.0 - _CANDIDATES / keys))]
    sharpness = 1.0
    while len(others) and sharpness < _MAX_SHARPNESS and keys * np.exp(sharpness * others).mean() > _MAX_MASS:
        sharpness *= 1.1
    return sharpness


DEFAULT_THRESHOLD = 0.5
_MIN_MATCHES = 1.0
_MIN_F1 = 0.8


def expected_f1_threshold(weights: PairNumbers) -> float:
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


class Estimate(NamedTuple):
    """Scores of a join without labels, and the pairs that they were estimated from.

    Attributes:
        model: the fitted model, which finds no match if the tables do not tell matches from other pairs.
        sample: candidate pairs that the scores were estimated from.
        weights, bias: weights of the comparison vector and of the log odds of each column, and prior log odds; those
            of `model` unless it declines.
        declined: whether `model` finds no match because the tables do not tell.
    """

    model: JoinModel
    sample: EstimationSample
    weights: Float[np.ndarray, " weights"]
    bias: float
    declined: bool


def estimate_without_labels(
    candidate_pairs: CandidatePairs, on: tuple[tuple[str, str], ...], progress: Progress | None = None
) -> Estimate:
    """Estimate the scores of a join of two tables without labels.

    Args:
        candidate_pairs: pairs of the two tables.
        on: `(left name, right name)` of each compared column.
        progress: called with the step, the count done and the total.
    """
    measures, sample = candidate_pairs.measures, estimation_sample(candidate_pairs, progress)
    estimate = _estimate_from_columns(candidate_pairs, on, sample, progress)
    if [field.kind for field in measures.fields] == ["text"]:
        # Levels tell names with typing errors, whole similarities tell titles; each finds few matches of the other.
        estimates = _estimate_from_text(candidate_pairs, on, sample), estimate
        estimate = max(estimates, key=lambda own: _expected_gain(own.model.logits(measures, sample.found), sample))
    weights = attention_weights(sample.rows, estimate.model.logits(measures, sample.found))[0]
    return estimate._replace(model=replace(estimate.model, threshold=expected_f1_threshold(weights)))


def _expected_gain(logits: PairNumbers, sample: EstimationSample) -> float:
    """Return the expected number of right pairs minus that of wrong pairs, of those that are probable matches."""
    return float(np.maximum(2 * two_way_weights(sample.rows, sample.keys, logits) - 1, 0.0).sum())


def _estimate_from_columns(
    candidate_pairs: CandidatePairs,
    on: tuple[tuple[str, str], ...],
    sample: EstimationSample,
    progress: Progress | None,
) -> Estimate:
    measures = candidate_pairs.measures
    log_odds, prior = estimate_log_odds(measures, sample, progress)
    notes: tuple[str, ...] = ("scores estimated from the tables alone, by expectation–maximization",)
    levels, random_levels = (level_log_odds(measures, found, log_odds) for found in (sample.found, sample.random))
    logits = levels.sum(axis=1) + prior
    target = two_way_weights(sample.rows, sample.keys, logits)
    trained = self_train(
        sample, append_log_odds(sample.found, levels), target, append_log_odds(sample.random, random_levels), progress
    )
    if trained is not None and trained.separated:
        notes += ("weights of all similarities learned from these scores",)
        model = JoinModel(on, measures.kinds, log_odds, trained.weights, trained.bias, DEFAULT_THRESHOLD, notes)
        return Estimate(model, sample, trained.weights, trained.bias, False)
    if trained is not None:
        notes += ("the scores of best matches and of other pairs overlap too far to learn from them",)
    model = JoinModel(on, measures.kinds, log_odds, None, prior, DEFAULT_THRESHOLD, notes)
    mixture = _mixture_of_scores(sample, logits, target) if target.sum() < _FEWEST_MATCHES else None
    declined = mixture is not None and not mixture[0].separated
    weights = log_odds_weights(len(measures.names), len(on))
    return Estimate(_decline(model, weights) if declined else model, sample, weights, prior, declined)


def _estimate_from_text(
    candidate_pairs: CandidatePairs, on: tuple[tuple[str, str], ...], sample: EstimationSample
) -> Estimate:
    estimated = estimate_text_weights(candidate_pairs.measures, sample)
    note = "scores of one column estimated from the tables alone, by a mixture of the scores of best matches"
    unused = np.zeros((1, len(LEVELS) + 2))
    kinds = candidate_pairs.measures.kinds
    model = JoinModel(on, kinds, unused, estimated.weights, estimated.bias, DEFAULT_THRESHOLD, (note,))
    if not estimated.separated:
        model = _decline(model, estimated.weights)
    return Estimate(model, sample, estimated.weights, estimated.bias, not estimated.separated)


def _decline(model: JoinModel, weights: Float[np.ndarray, " weights"]) -> JoinModel:
    """Return a model for which no pair is a match, with a note."""
    note = "the similarities of best matches and of other pairs overlap too far to tell them apart"
    return replace(model, learned=np.zeros_like(weights), bias=NEGLIGIBLE, notes=(*model.notes, note))
