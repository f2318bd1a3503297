"""Nadaraya–Watson estimates with the engine, for training and for prediction.

    estimate(x) = t(x) + Σ_i w_i(x) (v_i − t(x_i))        w_i(x) ∝ s_i exp(−‖k(x) − k(x_i)‖² / 2h²)

v are the values of the fitted rows, k the keys, t the trend (0 without one), s the sample weights and h a
bandwidth for each output. No array of size rows × rows is stored.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from qkv.core.typing import Float
from qkv.engine import attend
from qkv.masks import Mask
from qkv.scores import Gaussian

__all__ = ["Embedded", "weighted_mean", "weighted_mean_with_trend"]

Embedded = tuple[Tensor, Tensor | None]
"""Keys `(members, rows, width)` and trends `(members, rows, outputs)` or None, as `Metric` returns them."""


def weighted_mean(
    query: Float[Tensor, "members q width"],
    key: Float[Tensor, "members k width"],
    value: Float[Tensor, "#members k outputs"],
    bandwidth: Float[Tensor, "members bandwidths"],
    sample_weight: Float[Tensor, "#members k 1"] | None,
    mask: Mask | None = None,
) -> Float[Tensor, "members q outputs"]:
    """Return Σ_i w_i v_i.

    Args:
        query: keys of the queries.
        key: keys of the fitted rows.
        value: values of the fitted rows.
        bandwidth: one bandwidth per member, or one per member and output.
        sample_weight: s; None means equal weights.
        mask: pairs that may have weight.
    """
    members, bandwidths = bandwidth.shape
    if sample_weight is not None:
        value = value * sample_weight
        if bandwidths == 1:
            value = torch.cat([value, sample_weight.expand(len(value), -1, -1)], dim=-1)
    value = value.expand(members, -1, -1)
    if bandwidths == 1:
        sums = cast(Tensor, attend(query, key, value, score=Gaussian(bandwidth[:, 0]), mask=mask))
        return sums if sample_weight is None else _ratio(sums[..., :-1], sums[..., -1:])
    value = value.transpose(1, 2)[..., None]
    if sample_weight is not None:
        value = torch.cat([value, sample_weight.transpose(1, 2)[..., None].expand_as(value)], dim=-1)
    sums = cast(Tensor, attend(query[:, None], key[:, None], value, score=Gaussian(bandwidth), mask=mask))
    means = sums[..., 0] if sample_weight is None else _ratio(sums[..., 0], sums[..., 1])
    return means.transpose(1, 2)


def weighted_mean_with_trend(
    query: Embedded,
    key: Embedded,
    value: Float[Tensor, "#members k outputs"],
    bandwidth: Float[Tensor, "members bandwidths"],
    sample_weight: Float[Tensor, "#members k 1"] | None,
    mask: Mask | None = None,
) -> Float[Tensor, "members q outputs"]:
    """Return t(x) + Σ_i w_i (v_i − t(x_i)); arguments as in `weighted_mean`."""
    (query_key, query_trend), (row_key, row_trend) = query, key
    if query_trend is None or row_trend is None:
        return weighted_mean(query_key, row_key, value, bandwidth, sample_weight, mask)
    return query_trend + weighted_mean(query_key, row_key, value - row_trend, bandwidth, sample_weight, mask)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return numerator / denominator.clamp_min(torch.finfo(denominator.dtype).tiny)
