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

import numpy as np
from scipy.special import expit, logit

from qkv.core.progress import Progress, track
from qkv.join.agreement_levels import LEVELS, agreement, agreement_levels
from qkv.join.attention_weights import attention_weights
from qkv.join.blocking import CandidatePairs

__all__ = ["estimate_log_odds"]

_START = (0.03, 0.03, 0.04, 0.1, 0.8)
"""Prior of m, the probabilities of the levels among matches: four of five cells are equal."""
_PSEUDOCOUNT = 3.0
"""Number of prior pairs added to the observed ones."""
_CLOSEST = 20
_DRAWN = 2**16
_STEPS = 100
_MOST_ROWS = 20_000
"""Maximum number of left rows for the estimate; of larger tables, a random sample is used."""


def estimate_log_odds(candidates: CandidatePairs, progress: Progress | None = None) -> tuple[np.ndarray, float]:
    """Return the estimated log odds of each agreement level, `(columns, levels)`, and the prior log odds of a match.

    Level 0, which means that a cell is missing, has log odds 0.
    """
    measures = candidates.measures
    count = min(candidates.rows, _MOST_ROWS)
    draw = np.random.default_rng(0)
    sample = draw.choice(candidates.rows, count, replace=False) if candidates.rows > count else None
    rows, keys, found = candidates.top_candidates(_CLOSEST, sample, progress)
    level = agreement_levels(agreement(measures, found))
    drawn, often = np.unique(
        agreement_levels(agreement(measures, candidates.random(_DRAWN))), axis=0, return_counts=True
    )
    columns = level.shape[-1]
    chance = _random_level_probabilities(drawn, often)
    same = np.tile(np.array(_START), (columns, 1))
    pairs = max(count * candidates.keys, 1)
    share = max(min(count, candidates.keys) / 2, 0.5) / pairs
    log_odds, prior = _log_odds(same, chance), float(logit(share))
    for _ in track(range(_STEPS), "estimating", progress):
        logits = prior + _total(log_odds, level)
        counted = np.minimum(attention_weights(rows, logits)[0], attention_weights(keys, logits)[0])
        before, old = same, prior
        same = _level_counts(level, counted) + _PSEUDOCOUNT * np.array(_START)
        same /= same.sum(axis=1, keepdims=True)
        # Random pairs of small tables include some matches, which are discounted.
        chance = _random_level_probabilities(drawn, often * expit(-prior - _total(log_odds, drawn)))
        # At least half a pair is counted, so that tables without matches have a finite prior.
        share = min(max(float(counted.sum()), 0.5) / pairs, 0.5)
        log_odds, prior = _log_odds(same, chance), float(logit(share))
        if np.abs(same - before).max() < 1e-5 and abs(prior - old) < 1e-5:
            break
    return log_odds, prior


def _random_level_probabilities(drawn: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the probability of each agreement level from 1 to 5 among random pairs, `(columns, 5)`.

    A pseudocount of 0.5 is added to the count of each level.
    """
    counts = _level_counts(drawn, counted) + 0.5
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _level_counts(level: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the sum of the weights `counted` of the pairs with each agreement level from 1 to 5, `(columns, 5)`.

    Pairs with a missing cell in a column, which have level 0, are not counted in that column.
    """
    return np.array([np.bincount(column, counted, len(LEVELS) + 2)[1:] for column in level.T])


def _log_odds(same: np.ndarray, chance: np.ndarray) -> np.ndarray:
    missing = np.zeros((len(same), 1))
    return np.concatenate([missing, np.log(same / chance)], axis=1)


def _total(log_odds: np.ndarray, level: np.ndarray) -> np.ndarray:
    return np.asarray(sum(log_odds[column][level[:, column]] for column in range(level.shape[1])))
