"""Choose the pairs whose labels teach a join most, and learn from the labels given so far.

Five versions of the scores (a committee) are learned from the same labels with random weights, and from randomly
changed scores without labels. The most informative pairs are those on which they disagree:

    information(pair) = H(mean of the weights) − mean of H(weight),    H(w) = −w log w − (1 − w) log(1 − w)

This is the mutual information of the label and the version (BALD). A pair that all versions find equally uncertain,
such as one of two equal candidates, has none. docs/join.md compares this choice with others.

Sources: Houlsby, Huszár, Ghahramani, Lengyel 2011, Bayesian active learning for classification and preference
learning; Rubin 1981, The Bayesian bootstrap (exponential weights of the labels).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from qkv.core.typing import Bool, Float, Int
from qkv.join.attention_weights import attention_weights
from qkv.join.compared_columns import PairIntegers, PairNumbers
from qkv.join.comparison_vectors import ComparisonVectors, PairList, append_log_odds, level_log_odds
from qkv.join.labels import Labels
from qkv.join.model import JoinModel
from qkv.join.unsupervised import Estimate, expected_f1_threshold, limit_sharpness

_STRENGTH = 0.3
_BIAS_STRENGTH = 0.3
_GAIN_STRENGTH = 10.0
_MIN_GAIN = 0.02
_MIN_WEIGHT = 1e-9
_STEPS = 300


class LabelledRows:
    """Labelled pairs and all candidates of their left rows, with the cross-entropy of the labels.

    Args:
        rows: left row of each pair.
        measures: measures of each pair.
        places: index of each labelled pair into `rows`.
        labels: 1 for a match, 0 otherwise.
        counts: weight of each label in the sum; None for 1.
    """

    def __init__(
        self,
        rows: PairIntegers,
        measures: Float[np.ndarray, "pairs measures"],
        places: Int[np.ndarray, " labels"],
        labels: Int[np.ndarray, " labels"],
        counts: Float[np.ndarray, " labels"] | None = None,
    ) -> None:
        own = np.flatnonzero(np.isin(rows, rows[places]))
        self.measures = measures[own]
        _, self._row = np.unique(rows[own], return_inverse=True)
        self._places = np.searchsorted(own, places)
        self._labels = labels
        self._counts = np.ones(len(labels)) if counts is None else counts

    def loss(self, logits: PairNumbers) -> tuple[float, PairNumbers]:
        """Return the cross-entropy of the labels and its gradient, for the logits of the pairs of labelled rows."""
        weights = attention_weights(self._row, logits)[0]
        weight = weights[self._places].clip(_MIN_WEIGHT, 1.0 - _MIN_WEIGHT)
        match = self._labels == 1
        loss = float(-(self._counts * np.where(match, np.log(weight), np.log1p(-weight))).sum())
        # d loss / d log weight of each labelled pair, then through the softmax of its row.
        slope = self._counts * np.where(match, -1.0, weight / (1.0 - weight))
        own = np.bincount(self._places, slope, len(logits))
        row = np.bincount(self._row[self._places], slope, self._row.max(initial=-1) + 1)
        return loss, own - row[self._row] * weights


def fit_from_prior(
    labelled: LabelledRows, prior: Float[np.ndarray, " measures"], prior_bias: float
) -> tuple[Float[np.ndarray, " measures"], float]:
    """Return the weights a and the bias b that minimize the regularized cross-entropy of the labels.

    Args:
        labelled: labelled pairs and the other candidates of their rows.
        prior: weights a₀ without labels; measures with a negative weight keep it.
        prior_bias: bias b₀ without labels.

    Example:
        >>> x = np.array([[0.9], [0.1], [0.8], [0.2]])
        >>> labelled = LabelledRows(np.arange(4), x, np.arange(4), np.array([1, 0, 1, 0]))
        >>> weights, bias = fit_from_prior(labelled, np.array([1.0]), -2.0)
        >>> (x @ weights + bias > 0).tolist()
        [True, False, True, False]
    """
    free = prior >= 0
    measures, start = labelled.measures[:, free], prior[free]
    constant = labelled.measures[:, ~free] @ prior[~free]
    size = len(start)

    def loss(solution: Float[np.ndarray, " solution"]) -> tuple[float, Float[np.ndarray, " solution"]]:
        a, b, gain = solution[:size], solution[size], solution[size + 1]
        value, slope = labelled.loss(measures @ a + b + constant)
        change, shift = a - gain * start, b - gain * prior_bias
        value += (
            _STRENGTH / 2 * (change @ change) + _BIAS_STRENGTH / 2 * shift**2 + _GAIN_STRENGTH / 2 * (gain - 1) ** 2
        )
        of_gain = -_STRENGTH * (change @ start) - _BIAS_STRENGTH * shift * prior_bias + _GAIN_STRENGTH * (gain - 1)
        return float(value), np.concatenate(
            [measures.T @ slope + _STRENGTH * change, [slope.sum() + _BIAS_STRENGTH * shift, of_gain]]
        )

    bounds = [*[(0.0, None)] * size, (None, None), (_MIN_GAIN, None)]
    found = minimize(
        loss,
        np.concatenate([start, [prior_bias, 1.0]]),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": _STEPS},
    ).x
    weights = prior.astype(np.float64)
    weights[free] = found[:size]
    return weights, float(found[size])


_MEMBERS = 5
_WEIGHT_SPREAD = 0.5
"""Standard deviation of the logarithm of the factors of the weights without labels."""
_BIAS_SPREAD = 1.0
"""Standard deviation of the change of the log odds without labels."""


class ActiveLearner:
    """Scores of a join that learn from few labels, and the choice of the next pairs to label.

    Args:
        estimate: scores without labels.
        measures: comparison vectors of both tables.
        self_join: whether left and right are the same table.

    Attributes:
        model: model learned from the labels so far.
    """

    def __init__(self, estimate: Estimate, measures: ComparisonVectors, self_join: bool) -> None:
        self._estimate, self._measures, self._self_join = estimate, measures, self_join
        sample = estimate.sample
        self._rows, self._keys = sample.rows, sample.keys
        self._found = self._extended(sample.found)
        self._places = {pair: place for place, pair in enumerate(self._listed(self._rows, self._keys))}
        self._asked = np.zeros(0, int)
        self._answers = np.zeros(0, int)
        self.model: JoinModel = estimate.model

    @property
    def pairs(self) -> tuple[PairIntegers, PairIntegers]:
        """Left and right row of each candidate pair that may be asked."""
        return self._rows, self._keys

    @property
    def weights(self) -> PairNumbers:
        """Weight of each of `pairs` among those of its left row, by `model`."""
        return attention_weights(self._rows, self.model.logits_of(self._found))[0]

    def fit(self, labels: Labels) -> None:
        """Learn from labels, starting from the scores without labels; earlier calls do not count."""
        rows, keys, match = labels.rows, labels.keys, labels.match
        if self._self_join:
            rows, keys, match = np.append(rows, keys), np.append(keys, rows), np.append(match, match)
        self.add(rows, keys)
        pairs = self._listed(rows, keys)
        self._asked = np.array([self._places[pair] for pair in pairs], int)
        self._answers = match
        self.model = self._learned(labels)

    def add(self, rows: Int[np.ndarray, " added"], keys: Int[np.ndarray, " added"]) -> None:
        """Add pairs that may be asked to `pairs`, unless they are among them."""
        fresh = [pair for pair in dict.fromkeys(self._listed(rows, keys)) if pair not in self._places]
        if not fresh:
            return
        added = np.array(fresh, int)
        pairs = PairList(added[:, 0], added[:, 1])
        self._places |= {pair: len(self._rows) + place for place, pair in enumerate(fresh)}
        self._rows, self._keys = np.append(self._rows, pairs.rows), np.append(self._keys, pairs.keys)
        self._found = np.concatenate([self._found, self._extended(self._measures.compute(pairs))])

    def informative(
        self, count: int, excluded: Set[tuple[int, int]] = frozenset(), among: Bool[np.ndarray, " pairs"] | None = None
    ) -> list[tuple[int, int]]:
        """Return up to `count` pairs `(left row, right row)` without a label, the most informative first.

        No two of them have the same left row.

        Args:
            count: number of pairs.
            excluded: pairs that are not asked.
            among: whether each of `pairs` may be asked; None for all.
        """
        allowed = np.ones(len(self._rows), bool) if among is None else among.copy()
        allowed[self._asked] = False
        for row, key in excluded:
            for pair in ((row, key), (key, row)) if self._self_join else ((row, key),):
                if pair in self._places:
                    allowed[self._places[pair]] = False
        information = self._information()
        chosen: list[tuple[int, int]] = []
        used: set[int] = set()
        for place in np.argsort(-np.where(allowed, information, -1.0), kind="stable"):
            row, key = int(self._rows[place]), int(self._keys[place])
            if len(chosen) == count or not allowed[place]:
                break
            if row in used or (self._self_join and key in used):
                continue
            chosen.append((row, key))
            used |= {row, key} if self._self_join else {row}
        return chosen

    def scores(self, row: int, key: int) -> tuple[float, float]:
        """Return the weight of a candidate pair among those of its left row, and its probability, by `model`."""
        place = self._places[row, key]
        own = np.flatnonzero(self._rows == row)
        logits = self.model.logits_of(self._found[own])
        weights, _ = attention_weights(self._rows[own], logits)
        return float(weights[own == place][0]), float(expit(logits[own == place][0]))

    # -- implementation -----------------------------------------------------------------------------------------

    def _learned(self, labels: Labels) -> JoinModel:
        estimate = self._estimate
        count, matches = len(labels.match), int(labels.match.sum())
        if not count or (estimate.declined and len(np.unique(labels.match)) < 2):
            # One kind of label does not tell either where matches end.
            return estimate.model
        weights, bias = fit_from_prior(self._labelled(None), estimate.weights, estimate.bias)
        random = self._extended(estimate.sample.random) @ weights + bias
        sharpness = limit_sharpness(random, estimate.sample.sizes[1])
        notes = (
            *estimate.model.notes[:1],
            f"scores corrected by {count:,} label{'s' * (count != 1)}, {matches} of them match{'es' * (matches != 1)}",
        )
        if not matches:
            notes += ("no label is a match: the labels only say what is not one",)
        if matches == count:
            notes += ("every label is a match: the labels do not say what is not one",)
        contradicting = self._contradicting(labels)
        if contradicting:
            notes += (f"{contradicting} pair{'s have' if contradicting != 1 else ' has'} contradicting labels",)
        weights, bias = sharpness * weights, sharpness * bias
        threshold = expected_f1_threshold(attention_weights(self._rows, self._found @ weights + bias)[0])
        return replace(estimate.model, learned=weights, bias=bias, threshold=threshold, notes=notes)

    def _contradicting(self, labels: Labels) -> int:
        pairs = self._listed(labels.rows, labels.keys)
        if self._self_join:
            pairs = [(min(pair), max(pair)) for pair in pairs]
        return len(set(zip(pairs, labels.match.tolist(), strict=True))) - len(set(pairs))

    def _labelled(self, counts: Float[np.ndarray, " labels"] | None) -> LabelledRows:
        return LabelledRows(self._rows, self._found, self._asked, self._answers, counts)

    def _information(self) -> PairNumbers:
        draw, estimate = np.random.default_rng(len(self._asked)), self._estimate
        members = []
        for _ in range(_MEMBERS):
            weights = estimate.weights * np.exp(draw.normal(0.0, _WEIGHT_SPREAD, len(estimate.weights)))
            bias = estimate.bias + draw.normal(0.0, _BIAS_SPREAD)
            if len(self._asked):
                weights, bias = fit_from_prior(self._labelled(draw.exponential(size=len(self._asked))), weights, bias)
            members.append(attention_weights(self._rows, self._found @ weights + bias)[0])
        voted = np.array(members)
        return np.asarray(_entropy(voted.mean(axis=0)) - _entropy(voted).mean(axis=0))

    def _extended(self, found: Float[np.ndarray, "pairs similarities"]) -> Float[np.ndarray, "pairs measures"]:
        log_odds = level_log_odds(self._measures, found, self._estimate.model.log_odds)
        return append_log_odds(found, log_odds)

    @staticmethod
    def _listed(rows: PairIntegers, keys: PairIntegers) -> list[tuple[int, int]]:
        return list(zip(rows.tolist(), keys.tolist(), strict=True))


def _entropy(weights: Float[np.ndarray, "*pairs"]) -> Float[np.ndarray, "*pairs"]:
    inside = weights.clip(1e-12, 1.0 - 1e-12)
    return np.asarray(-inside * np.log(inside) - (1.0 - inside) * np.log1p(-inside))
