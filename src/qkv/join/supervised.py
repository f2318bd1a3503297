"""Learn the weights of comparison vectors by logistic regression on labelled pairs.

    logit(pair) = a · measures + b,    a ≥ 0

minimizes the cross-entropy of the labels plus λ/2 ‖a‖². Weights are non-negative, so that no similarity counts
against a match. λ and the threshold are chosen on held-out pairs, by two repeats of five-fold cross-validation and on
the validation pairs. The loss of a held-out pair is computed from its attention weight among the pairs of its left row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from qkv.core.progress import Progress, track
from qkv.core.typing import Float, Int, Num
from qkv.join.attention_weights import attention_weights
from qkv.join.compared_columns import PairIntegers, PairNumbers

_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS = 5
_REPEATS = 2


@dataclass(frozen=True, eq=False)
class LabelledSample:
    """Labelled pairs and unlabelled pairs of the same left rows, among which the attention weights are computed.

    Attributes:
        rows, measures, labels: left row, comparison vector and label of each pair.
        other_rows, other_measures: left row and comparison vector of each unlabelled pair.
    """

    rows: PairIntegers
    measures: Float[np.ndarray, "pairs measures"]
    labels: PairIntegers
    other_rows: Int[np.ndarray, " others"]
    other_measures: Float[np.ndarray, "others measures"]

    def weights(self, solution: Float[np.ndarray, " solution"]) -> PairNumbers:
        """Return the attention weight of each labelled pair for the learned weights and bias in `solution`.

        The softmax is over all labelled and unlabelled pairs of the same left row and "no match".
        """
        rows = np.concatenate([self.rows, self.other_rows])
        logits = np.concatenate([self.measures, self.other_measures]) @ solution[:-1] + solution[-1]
        return attention_weights(rows, logits)[0][: len(self.rows)]


@dataclass(frozen=True, eq=False)
class _FittedWeights:
    """Weights, bias and threshold that `fit_labelled` learned, with their loss and F1 on held-out pairs.

    Attributes:
        weights, bias: a and b.
        threshold: smallest weight of a match.
        strength: λ.
        loss: mean cross-entropy of held-out pairs.
        f1: F1 of the held-out pairs at the threshold.
    """

    weights: Float[np.ndarray, " measures"]
    bias: float
    threshold: float
    strength: float
    loss: float
    f1: float


def fit_labelled(
    train: LabelledSample, valid: LabelledSample | None = None, progress: Progress | None = None
) -> _FittedWeights:
    """Fit the weights to the pairs in `train`, and choose the regularization strength and the threshold.

    Both are chosen on held-out pairs: by cross-validation on `train`, and on `valid` unless it is None.
    """
    folds = [_assign_folds(train.labels, seed) for seed in range(_REPEATS)]
    labels = np.concatenate([*[train.labels] * _REPEATS, *([] if valid is None else [valid.labels])])
    results: list[tuple[float, float, Float[np.ndarray, " measures+1"], PairNumbers]] = []
    # Descending order, so that ties go to the stronger regularization.
    for strength in track(_STRENGTHS[::-1], "learning", progress):
        parts = []
        for fold in folds:
            weights = np.zeros(len(train.labels))
            for number in np.unique(fold):
                out = fold == number
                fitted = fit_logistic(train.measures[~out], train.labels[~out], strength)
                weights[out] = train.weights(fitted)[out]
            parts.append(weights)
        whole = fit_logistic(train.measures, train.labels, strength)
        if valid is not None:
            parts.append(valid.weights(whole))
        weights = np.concatenate(parts)
        likelihood = np.where(labels == 1, weights, 1.0 - weights)
        loss = float(-np.log(likelihood.clip(1e-9)).mean())
        results.append((loss, strength, whole, weights))
    loss, strength, whole, weights = min(results, key=lambda result: result[0])
    threshold, f1 = best_threshold(labels, weights)
    return _FittedWeights(whole[:-1], float(whole[-1]), threshold, strength, loss, f1)


def best_threshold(labels: PairIntegers, weights: PairNumbers) -> tuple[float, float]:
    """Return the threshold of the weights at which the F1 score is largest, and the F1 score at this threshold.

    Thresholds are midpoints between adjacent weights; a tie goes to the threshold closest to 0.5.

    Example:
        >>> best_threshold(np.array([0, 1, 1]), np.array([0.25, 0.75, 0.9]))
        (0.5, 1.0)
    """
    order = np.argsort(-weights, kind="stable")
    ordered = weights[order]
    right = np.cumsum(labels[order])
    f1 = 2 * right / (np.arange(1, len(labels) + 1) + max(labels.sum(), 1))
    below = np.append(ordered[1:], 0.0)
    cuts = (ordered + below) / 2
    apart = ordered > below
    f1 = np.where(apart, f1, -1.0)
    good = np.flatnonzero(f1 >= f1.max() - 1e-12)
    chosen = good[np.argmin(np.abs(cuts[good] - 0.5))]
    return float(cuts[chosen]), float(max(f1[chosen], 0.0))


def fit_logistic(
    measures: Float[np.ndarray, "pairs measures"], labels: Num[np.ndarray, " pairs"], strength: float
) -> Float[np.ndarray, " measures+1"]:
    """Return non-negative weights and a bias that minimize the regularized cross-entropy of the labels.

    Args:
        measures: comparison vectors.
        labels: probability of a match of each pair, which is 0 or 1 if the label is known.
        strength: λ.
    """

    def loss(solution: Float[np.ndarray, " solution"]) -> tuple[float, Float[np.ndarray, " solution"]]:
        a, b = solution[:-1], solution[-1]
        logits = measures @ a + b
        value = (np.logaddexp(0.0, logits) - labels * logits).sum() + strength / 2 * (a @ a)
        wrong = expit(logits) - labels
        return float(value), np.append(measures.T @ wrong + strength * a, wrong.sum())

    width = measures.shape[1]
    bounds: list[tuple[float | None, None]] = [*[(0.0, None)] * width, (None, None)]
    found = minimize(loss, np.zeros(width + 1), jac=True, bounds=bounds, method="L-BFGS-B")
    return np.asarray(found.x)


def _assign_folds(labels: PairIntegers, seed: int) -> PairIntegers:
    """Return the number of the cross-validation fold of each pair, from 0 to 4, stratified by label."""
    draw, folds = np.random.default_rng(seed), np.zeros(len(labels), int)
    for label in (0, 1):
        own = draw.permutation(np.flatnonzero(labels == label))
        folds[own] = np.arange(len(own)) % _FOLDS
    return folds
