"""Estimate log odds of agreement levels without labels, by expectation–maximization of the Fellegi–Sunter mixture.

    logit(pair) = log(π / (1 − π)) + Σ_columns log(m[level] / u[level])

m and u are the probabilities of a level among matching and among random pairs, π the share of matching pairs.
Expectation–maximization estimates m and π. A pair's responsibility is the smaller of its attention weights in both
directions, with "no match" as an additional key. The candidates of a row thus compete, so a
column that agrees in many pairs, such as the city, does not turn all of them into matches.

Source: Fellegi and Sunter 1969, A theory for record linkage; Winkler 1988, Using the EM algorithm for weight
computation in the Fellegi–Sunter model of record linkage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from qkv.core.progress import Progress, track
from qkv.core.typing import Float, Int, Num
from qkv.join.agreement_levels import LEVELS, agreement, agreement_levels
from qkv.join.attention_weights import two_way_weights
from qkv.join.blocking import CandidatePairs
from qkv.join.comparison_vectors import ComparisonVectors

__all__ = ["EstimationSample", "estimate_log_odds", "estimation_sample", "sample_rows"]

_START = (0.03, 0.03, 0.04, 0.1, 0.8)
"""Prior of m, the probabilities of the levels among matches: four of five cells are equal."""
_PSEUDOCOUNT = 3.0
"""Number of prior pairs added to the observed ones."""
_RANDOM_PSEUDOCOUNT = 0.5
"""Number of pairs added to each level among random pairs."""
_CANDIDATES_PER_ROW = 20
_RANDOM_PAIRS = 2**16
_STEPS = 100
_MAX_ROWS = 20_000
"""Maximum number of left rows for the estimate; of larger tables, a random sample is used."""


class EstimationSample(NamedTuple):
    """Candidate pairs from which scores are estimated.

    Attributes:
        rows, keys: left and right row of each pair.
        found: comparison vector of each pair.
        random: comparison vectors of random pairs.
        sizes: number of left rows that the pairs were taken of, and of right rows.
    """

    rows: Int[np.ndarray, " pairs"]
    keys: Int[np.ndarray, " pairs"]
    found: Float[np.ndarray, "pairs similarities"]
    random: Float[np.ndarray, "random similarities"]
    sizes: tuple[int, int]


def estimation_sample(candidates: CandidatePairs, progress: Progress | None = None) -> EstimationSample:
    """Return the 20 most similar candidates of each left row, or of 20,000 random left rows of larger tables."""
    top = candidates.top_candidates(_CANDIDATES_PER_ROW, sample_rows(candidates.rows), progress)
    sizes = min(candidates.rows, _MAX_ROWS), candidates.keys
    return EstimationSample(*top, candidates.random(_RANDOM_PAIRS), sizes)


def estimate_log_odds(
    measures: ComparisonVectors, sample: EstimationSample, progress: Progress | None = None
) -> tuple[Float[np.ndarray, "columns levels"], float]:
    """Return the estimated log odds of each agreement level, `(columns, levels)`, and the prior log odds of a match.

    Level 0, which means that a cell is missing, has log odds 0.
    """
    rows, keys, found, random, (count, right_rows) = sample
    levels = agreement_levels(agreement(measures, found))
    random_levels, random_counts = np.unique(agreement_levels(agreement(measures, random)), axis=0, return_counts=True)
    columns = levels.shape[-1]
    u = _level_probabilities(random_levels, random_counts, _RANDOM_PSEUDOCOUNT)
    m = np.tile(np.array(_START), (columns, 1))
    pairs = max(count * right_rows, 1)
    share = max(min(count, right_rows) / 2, 0.5) / pairs
    log_odds, prior = _log_odds(m, u), float(logit(share))
    for _ in track(range(_STEPS), "estimating", progress):
        logits = prior + _sum_log_odds(log_odds, levels)
        match_weights = two_way_weights(rows, keys, logits)
        previous_m, previous_prior = m, prior
        m = _level_probabilities(levels, match_weights, _PSEUDOCOUNT * np.array(_START))
        # Random pairs of small tables include some matches, which are discounted.
        non_matches = random_counts * expit(-prior - _sum_log_odds(log_odds, random_levels))
        u = _level_probabilities(random_levels, non_matches, _RANDOM_PSEUDOCOUNT)
        # At least half a pair is counted, so that tables without matches have a finite prior.
        share = min(max(float(match_weights.sum()), 0.5) / pairs, 0.5)
        log_odds, prior = _log_odds(m, u), float(logit(share))
        if np.abs(m - previous_m).max() < 1e-5 and abs(prior - previous_prior) < 1e-5:
            break
    return log_odds, prior


def sample_rows(rows: int) -> Int[np.ndarray, " sample"] | None:
    """Return 20,000 random left rows of larger tables to estimate from, or None for all."""
    return np.random.default_rng(0).choice(rows, _MAX_ROWS, replace=False) if rows > _MAX_ROWS else None


def _level_probabilities(
    levels: Int[np.ndarray, "pairs columns"],
    weights: Num[np.ndarray, " pairs"],
    pseudocount: Float[np.ndarray, " present_levels"] | float,
) -> Float[np.ndarray, "columns present_levels"]:
    """Return the probability of each agreement level from 1 to 5, `(columns, 5)`.

    Args:
        levels: agreement levels `(pairs, columns)`; pairs with a missing cell in a column, which have level 0, are
            not counted in that column.
        weights: weight of each pair.
        pseudocount: number that is added to the weighted count of each level.
    """
    counts = np.array([np.bincount(column, weights, len(LEVELS) + 2)[1:] for column in levels.T]) + pseudocount
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _log_odds(
    m: Float[np.ndarray, "columns present_levels"], u: Float[np.ndarray, "columns present_levels"]
) -> Float[np.ndarray, "columns present_levels+1"]:
    missing = np.zeros((len(m), 1))
    return np.concatenate([missing, np.log(m / u)], axis=1)


def _sum_log_odds(
    log_odds: Float[np.ndarray, "columns levels"], levels: Int[np.ndarray, "pairs columns"]
) -> Float[np.ndarray, " pairs"]:
    return np.asarray(sum(log_odds[column][levels[:, column]] for column in range(levels.shape[1])))
