"""What agreement is worth, from two tables alone: the mixture of Fellegi and Sunter, with attention in it.

    logit(pair) = log(π / (1 − π)) + Σ_columns log(m[level] / u[level])

u is how often a column of two rows drawn at random agrees so far, m how often that of two rows that are the
same thing does, π the share of pairs that are. Expectation–maximisation finds m and π; how much a pair counts
is the smaller of its attention weights in both directions, "no match" being one key more. So a row is shared
among its candidates, and pairs cannot all be matches because a column such as the city often agrees.

Source: Fellegi and Sunter 1969, A theory for record linkage; Winkler 1988, Using the EM algorithm for weight
computation in the Fellegi–Sunter model of record linkage.
"""

from __future__ import annotations

import numpy as np

from qkv.core.progress import Progress
from qkv.join.agreement_levels import LEVELS, agreement, agreement_levels
from qkv.join.attention_weights import attention_weights
from qkv.join.blocking import CandidatePairs

__all__ = ["estimate"]

_START = (0.03, 0.03, 0.04, 0.1, 0.8)
"""How far the columns of a match agree, before anything was seen: four of five cells are equal."""
_BELIEVED = 3.0
"""So many pairs of that kind are added to those that are found, so that few of them teach no nonsense."""
_CLOSEST = 20
_DRAWN = 2**16
_STEPS = 100
_MOST_ROWS = 20_000
"""Of larger tables so many left rows, drawn at random, tell what agreement is worth."""


def estimate(candidates: CandidatePairs, progress: Progress | None = None) -> tuple[np.ndarray, float]:
    """The worth of each level, `(columns, levels)` with 0 for missing cells, and the log-odds of a match."""
    measures = candidates.measures
    asked = None
    if candidates.rows > _MOST_ROWS:
        asked = np.random.default_rng(0).choice(candidates.rows, _MOST_ROWS, replace=False)
    rows, keys, found = candidates.closest(_CLOSEST, asked, progress)
    level = agreement_levels(agreement(measures, found))
    drawn, often = np.unique(
        agreement_levels(agreement(measures, candidates.random(_DRAWN))), axis=0, return_counts=True
    )
    columns = level.shape[-1]
    chance = _chance(drawn, often)
    same = np.tile(np.array(_START), (columns, 1))
    asking = min(candidates.rows, _MOST_ROWS)
    pairs = max(asking * candidates.keys, 1)
    share = max(min(asking, candidates.keys) / 2, 0.5) / pairs
    worth, prior = _worth(same, chance), float(np.log(share / (1 - share)))
    for step in range(_STEPS):
        logits = prior + _total(worth, level)
        counted = np.minimum(attention_weights(rows, logits)[0], attention_weights(keys, logits)[0])
        before, old = same, prior
        same = _shares(level, counted) + _BELIEVED * np.array(_START)
        same /= same.sum(axis=1, keepdims=True)
        # Pairs drawn from small tables are matches too, now and then.
        chance = _chance(drawn, often / (1.0 + np.exp((prior + _total(worth, drawn)).clip(-700, 700))))
        # At least half a pair: tables without any match keep a finite prior.
        share = min(max(float(counted.sum()), 0.5) / pairs, 0.5)
        worth, prior = _worth(same, chance), float(np.log(share / (1 - share)))
        if progress is not None:
            progress("estimating", step + 1, _STEPS)
        if np.abs(same - before).max() < 1e-5 and abs(prior - old) < 1e-5:
            break
    return worth, prior


def _chance(drawn: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """How often each level is met by chance; half a pair in each, so that none is impossible."""
    shares = _shares(drawn, counted) + 0.5
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _shares(level: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """How many pairs have each level in each column; missing cells are in none."""
    found = [np.bincount(column, counted, len(LEVELS) + 2)[1:] for column in level.T]
    return np.array(found)


def _worth(same: np.ndarray, chance: np.ndarray) -> np.ndarray:
    missing = np.zeros((len(same), 1))
    return np.concatenate([missing, np.log(same / chance)], axis=1)


def _total(worth: np.ndarray, level: np.ndarray) -> np.ndarray:
    return np.asarray(sum(worth[column][level[:, column]] for column in range(level.shape[1])))
