"""Estimate log odds of agreement levels without labels, by expectation–maximization of the Fellegi–Sunter mixture.

    logit(pair) = log(M / ((L − M + 3) (R − M + 3))) + Σ_columns log(m[level] / u[level])

m and u are the probabilities of a level among matches and among other pairs, M the number of matches, L and R the
numbers of left and right rows, which the factors do not exceed. The first term is the prior log odds that two rows
match rather than that both have no match, where a row has at most one. Expectation–maximization estimates m, u and M
from the pairs that are each other's most similar row. A pair's responsibility is the smaller of its attention weights
in both directions, with "no match" as an additional key. The candidates of a row thus compete, so a column that agrees
in many pairs, such as the city, does not turn all of them into matches.

Source: Fellegi and Sunter 1969, A theory for record linkage; Winkler 1988, Using the EM algorithm for weight
computation in the Fellegi–Sunter model of record linkage; Sadinle 2017, Bayesian estimation of bipartite matchings for
record linkage (the prior).

For one text column, the scores of best matches are a mixture (`fit_best_matches`):

    s = (cosine of words + cosine of letter trigrams) / 2        logit(pair) = a · s + b

A single column leaves no agreement between columns to learn from, but the candidates of a row still compete: where a
row has a match, its second candidate shows how similar the most similar other row is. Each pair of rows that are each
other's best candidate is a match, with s ~ Normal(μ₁, σ), or not, with s ~ Normal(μ₀, σ); the second candidates of
matches have the distribution of non-matches. Of the second candidates of both rows, the less similar one counts: the
other one may be a duplicate within its table. Expectation–maximization estimates μ₁, μ₀, σ and the share π of matches:

    a = (μ₁ − μ₀) / σ²        b = log(π / (1 − π)) − a · (μ₁ + μ₀) / 2

A mixture of two normal distributions whose means differ by less than 2 σ has a single mode, whatever the share. The
tables then do not tell matches from other pairs, and no pair is a match.

Source of the bound: Behboodian 1970, On the modes of a mixture of two normal distributions, Technometrics 12.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from qkv.core.progress import Progress, track
from qkv.core.typing import Float, Int, Num
from qkv.join.attention_weights import two_way_weights
from qkv.join.blocking import CandidatePairs, top_per_row
from qkv.join.compared_columns import PairIntegers, PairNumbers
from qkv.join.comparison_vectors import LEVELS, ComparisonVectors, agreement, agreement_levels, rarity

_MIXTURE_PSEUDOCOUNT = 3.0
"""Number of prior pairs of similarity 1 among matches, and of similarity 0 among others; as with several columns."""
_MIN_VARIANCE = 1e-3
"""Added to the sum of squares, so that equal scores have a finite slope."""
_MIN_SEPARATION = 2.0
NEGLIGIBLE = -50.0
"""Log odds of all pairs where no pair is a match: millions of them leave "no match" a weight of 1."""
_MIXTURE_STEPS = 500
_SIMILARITIES = ("words", "letters")


class BestMatchMixture(NamedTuple):
    """Two normal distributions of equal deviation, of the similarities of matches and of other best candidates.

    Attributes:
        match, other: mean similarity of matches and of other pairs.
        deviation: standard deviation of both.
        share: share of the rows of the smaller table that have a match.
    """

    match: float
    other: float
    deviation: float
    share: float

    @property
    def separated(self) -> bool:
        """Whether the means differ by at least two standard deviations."""
        return self.match - self.other >= _MIN_SEPARATION * self.deviation

    @property
    def slope(self) -> float:
        """Log odds of a match per unit of similarity."""
        return (self.match - self.other) / self.deviation**2

    @property
    def intercept(self) -> float:
        """Log odds of a match at similarity 0."""
        return float(logit(self.share)) - self.slope * (self.match + self.other) / 2


class EstimatedWeights(NamedTuple):
    """Weights of a comparison vector that are estimated without labels, and whether they tell matches from other pairs.

    Attributes:
        weights, bias: the log odds of a match are `measures @ weights + bias`.
        separated: whether the mean scores of matches and of other best candidates differ by two standard deviations.
    """

    weights: Float[np.ndarray, " weights"]
    bias: float
    separated: bool


def estimate_text_weights(measures: ComparisonVectors, sample: EstimationSample) -> EstimatedWeights:
    """Return the weights of the comparison vector of one text column, followed by the weight of its log odds.

    Args:
        measures: comparison vectors of two tables that are compared by a single text column.
        sample: candidate pairs to estimate from.
    """
    names = [measure for _, measure in measures.names]
    places = [place for place, name in enumerate(names) if name in _SIMILARITIES]
    similarity = sample.found[:, places].mean(axis=1, dtype=np.float64)
    best, second = mutual_best(sample.rows, sample.keys, similarity)
    mixture = fit_best_matches(similarity[best], second, min(sample.sizes))
    weights = np.zeros(len(names) + 1)
    weights[places] = mixture.slope / len(places)
    weights[names.index("missing")] = NEGLIGIBLE - max(mixture.intercept, 0.0)
    return EstimatedWeights(weights, mixture.intercept, mixture.separated)


def fit_best_matches(
    best: PairNumbers, second: PairNumbers, rows: int | None = None, start: PairNumbers | None = None
) -> BestMatchMixture:
    """Fit the mixture to the similarities of pairs that are each other's best candidate.

    Args:
        best: similarity of each pair.
        second: largest similarity of either row to another row, the smaller of both; NaN where there is none.
        rows: number of rows of the smaller table, to which the share of matches refers; None for `len(best)`.
        start: probability of a match of each pair to start from; None to start from its similarity.

    Example:
        >>> fitted = fit_best_matches(np.array([0.9, 0.95, 0.3, 0.25]), np.array([0.2, 0.3, 0.25, 0.2]))
        >>> expit(fitted.slope * np.array([0.9, 0.95, 0.3, 0.25]) + fitted.intercept).round(2).tolist()
        [1.0, 1.0, 0.0, 0.0]
    """
    count = max(len(best) if rows is None else rows, 1)
    present = ~np.isnan(second)
    below = np.where(present, second, 0.0)
    other = below.sum() / (present.sum() + _MIXTURE_PSEUDOCOUNT)
    share_of = np.where(best > (other + 1.0) / 2.0, 0.95, 0.05) if start is None else start
    scores = np.concatenate([best, below])
    mixture = BestMatchMixture(1.0, other, 1.0, 0.5)
    for _ in range(_MIXTURE_STEPS):
        matches = share_of.sum()
        others = np.concatenate([1.0 - share_of, share_of * present])
        match = (share_of @ best + _MIXTURE_PSEUDOCOUNT) / (matches + _MIXTURE_PSEUDOCOUNT)
        other = others @ scores / (others.sum() + _MIXTURE_PSEUDOCOUNT)
        squares = share_of @ (best - match) ** 2 + others @ (scores - other) ** 2 + _MIN_VARIANCE
        # At least half a pair is counted on either side, so that the prior is finite.
        share = min(max(matches, 0.5), max(count - 0.5, 0.5)) / count
        deviation = float(np.sqrt(squares / (matches + others.sum() + _MIN_VARIANCE)))
        mixture = BestMatchMixture(float(match), float(other), deviation, float(share))
        previous, share_of = share_of, expit(mixture.slope * best + mixture.intercept)
        if np.abs(share_of - previous).max(initial=0.0) < 1e-6:
            break
    return mixture


def mutual_best(
    rows: PairIntegers, keys: PairIntegers, score: PairNumbers
) -> tuple[Int[np.ndarray, " best"], Float[np.ndarray, " best"]]:
    """Return the indices of pairs that are the best of both their rows, and the smaller score of the runners-up.

    The score is NaN where neither row has another candidate.
    """
    best, runner_up = np.ones(len(score), bool), np.full(len(score), np.nan)
    for side in (rows, keys):
        order = top_per_row(side, score, 2)
        first = np.append(True, np.diff(side[order]) != 0)[: len(order)]
        own = np.zeros(len(score), bool)
        own[order[first]] = True
        best &= own
        second = dict(zip(side[order[~first]].tolist(), score[order[~first]].tolist(), strict=True))
        runner_up = np.fmin(runner_up, [second.get(row, np.nan) for row in side.tolist()])
    found = np.flatnonzero(best)
    return found, runner_up[found]


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

    rows: PairIntegers
    keys: PairIntegers
    found: Float[np.ndarray, "pairs similarities"]
    random: Float[np.ndarray, "random similarities"]
    sizes: tuple[int, int]


def estimation_sample(candidates: CandidatePairs, progress: Progress | None = None) -> EstimationSample:
    """Return the 20 most similar candidates of each left row, or of 20,000 random left rows of larger tables."""
    count = candidates.rows
    some = np.random.default_rng(0).choice(count, _MAX_ROWS, replace=False) if count > _MAX_ROWS else None
    top = candidates.top_candidates(_CANDIDATES_PER_ROW, some, progress)
    return EstimationSample(*top, candidates.random(_RANDOM_PAIRS), (min(count, _MAX_ROWS), candidates.keys))


def estimate_log_odds(
    measures: ComparisonVectors, sample: EstimationSample, progress: Progress | None = None
) -> tuple[Float[np.ndarray, "columns levels"], float]:
    """Return the estimated log odds of each agreement level, `(columns, levels)`, and the prior log odds of a match.

    Level 0, which means that a cell is missing, has log odds 0.
    """
    rows, keys, found, random, (left_rows, right_rows) = sample
    agreed, random_agreed = agreement(measures, found), agreement(measures, random)
    levels = agreement_levels(agreed)
    patterns, place = np.unique(np.concatenate([agreement_levels(random_agreed), levels]), axis=0, return_inverse=True)
    place = place.reshape(-1)  # NumPy 2.0 returns a column
    random_counts, own = np.bincount(place[: len(random)], minlength=len(patterns)), place[len(random) :]
    sampled = len(random) / max(left_rows * right_rows, 1)
    match_weights = np.zeros(len(rows))
    match_weights[mutual_best(rows, keys, rarity(agreed, random_agreed))[0]] = 1.0
    m, prior = np.zeros((levels.shape[-1], len(_START))), 0.0
    for _ in track(range(_STEPS), "estimating", progress):
        previous_m, previous_prior = m, prior
        m = _level_probabilities(levels, match_weights, _PSEUDOCOUNT * np.array(_START))
        # Random pairs of small tables include some matches, which are discounted.
        others = random_counts - sampled * np.bincount(own, match_weights, len(patterns))
        u = _level_probabilities(patterns, np.maximum(others, 0.0), _RANDOM_PSEUDOCOUNT)
        # Three rows more of either table count as without a match, and half a match at least.
        matches = max(float(match_weights.sum()), 0.5)
        alone = [min(max(count - matches, 0.0) + _PSEUDOCOUNT, count) for count in (left_rows, right_rows)]
        prior = float(np.log(matches / np.prod(alone)))
        log_odds = _log_odds(m, u)
        if np.abs(m - previous_m).max() < 1e-5 and abs(prior - previous_prior) < 1e-5:
            break
        match_weights = two_way_weights(rows, keys, prior + _sum_log_odds(log_odds, levels))
    return log_odds, prior


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
) -> PairNumbers:
    return np.asarray(sum(log_odds[column][levels[:, column]] for column in range(levels.shape[1])))
