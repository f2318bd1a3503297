"""Training of metrics on minibatches whose rows are predicted from each other, one ensemble member after the other.

A step takes a small part of the time of one that predicts a batch from thousands of rows, whose keys also change with
every step. The bandwidth that fits a batch is too large for all rows; `search_bandwidth` corrects it afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int
from qkv.estimators.analytic_gradient import (
    EncodedRows,
    MemberParameters,
    class_losses,
    embed,
    inverse_bandwidths,
    loss_and_gradient,
    weighted_means,
)
from qkv.estimators.metric import Metric

_EVALUATIONS = 12
"""Number of evaluations on the held-out rows in a training of the maximum number of steps."""
_BETAS = 0.9, 0.95

Trace = list[tuple[MemberParameters, float]]
"""Parameters and loss on the held-out rows, of one evaluation after the other."""


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training of a metric, such as the maximum number of steps and the learning rate.

    Attributes:
        members: number of ensemble members.
        steps: maximum number of optimizer steps.
        batch: rows that are predicted in one training step.
        candidates: rows from which a batch is predicted; 0 means the rows of the batch.
        rate: learning rate.
        decay: weight decay.
        dropout: dropout probability of hidden units.
        patience: steps without a smaller validation loss before training stops.
        seconds: time after which training stops; the learning rate decreases accordingly.
        total_steps: steps of all members together, if batches are predicted from themselves: no further member is
            trained where its steps would probably exceed them. Noise ends the training of a member early, so noisy
            tables have more members, and others are trained longer.
        validation_rows: maximum number of held-out rows that are evaluated, from twice as many rows.
    """

    members: int
    steps: int
    batch: int
    candidates: int
    rate: float
    decay: float
    dropout: float
    patience: int
    seconds: float = math.inf
    total_steps: float = math.inf
    validation_rows: int = 1024


@dataclass(frozen=True)
class TrainingRows:
    """Rows of a table with their values and weights.

    Attributes:
        encoded: features of the rows.
        values: values `(rows, outputs)`.
        sample_weight: weights `(rows, 1)`; None means equal weights.
    """

    encoded: EncodedRows
    values: Float[np.ndarray, "rows outputs"]
    sample_weight: Float[np.ndarray, "rows 1"] | None

    def weights_of(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n 1"] | None:
        """Return the weights of some rows, or None if all weights are equal."""
        return None if self.sample_weight is None else self.sample_weight[rows]


def train_member(
    metric: Metric,
    parameters: MemberParameters,
    rows: TrainingRows,
    training: Int[np.ndarray, " training"],
    held_out: Int[np.ndarray, " held_out"],
    options: TrainingOptions,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
    trace: Trace | None = None,
) -> tuple[MemberParameters, float, int]:
    """Train the parameters of one ensemble member on its training rows.

    Args:
        metric: the metric to train.
        parameters: initial parameters, which are not changed.
        rows: all rows.
        training: indices of the training rows, at least two.
        held_out: indices of the held-out rows, at least one.
        options: training options; those of an ensemble have no effect.
        seed: seed of the batches and of the dropout.
        progress: called after each evaluation on held-out rows as `progress(step, smallest loss)`.
        trace: list to which the parameters and the losses of all evaluations are appended, the initial ones first;
            training then does not stop before the last step.

    Returns:
        The running mean of the parameters with the smallest loss on the held-out rows, this loss, and the number of
        steps.
    """
    generator = np.random.default_rng(seed)
    vector, views = _flatten(parameters)
    gradient, gradient_views = _flatten({name: np.zeros_like(each) for name, each in parameters.items()})
    decayed = np.concatenate([np.full(each.size, Metric.decays(name)) for name, each in parameters.items()])
    optimizer = _AdamW(vector, gradient, options.decay * decayed.astype(np.float32))
    mean, mean_views = _flatten(parameters)
    best, best_views = _flatten(parameters)
    smallest, waited = math.inf, 0
    batch = min(options.batch, len(training))
    epoch = max(1, len(training) // batch)
    every = max(5, -(-options.steps // _EVALUATIONS))
    validation = _Validation(metric, rows, training, held_out, options.validation_rows, generator)
    start, step = time.monotonic(), 0
    if trace is not None:
        trace.append((parameters, validation.loss(parameters)))
    with ignore_numpy_warnings():
        for step in range(1, options.steps + 1):
            if (step - 1) % epoch == 0:
                order = generator.permutation(training)
            index = order[(step - 1) % epoch * batch :][:batch]
            done = max((step - 1) / options.steps, (time.monotonic() - start) / options.seconds)
            loss_and_gradient(
                metric,
                views,
                rows.encoded[index],
                rows.values[index],
                rows.weights_of(index),
                _dropout_mask(metric, batch, options.dropout, generator),
                gradient_views,
            )
            optimizer.step(options.rate * learning_rate_factor(step - 1, done))
            mean += (vector - mean) * (1 - min(0.98, step / (9 + step)))
            if step % every == 0 or step == options.steps or done >= 1.0:
                loss = validation.loss(mean_views)
                waited = 0 if loss < smallest else waited + every
                if loss < smallest:
                    smallest = loss
                    best[:] = mean
                if progress is not None:
                    progress(step, smallest)
                if trace is not None:
                    trace.append((_flatten(mean_views)[1], loss))
                    waited = 0
                if done >= 1.0 or waited >= max(options.patience, 2 * min(epoch, options.steps)):
                    break
    return best_views, smallest, step


def learning_rate_factor(step: int, done: float) -> float:
    """Return the factor of the learning rate at a step, when a fraction `done` of the training is finished.

    It is a linear warm-up over 20 steps times a cosine decay.
    """
    return min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class _AdamW:
    """Adam with decoupled weight decay for one vector.

    Source:
        Loshchilov and Hutter (2019), Decoupled weight decay regularization, https://arxiv.org/abs/1711.05101.
    """

    def __init__(
        self,
        vector: Float[np.ndarray, " parameters"],
        gradient: Float[np.ndarray, " parameters"],
        decay: Float[np.ndarray, " parameters"],
    ) -> None:
        self._vector, self._gradient, self._decay = vector, gradient, decay
        self._first, self._second = np.zeros_like(vector), np.zeros_like(vector)
        self._buffer = np.empty_like(vector)
        self._steps = 0

    def step(self, rate: float) -> None:
        """Change the vector in place, given its gradient in the array that was passed at the beginning."""
        self._steps += 1
        (one, two), buffer = _BETAS, self._buffer
        self._first += (self._gradient - self._first) * (1 - one)
        np.multiply(self._gradient, self._gradient, out=buffer)
        buffer -= self._second
        buffer *= 1 - two
        self._second += buffer
        np.sqrt(self._second, out=buffer)
        buffer *= (1 - two**self._steps) ** -0.5
        buffer += 1e-8
        np.divide(self._first, buffer, out=buffer)
        buffer *= rate / (1 - one**self._steps)
        self._vector -= self._decay * self._vector * rate
        self._vector -= buffer


class _Validation:
    """Mean loss of the held-out rows, predicted from a sample of the training rows."""

    def __init__(
        self,
        metric: Metric,
        rows: TrainingRows,
        training: Int[np.ndarray, " training"],
        held_out: Int[np.ndarray, " held_out"],
        most: int,
        generator: np.random.Generator,
    ) -> None:
        keys, queries = generator.permutation(training)[: 2 * most], held_out[:most]
        self._metric, self._keys, self._queries = metric, len(keys), queries
        both = np.concatenate([keys, queries])
        self._rows, self._values = rows.encoded[both], rows.values[both]
        self._weights = rows.weights_of(both)

    def loss(self, parameters: MemberParameters) -> float:
        embedding = embed(self._metric, parameters, self._rows)
        n, values, trends = self._keys, self._values, embedding.trends
        residuals = values[:n] if trends is None else values[:n] - trends[:n]
        weights = None if self._weights is None else self._weights[:n]
        inverse, keys = inverse_bandwidths(parameters), embedding.keys
        predicted = weighted_means(keys[n:], keys[:n], residuals, inverse, weights)
        predicted = predicted if trends is None else predicted + trends[n:]
        if self._metric.classification:
            losses = class_losses(predicted, values[n:])
        else:
            losses = np.square(predicted - values[n:]).mean(axis=1)
        return float(np.average(losses, weights=None if self._weights is None else self._weights[n:, 0]))


def _dropout_mask(
    metric: Metric, rows: int, rate: float, generator: np.random.Generator
) -> Float[np.ndarray, " layers rows hidden"] | None:
    """Return random dropout factors of the hidden units, or None if there is no dropout or no network."""
    if rate == 0 or not metric.has_network:
        return None
    drawn = generator.integers(0, 256, (metric.layers, rows, metric.hidden), np.uint8)
    dropped = round(256 * rate)
    return (drawn >= dropped) * np.float32(256 / (256 - dropped))


def _flatten(parameters: MemberParameters) -> tuple[Float[np.ndarray, " parameters"], MemberParameters]:
    """Return a copy of the parameters as one vector, and views of it in their shapes."""
    vector = np.concatenate([each.ravel() for each in parameters.values()]).astype(np.float32)
    views, start = {}, 0
    for name, each in parameters.items():
        views[name] = vector[start : start + each.size].reshape(each.shape)
        start += each.size
    return vector, views
