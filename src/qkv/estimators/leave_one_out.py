"""The leave-one-out loss of the rows of a batch, and its gradient in their keys, values and trends.

    loss = Σ_i c_i error(v_i, t_i + m_i)        m_i = Σ_{j≠i} P_ij r_j        r = v − t
    P_ij = E_ij / Z_i        E_ij = s_j exp(−g ‖k_i − k_j‖²)        Z_i = Σ_{j≠i} E_ij

The rows are computed in blocks that remain in the processor's cache. With G, the gradient of the loss in m,

    ∂/∂r = Pᵀ G        L = P ∘ (G rᵀ − rowsum(G ∘ m))        ∂/∂g = −Σ_ij L_ij ‖k_i − k_j‖²
    ∂/∂k = 2 g (L + Lᵀ − diag(Lᵀ 1)) k
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.core.typing import Float
from qkv.kernels.numpy_blocks.logits import NATURAL

__all__ = ["BatchGradient", "MIN_PROBABILITY", "class_losses", "leave_one_out_loss", "weighted_means"]

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
    """Return the weighted means of the values for each query.

    Args:
        queries: keys of the queries.
        keys: keys of the rows.
        values: values of the rows.
        inverse: g = 1 / 2h² of each output, or one for all.
        sample_weight: weights s of the rows.
    """
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
