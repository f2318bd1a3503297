"""The leave-one-out loss of a minibatch and its gradient, written out in NumPy for one ensemble member.

    loss = mean over rows i of  s_i error(v_i, t(x_i) + Σ_{j≠i} P_ij (v_j − t(x_j)))
    P_ij ∝ s_j exp(−g ‖k_i − k_j‖²)

The keys k and the trend t are those of `Metric`, the other rows j those of the same batch, and g = 1 / 2h². A training
step of a small network takes a fraction of the time that it takes with the automatic differentiation of PyTorch, where
most of the time is the cost of starting each operation.

`leave_one_out_loss` computes the loss of the rows of a batch, and its gradient in their keys, values and trends:

    loss = Σ_i c_i error(v_i, t_i + m_i)        m_i = Σ_{j≠i} P_ij r_j        r = v − t
    P_ij = E_ij / Z_i        E_ij = s_j exp(−g ‖k_i − k_j‖²)        Z_i = Σ_{j≠i} E_ij

The rows are computed in blocks that remain in the processor's cache. With G, the gradient of the loss in m,

    ∂/∂r = Pᵀ G        L = P ∘ (G rᵀ − rowsum(G ∘ m))        ∂/∂g = −Σ_ij L_ij ‖k_i − k_j‖²
    ∂/∂k = 2 g (L + Lᵀ − diag(Lᵀ 1)) k
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from qkv.core.typing import Float, Int
from qkv.estimators.features import Features
from qkv.estimators.metric import Metric
from qkv.kernels.numpy_blocks.logits import NATURAL

MIN_PROBABILITY = 1e-6
"""Smallest probability of which a loss is computed."""
_BLOCK = 2**16
"""Number of weights of a block: a quarter of a megabyte in float32."""
_SMALLEST_SUM = 1e-20
"""Sums of weights below it are computed again, relative to the largest weight. Weights below 1e-30 may count as 0."""


class BatchGradient(NamedTuple):
    """The loss of a batch, and its gradient.

    Attributes:
        loss: the loss.
        keys: gradient in the keys.
        residuals: gradient in r.
        predicted: gradient in the predictions t + m.
        log_bandwidth: gradient in the logarithm of each bandwidth.
    """

    loss: float
    keys: Float[np.ndarray, "rows width"]
    residuals: Float[np.ndarray, "rows outputs"]
    predicted: Float[np.ndarray, "rows outputs"]
    log_bandwidth: Float[np.ndarray, " bandwidths"]


def leave_one_out_loss(
    keys: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, "rows outputs"],
    trends: Float[np.ndarray, "rows outputs"] | None,
    inverse: Float[np.ndarray, " bandwidths"],
    sample_weight: Float[np.ndarray, "rows 1"] | None,
    classification: bool,
) -> BatchGradient:
    """Return the mean loss of the rows, each predicted from the others, with its gradient.

    Args:
        keys: keys of the rows.
        values: values of the rows.
        trends: their trends, or None.
        inverse: g = 1 / 2h² of each output, or one for all.
        sample_weight: weights s of the rows; None means equal weights.
        classification: whether values are class indicators, with log loss instead of squared error.
    """
    rows = len(keys)
    residuals = values if trends is None else values - trends
    share = np.full((rows, 1), 1.0 / rows, np.float32) if sample_weight is None else sample_weight / np.float32(rows)
    keys = keys - keys.mean(axis=0)  # smaller squares, smaller rounding errors
    squares = np.einsum("nd,nd->n", keys, keys)
    one = np.ones((rows, 1), np.float32)
    key_gradient, residual_gradient = np.zeros_like(keys), np.zeros_like(residuals)
    predicted_gradient, log_bandwidth = np.empty_like(residuals), np.empty_like(inverse)
    loss, step = 0.0, max(1, _BLOCK // rows)
    for number, g in enumerate(inverse):
        part = slice(None) if len(inverse) == 1 else slice(number, number + 1)
        known = np.concatenate([residuals[:, part], one], axis=1)
        query, key = _lift(keys, squares, g, sample_weight)
        products, transposed, columns = np.empty_like(keys), np.zeros_like(keys), np.zeros(rows, np.float32)
        for start in range(0, rows, step):
            own = slice(start, start + step)
            weights, sums = _block_weights(query[own], key, known, start)
            means = sums[:, :-1] / sums[:, -1:]
            predicted = means if trends is None else means + trends[own, part]
            block_loss, gradient = _loss(predicted, values[own, part], share[own], classification, values.shape[1])
            loss += block_loss
            predicted_gradient[own, part] = gradient
            scaled = gradient / sums[:, -1:]
            residual_gradient[:, part] += weights.T @ scaled
            center = np.einsum("no,no->n", scaled, means)[:, None]
            weights *= np.concatenate([scaled, -center], axis=1) @ known.T  # L
            columns += weights.sum(axis=0)
            products[own] = weights @ keys
            transposed += weights.T @ keys[own]
        # The rows of L sum to 0, so no distance is needed: Σ L ∘ D = Σ_j c_j ‖k_j‖² − 2 Σ_i k_i · (L k)_i.
        log_bandwidth[number] = -2.0 * g * (2.0 * np.vdot(products, keys) - np.dot(columns, squares))
        products += transposed
        products -= columns[:, None] * keys
        products *= 2.0 * g
        key_gradient += products
    return BatchGradient(loss, key_gradient, residual_gradient, predicted_gradient, log_bandwidth)


def _lift(
    keys: Float[np.ndarray, "rows width"],
    squares: Float[np.ndarray, " rows"],
    g: float,
    sample_weight: Float[np.ndarray, "rows 1"] | None,
) -> tuple[Float[np.ndarray, "rows lifted"], Float[np.ndarray, "lifted rows"]]:
    """Return vectors of the rows as queries and as keys, whose inner products are log E."""
    one, length = np.ones((len(keys), 1), np.float32), (squares * g)[:, None]
    logs = -length if sample_weight is None else np.log(sample_weight) - length
    query = np.concatenate([keys * (2.0 * g), -length, one], axis=1)
    return query, np.concatenate([keys, one, logs], axis=1).T


def _block_weights(
    query: Float[np.ndarray, "b lifted"],
    key: Float[np.ndarray, "lifted rows"],
    known: Float[np.ndarray, "rows columns"],
    start: int,
) -> tuple[Float[np.ndarray, "b rows"], Float[np.ndarray, "b columns"]]:
    """Return E of a block of rows up to a factor per row, and its products with `known`, whose last column is 1."""
    own = np.arange(len(query))
    weights = query @ key
    NATURAL.apply_(weights)
    weights[own, start + own] = 0.0
    sums = weights @ known
    total = sums[:, -1]
    if not _SMALLEST_SUM < total.min() <= total.max() < 1.0 / _SMALLEST_SUM:
        weights = query @ key
        weights[own, start + own] = -np.inf
        weights -= weights.max(axis=1, keepdims=True)
        NATURAL.apply_(weights)
        sums = weights @ known
    return weights, sums


def _loss(
    predicted: Float[np.ndarray, "b outputs"],
    values: Float[np.ndarray, "b outputs"],
    share: Float[np.ndarray, "b 1"],
    classification: bool,
    outputs: int,
) -> tuple[float, Float[np.ndarray, "b outputs"]]:
    """Return the sum of the losses of some rows and outputs, and its gradient in the predictions."""
    if not classification:
        errors = predicted - values
        weighted = errors * (share / np.float32(outputs))
        return float(np.vdot(errors, weighted)), 2.0 * weighted
    own = np.maximum((predicted * values).sum(axis=1, keepdims=True), MIN_PROBABILITY)
    gradient = np.where(own > MIN_PROBABILITY, -values / own, 0.0) * share
    return float((-np.log(own) * share).sum()), gradient.astype(np.float32, copy=False)


def class_losses(
    predicted: Float[np.ndarray, "*n classes"], values: Float[np.ndarray, "*n classes"]
) -> Float[np.ndarray, "*n"]:
    """Return the log loss of the class of each row."""
    return np.asarray(-np.log(np.maximum((predicted * values).sum(axis=-1), MIN_PROBABILITY)))


def weighted_means(
    queries: Float[np.ndarray, "q width"],
    keys: Float[np.ndarray, "k width"],
    values: Float[np.ndarray, "k outputs"],
    inverse: Float[np.ndarray, " bandwidths"],
    sample_weight: Float[np.ndarray, "k 1"] | None,
) -> Float[np.ndarray, "q outputs"]:
    """Return the weighted means of the values for each query."""
    center = keys.mean(axis=0)  # smaller squares, smaller rounding errors
    queries, keys = queries - center, keys - center
    squares = np.einsum("nd,nd->n", keys, keys)
    one, parts = np.ones((len(keys), 1), np.float32), []
    for number, g in enumerate(inverse):
        logits = (queries * (2.0 * g)) @ keys.T
        logits -= squares * g
        if sample_weight is not None:
            logits += np.log(sample_weight[:, 0])
        logits -= logits.max(axis=1, keepdims=True)
        NATURAL.apply_(logits)
        sums = logits @ np.concatenate([values if len(inverse) == 1 else values[:, [number]], one], axis=1)
        parts.append(sums[:, :-1] / sums[:, -1:])
    return np.concatenate(parts, axis=1)


MemberParameters = dict[str, np.ndarray]
"""Parameters of one ensemble member by name: those of `Metric.initial_parameters` without the first axis."""

_MAX_DENSE = 128
"""Maximum number of one-hot encoded codes that are multiplied as a dense matrix."""


@dataclass(frozen=True)
class EncodedRows:
    """Features of training rows: numbers, and one-hot encoded codes as a dense array or as a sparse matrix."""

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
    """Return the weights of the inputs, and the columns where keys and trends begin after the first layer."""
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
