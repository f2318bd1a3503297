"""Learn the weights of comparison vectors from few labels, starting from the scores that were estimated without labels.

    logit(pair) = a · measures + b,    weight(r, k) = softmax_k(logit(r, k)) with the logit 0 of "no match"

    minimize  − Σ_matches log weight − Σ_others log(1 − weight)
              + λ/2 ‖a − g a₀‖² + β/2 (b − g b₀)² + γ/2 (g − 1)²        a ≥ 0

a₀ and b₀ are the weights without labels, and g corrects their certainty. A label also affects the other candidates of
its left row, because they compete for the same weight: on the product tables of docs/join.md this gives an F1 that is 3
to 20 points higher, from 100 labels on, than the cross-entropy of each pair alone. Measures with a negative weight a₀
(a missing cell of a single column) keep it.

λ, β, γ were chosen on the training and validation pairs of five pairs of tables (docs/join.md).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from qkv.core.typing import Float, Int

__all__ = ["LabelledRows", "fit_from_prior"]

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
        rows: Int[np.ndarray, " pairs"],
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
        self._count = int(self._row.max(initial=-1)) + 1

    def loss(self, logits: Float[np.ndarray, " pairs"]) -> tuple[float, Float[np.ndarray, " pairs"]]:
        """Return the cross-entropy of the labels and its gradient, for the logits of the pairs of labelled rows."""
        largest = np.zeros(self._count)  # starts at 0, the logit of "no match"
        np.maximum.at(largest, self._row, logits)
        shares = np.exp(logits - largest[self._row])
        total = np.bincount(self._row, shares, self._count) + np.exp(-largest)
        weights = shares / total[self._row]
        weight = weights[self._places].clip(_MIN_WEIGHT, 1.0 - _MIN_WEIGHT)
        match = self._labels == 1
        loss = float(-(self._counts * np.where(match, np.log(weight), np.log1p(-weight))).sum())
        # d loss / d log weight of each labelled pair, then through the softmax of its row.
        slope = self._counts * np.where(match, -1.0, weight / (1.0 - weight))
        own = np.bincount(self._places, slope, len(logits))
        row = np.bincount(self._row[self._places], slope, self._count)
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
