"""Initial parameters of a metric from closed forms: a ridge regression as the trend, and a bandwidth for its residuals.

    C = argmin Σ_i s_i (v_i − c − u_i C)² + λ ‖C‖²        u: the numbers and the one-hot encoded codes of a row

The intercept c is not needed, because an estimate adds the weighted mean of the residuals. λ is the value of a grid
with the smallest leave-one-out error, which is (v_i − v̂_i) / (1 − H_ii) for each row. The bandwidth is then the value
of a grid with the smallest leave-one-out loss of some rows. Each member uses its training rows only.
"""

from __future__ import annotations

import numpy as np
import torch

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int
from qkv.estimators.analytic_gradient import MemberParameters, embed
from qkv.estimators.batch_training import TrainingRows
from qkv.estimators.leave_one_out import leave_one_out_loss
from qkv.estimators.metric import Metric, Parameters

__all__ = ["ridge_coefficients", "warm_start"]

_PENALTIES = 10.0 ** np.arange(-6.0, 3.5, 0.5)
"""Values of λ per row, of columns with a variance of about 1."""
_MOST_OPERATIONS = 5e7
"""Multiplications of the decomposition, which limit the rows that it uses."""
_BANDWIDTHS = 2.0 ** np.arange(-2.0, 6.0)
_BANDWIDTH_ROWS = 128


def warm_start(
    metric: Metric, parameters: Parameters, rows: TrainingRows, training: Int[np.ndarray, "members training"]
) -> Parameters:
    """Return initial parameters with the trend and the bandwidth of closed forms.

    Args:
        metric: the metric.
        parameters: its random initial parameters.
        rows: all rows.
        training: indices of the training rows of each member, in any order.
    """
    with ignore_numpy_warnings():
        started = [
            _start_member(metric, {name: each[member].numpy().copy() for name, each in parameters.items()}, rows, own)
            for member, own in enumerate(training)
        ]
    return {name: torch.from_numpy(np.stack([each[name] for each in started])) for name in parameters}


def _start_member(
    metric: Metric, parameters: MemberParameters, rows: TrainingRows, training: Int[np.ndarray, " training"]
) -> MemberParameters:
    width = metric.encoded_width
    if metric.trend != "none" and width:
        count = len(training)
        while count * width * min(count, width) > _MOST_OPERATIONS and count > 1:
            count //= 2
        own = training[:count]
        encoded = rows.encoded[own]
        flags = encoded.flags if isinstance(encoded.flags, np.ndarray) else encoded.flags.toarray()
        weights = rows.weights_of(own)
        found = ridge_coefficients(np.concatenate([encoded.numbers, flags], axis=1), rows.values[own], weights)
        scale = parameters["scale"][0][-width:, None] if metric.has_network else 1.0
        parameters["C"][-width:] = found / scale
    some = training[:_BANDWIDTH_ROWS]
    keys, trends, _ = embed(metric, parameters, rows.encoded[some])
    losses = []
    for bandwidth in _BANDWIDTHS:
        inverse = np.full(len(parameters["log_bandwidth"]), 0.5 / bandwidth**2, np.float32)
        found_loss = leave_one_out_loss(
            keys, rows.values[some], trends, inverse, rows.weights_of(some), metric.classification
        ).loss
        losses.append(found_loss)
    parameters["log_bandwidth"][...] = np.log(_BANDWIDTHS[int(np.argmin(losses))])
    return parameters


def ridge_coefficients(
    features: Float[np.ndarray, "rows columns"],
    values: Float[np.ndarray, "rows outputs"],
    sample_weight: Float[np.ndarray, "rows 1"] | None = None,
) -> Float[np.ndarray, "columns outputs"]:
    """Return the slopes of a ridge regression whose penalty has the smallest leave-one-out error, for each output.

    Args:
        features: features of the rows, in similar units.
        values: values of the rows.
        sample_weight: weights of the rows; None means equal weights.
    """
    rows = len(features)
    share = np.full((rows, 1), 1.0 / rows) if sample_weight is None else sample_weight / sample_weight.sum()
    root = np.sqrt(share)
    x = features.astype(np.float64)
    y = values.astype(np.float64)
    x = (x - (share * x).sum(axis=0)) * root
    y = (y - (share * y).sum(axis=0)) * root
    left, singular, right = np.linalg.svd(x, full_matrices=False)
    projected = left.T @ y
    best = np.full(y.shape[1], np.inf)
    slopes = np.zeros((x.shape[1], y.shape[1]))
    for penalty in _PENALTIES:
        shrunk = singular**2 / (singular**2 + penalty)
        leverage = (left**2) @ shrunk + share[:, 0]
        left_out = (y - left @ (shrunk[:, None] * projected)) / np.maximum(1.0 - leverage, 1e-6)[:, None]
        error = np.square(left_out).sum(axis=0)
        better = error < best
        best = np.where(better, error, best)
        factors = singular / (singular**2 + penalty)
        slopes[:, better] = (right.T @ (factors[:, None] * projected))[:, better]
    return slopes.astype(np.float32)
