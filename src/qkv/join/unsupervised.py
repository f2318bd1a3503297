"""Estimate the scores of a join without labels, by the method that suits the number of compared columns."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qkv.core.progress import Progress
from qkv.core.typing import Float
from qkv.join.agreement_levels import LEVELS, append_log_odds, level_log_odds, log_odds_weights
from qkv.join.attention_weights import attention_weights
from qkv.join.best_match_mixture import estimate_text_weights
from qkv.join.blocking import CandidatePairs
from qkv.join.expectation_maximization import EstimationSample, estimate_log_odds, estimation_sample
from qkv.join.expected_f1 import DEFAULT_THRESHOLD, expected_f1_threshold
from qkv.join.model import JoinModel
from qkv.join.self_training import self_train

__all__ = ["Estimate", "estimate_without_labels"]


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
    if [field.kind for field in measures.fields] == ["text"]:
        estimate = _estimate_from_text(candidate_pairs, on, sample)
    else:
        estimate = _estimate_from_columns(candidate_pairs, on, sample, progress)
    weights = attention_weights(sample.rows, estimate.model.logits(measures, sample.found))[0]
    return estimate._replace(model=replace(estimate.model, threshold=expected_f1_threshold(weights)))


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
    trained = self_train(
        sample,
        append_log_odds(sample.found, levels),
        levels.sum(axis=1) + prior,
        append_log_odds(sample.random, random_levels),
        progress,
    )
    if trained is not None and trained.separated:
        notes += ("weights of all similarities learned from these scores",)
        model = JoinModel(on, measures.kinds, log_odds, trained.weights, trained.bias, DEFAULT_THRESHOLD, notes)
        return Estimate(model, sample, trained.weights, trained.bias, False)
    if trained is not None:
        notes += ("the scores of best matches and of other pairs overlap too far to learn from them",)
    model = JoinModel(on, measures.kinds, log_odds, None, prior, DEFAULT_THRESHOLD, notes)
    return Estimate(model, sample, log_odds_weights(len(measures.names), len(on)), prior, False)


def _estimate_from_text(
    candidate_pairs: CandidatePairs, on: tuple[tuple[str, str], ...], sample: EstimationSample
) -> Estimate:
    estimated = estimate_text_weights(candidate_pairs.measures, sample)
    notes: tuple[str, ...] = (
        "scores of one column estimated from the tables alone, by a mixture of the scores of best matches",
    )
    if not estimated.separated:
        notes += ("the similarities of best matches and of other pairs overlap too far to tell them apart",)
    used = estimated if estimated.separated else estimated.declined()
    unused = np.zeros((1, len(LEVELS) + 2))
    model = JoinModel(on, candidate_pairs.measures.kinds, unused, used.weights, used.bias, DEFAULT_THRESHOLD, notes)
    return Estimate(model, sample, estimated.weights, estimated.bias, not estimated.separated)
