"""Initial parameters of a metric from closed forms: a ridge regression as the trend, and a bandwidth for its residuals.

The features of the regression are the numbers and the one-hot encoded codes of a row. Its intercept is not needed,
because an estimate adds the weighted mean of the residuals. The bandwidth is the value of a grid with the smallest
leave-one-out loss of some rows. Each member uses its training rows only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Int
from qkv.estimators.analytic_gradient import MemberParameters, embed
from qkv.estimators.batch_training import TrainingRows
from qkv.estimators.leave_one_out import leave_one_out_loss
from qkv.estimators.metric import Metric, Parameters
from qkv.estimators.ridge import fit_ridge

__all__ = ["warm_start"]

_MOST_OPERATIONS = 5e7
"""Multiplications of the decomposition, which limit the rows that it uses."""
_BANDWIDTHS = 2.0 ** np.arange(-2.0, 6.0)
_BANDWIDTH_ROWS = 128


def warm_start(
    metric: Metric, parameters: Parameters, rows: Sequence[TrainingRows], training: Int[np.ndarray, "members training"]
) -> Parameters:
    """Return initial parameters with the trend and the bandwidth of closed forms.

    Args:
        metric: the metric.
        parameters: its random initial parameters.
        rows: all rows, for each member with the values that its trend is fitted to.
        training: indices of the training rows of each member, in any order.
    """
    with ignore_numpy_warnings():
        started = [
            _start_member(
                metric, {name: each[member].numpy().copy() for name, each in parameters.items()}, rows[member], own
            )
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
        design = np.concatenate([encoded.numbers, encoded.dense_flags], axis=1)
        found = fit_ridge(design, rows.values[own], rows.weights_of(own)).slopes
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
