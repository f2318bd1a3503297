"""The leave-one-out loss of a minibatch and its gradient, written out in NumPy for one ensemble member.

    loss = mean over rows i of  s_i error(v_i, t(x_i) + Σ_{j≠i} P_ij (v_j − t(x_j)))
    P_ij ∝ s_j exp(−g ‖k_i − k_j‖²)

The keys k and the trend t are those of `Metric`, the other rows j those of the same batch, and g = 1 / 2h². A training
step of a small network takes a fraction of the time that it takes with the automatic differentiation of PyTorch, where
most of the time is the cost of starting each operation. The gradient in the keys and the trends is computed in
`leave_one_out`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from qkv.core.typing import Float, Int
from qkv.estimators.features import Features
from qkv.estimators.leave_one_out import leave_one_out_loss
from qkv.estimators.metric import Metric

__all__ = [
    "Embedding",
    "EncodedRows",
    "MemberParameters",
    "embed",
    "encode_rows",
    "inverse_bandwidths",
    "loss_and_gradient",
]

MemberParameters = dict[str, np.ndarray]
"""Parameters of one ensemble member by name: those of `Metric.initial_parameters` without the first axis."""

_MAX_DENSE = 128
"""Maximum number of one-hot encoded codes that are multiplied as a dense matrix."""


@dataclass(frozen=True)
class EncodedRows:
    """Features of rows: numbers, and one-hot encoded codes as a dense array or as a sparse matrix."""

    numbers: Float[np.ndarray, "rows numbers"]
    flags: np.ndarray | sparse.csr_matrix

    @property
    def dense_flags(self) -> Float[np.ndarray, "rows flags"]:
        """The one-hot encoded codes as a dense array."""
        return self.flags if isinstance(self.flags, np.ndarray) else self.flags.toarray()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> EncodedRows:
        return EncodedRows(self.numbers[rows], self.flags[rows])


def encode_rows(features: Features, metric: Metric) -> EncodedRows:
    """Return the features of rows with one-hot encoded codes. Unknown categories are encoded as zeros."""
    width, rows = sum(metric.sizes), len(features)
    sizes = np.array(metric.sizes, np.int64)
    starts = np.cumsum(sizes) - sizes
    known = features.codes < sizes - 1
    columns = (features.codes + starts)[known]
    pointer = np.concatenate([[0], known.sum(axis=1).cumsum()])
    flags = sparse.csr_matrix((np.ones(len(columns), np.float32), columns, pointer), shape=(rows, width))
    return EncodedRows(features.numbers[:, : metric.numbers], flags if width > _MAX_DENSE else flags.toarray())


@dataclass(frozen=True)
class _Network:
    """Intermediate results of a network for the gradient.

    Attributes:
        angles: angles of the periodic features, `(numbers, rows, frequencies)`.
        cosines: their cosines.
        inputs: periodic features and numbers, `(rows, inputs)`.
        activations: hidden units of each layer.
        slopes: derivatives of the hidden units of each layer.
    """

    angles: Float[np.ndarray, "numbers rows frequencies"]
    cosines: Float[np.ndarray, "numbers rows frequencies"]
    inputs: Float[np.ndarray, "rows inputs"]
    activations: list[Float[np.ndarray, "rows hidden"]]
    slopes: list[Float[np.ndarray, "rows hidden"]]


class Embedding(NamedTuple):
    """The keys and the trends of rows, and the intermediate results of the network, if there is one."""

    keys: Float[np.ndarray, "rows width"]
    trends: Float[np.ndarray, "rows outputs"] | None
    network: _Network | None


def embed(
    metric: Metric,
    parameters: MemberParameters,
    rows: EncodedRows,
    dropout_mask: Float[np.ndarray, " layers rows hidden"] | None = None,
) -> Embedding:
    """Return the keys and the trends of rows, which equal those of `Metric` to the precision of float32."""
    if not metric.has_network:
        trends = None if metric.trend == "none" else _times(rows.numbers, rows.flags, parameters["C"])
        return Embedding(_plain_keys(metric, parameters, rows), trends, None)
    angles = rows.numbers.T[:, :, None] * (parameters["wave"] * np.float32(2 * math.pi))[:, None]
    angles += parameters["phase"][:, None]
    cosines = np.cos(angles)
    periodic = (cosines @ parameters["Wave"]).transpose(1, 0, 2).reshape(len(rows), -1)
    inputs = np.concatenate([periodic, rows.numbers], axis=1)
    weights, (first, second) = _input_weights(metric, parameters, scaled=True)
    product = _times(inputs, rows.flags, weights)
    linear = product[:, :first] + parameters["b0"]
    activations: list[np.ndarray] = []
    slopes: list[np.ndarray] = []
    for layer in range(metric.layers):
        if layer:
            linear = activations[-1] @ parameters[f"W{layer}"]
            linear += parameters[f"b{layer}"]
        gate = np.exp(-linear)
        gate += 1.0
        np.reciprocal(gate, out=gate)
        hidden = linear * gate
        # The derivative of z σ(z) is σ(z) + z σ(z) (1 − σ(z)).
        slope = hidden * (1.0 - gate)
        slope += gate
        if dropout_mask is not None:
            slope *= dropout_mask[layer]
            hidden *= dropout_mask[layer]
        activations.append(hidden)
        slopes.append(slope)
    if metric.kind == "network":
        keys = product[:, first:second] + activations[-1] @ parameters["B"]
    else:
        keys = _plain_keys(metric, parameters, rows)
    trends = None if metric.trend == "none" else product[:, second:]
    if metric.trend == "network":
        trends = trends + activations[-1] @ parameters["D"]
    return Embedding(keys, trends, _Network(angles, cosines, inputs, activations, slopes))


def loss_and_gradient(
    metric: Metric,
    parameters: MemberParameters,
    rows: EncodedRows,
    values: Float[np.ndarray, "rows outputs"],
    sample_weight: Float[np.ndarray, "rows 1"] | None,
    dropout_mask: Float[np.ndarray, " layers rows hidden"] | None,
    gradient: MemberParameters,
) -> float:
    """Return the leave-one-out loss of a batch, and write its gradient into the arrays of `gradient`.

    Args:
        metric: the metric.
        parameters: parameters of one member.
        rows: the rows of the batch.
        values: values of the rows.
        sample_weight: weights s of the rows; None means equal weights.
        dropout_mask: factors of the hidden units, or None.
        gradient: arrays in the shapes of the parameters, which are overwritten.
    """
    keys, trends, network = embed(metric, parameters, rows, dropout_mask)
    found = leave_one_out_loss(
        keys, values, trends, inverse_bandwidths(parameters), sample_weight, metric.classification
    )
    gradient["log_bandwidth"][...] = found.log_bandwidth
    trend_gradient = None if trends is None else found.predicted - found.residuals
    if network is None or metric.kind != "network":
        _plain_gradient(metric, rows, found.keys, None if network else trend_gradient, gradient)
    if network is not None:
        _network_gradient(metric, parameters, rows, network, found.keys, trend_gradient, gradient)
    return found.loss


def inverse_bandwidths(parameters: MemberParameters) -> Float[np.ndarray, " bandwidths"]:
    """Return g = 1 / 2h² of each bandwidth."""
    inverse: np.ndarray = 0.5 * np.exp(-2.0 * parameters["log_bandwidth"])
    return inverse


def _plain_keys(metric: Metric, parameters: MemberParameters, rows: EncodedRows) -> Float[np.ndarray, "rows width"]:
    """Return the keys of a metric that is not a network."""
    if metric.kind == "none":
        weights = np.eye(metric.encoded_width, dtype=np.float32)
    else:
        weights = np.diag(parameters["diagonal"][0]) if metric.kind == "diagonal" else parameters["A"]
    return _times(rows.numbers, rows.flags, weights)


def _plain_gradient(
    metric: Metric,
    rows: EncodedRows,
    keys: Float[np.ndarray, "rows width"],
    trends: Float[np.ndarray, "rows outputs"] | None,
    gradient: MemberParameters,
) -> None:
    """Write the gradient in the parameters without a network, given the gradient in the keys and in the trends."""
    if metric.kind in ("linear", "low_rank"):
        gradient["A"][...] = _transposed_times(rows.numbers, rows.flags, keys)
    elif metric.kind == "diagonal":
        count = rows.numbers.shape[1]
        gradient["diagonal"][0, :count] = np.einsum("nd,nd->d", rows.numbers, keys[:, :count])
        dense = rows.dense_flags
        gradient["diagonal"][0, count:] = np.einsum("nd,nd->d", dense, keys[:, count:])
    if trends is not None:
        gradient["C"][...] = _transposed_times(rows.numbers, rows.flags, trends)


def _network_gradient(
    metric: Metric,
    parameters: MemberParameters,
    rows: EncodedRows,
    network: _Network,
    keys: Float[np.ndarray, "rows width"],
    trends: Float[np.ndarray, "rows outputs"] | None,
    gradient: MemberParameters,
) -> None:
    """Write the gradient in the parameters of a network, given the gradient in the keys and in the trends."""
    last = network.activations[-1]
    hidden = np.zeros_like(last)
    parts = []
    if metric.kind == "network":
        gradient["B"][...] = last.T @ keys
        hidden += keys @ parameters["B"].T
        parts.append(keys)
    if trends is not None:
        parts.append(trends)
        if metric.trend == "network":
            gradient["D"][...] = last.T @ trends
            hidden += trends @ parameters["D"].T
    for layer in range(metric.layers - 1, -1, -1):
        hidden *= network.slopes[layer]
        gradient[f"b{layer}"][...] = hidden.sum(axis=0)
        if layer:
            gradient[f"W{layer}"][...] = network.activations[layer - 1].T @ hidden
            hidden = hidden @ parameters[f"W{layer}"].T
    outputs = np.concatenate([hidden, *parts], axis=1)
    # The inputs are multiplied by `scale` before the weights: product = inputs (diag(scale) W).
    scale = parameters["scale"][0][:, None]
    weights, (first, second) = _input_weights(metric, parameters, scaled=False)
    scaled = _transposed_times(network.inputs, rows.flags, outputs)
    gradient["scale"][0] = np.einsum("io,io->i", scaled, weights)
    scaled *= scale
    gradient["W0"][...] = scaled[:, :first]
    if metric.kind == "network":
        gradient["A"][...] = scaled[:, first:second]
    if trends is not None:
        gradient["C"][...] = scaled[:, second:]
    numbers, _, width = parameters["Wave"].shape
    inputs = outputs @ (weights * scale)[: numbers * width].T
    periodic = inputs.reshape(len(rows), numbers, width).transpose(1, 0, 2)
    gradient["Wave"][...] = network.cosines.transpose(0, 2, 1) @ periodic
    angles = periodic @ parameters["Wave"].transpose(0, 2, 1)
    angles *= np.sin(network.angles)
    gradient["phase"][...] = -angles.sum(axis=1)
    gradient["wave"][...] = (rows.numbers.T[:, None, :] @ angles)[:, 0] * np.float32(-2 * math.pi)


def _input_weights(
    metric: Metric, parameters: MemberParameters, scaled: bool
) -> tuple[Float[np.ndarray, "inputs outputs"], tuple[int, int]]:
    """Return the weights of the inputs, and the columns at which the keys and the trends begin after the first layer.

    Args:
        metric: the metric.
        parameters: parameters of one member.
        scaled: whether the weights are multiplied by the scales of the inputs.
    """
    parts = [parameters["W0"]]
    if metric.kind == "network":
        parts.append(parameters["A"])
    middle = sum(part.shape[1] for part in parts)
    if metric.trend != "none":
        parts.append(parameters["C"])
    weights = np.concatenate(parts, axis=1)
    if scaled:
        weights *= parameters["scale"][0][:, None]
    return weights, (parts[0].shape[1], middle)


def _times(
    numbers: Float[np.ndarray, "rows numbers"], flags: np.ndarray | sparse.csr_matrix, weights: np.ndarray
) -> Float[np.ndarray, "rows outputs"]:
    """Return the product of the concatenation of numbers and flags with weights."""
    count = numbers.shape[1]
    product: np.ndarray = numbers @ weights[:count]
    if len(weights) > count:
        product += flags @ weights[count:]
    return product


def _transposed_times(
    numbers: Float[np.ndarray, "rows numbers"], flags: np.ndarray | sparse.csr_matrix, outputs: np.ndarray
) -> Float[np.ndarray, "inputs outputs"]:
    """Return the product of the transposed concatenation of numbers and flags with outputs."""
    parts = [numbers.T @ outputs]
    if flags.shape[1]:
        parts.append(flags.T @ outputs)
    return np.concatenate(parts)
