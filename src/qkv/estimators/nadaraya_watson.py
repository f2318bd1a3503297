"""Nadaraya–Watson estimates, which training and prediction compute by `qkv.attend`.

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

Embedded = tuple[Float[Tensor, "members rows width"], Float[Tensor, "members rows outputs"] | None]
"""Keys `(members, rows, width)` and trends `(members, rows, outputs)` or None, as `Metric` returns them."""


def weighted_mean(
    query: Float[Tensor, "members q width"],
    key: Float[Tensor, "members k width"],
    value: Float[Tensor, "#members k outputs"],
    bandwidth: Float[Tensor, "members bandwidths"],
    sample_weight: Float[Tensor, "#members k 1"] | None,
    mask: Mask | None = None,
) -> Float[Tensor, "members q outputs"]:
    """Return the weighted mean of the values, Σ_i w_i v_i, for each query.

    Args:
        query: keys of the queries.
        key: keys of the fitted rows.
        value: values of the fitted rows.
        bandwidth: one bandwidth per member, or one per member and output.
        sample_weight: s; None means equal weights.
        mask: mask of the pairs that may have weight.
    """
    if bandwidth.shape[1] == 1:
        return _attention_mean(query, key, value, Gaussian(bandwidth[:, 0]), sample_weight, mask)
    # Each output is a batch element with a separate bandwidth.
    value = value.transpose(1, 2)[..., None]
    weight = None if sample_weight is None else sample_weight.transpose(1, 2)[..., None]
    means = _attention_mean(query[:, None], key[:, None], value, Gaussian(bandwidth), weight, mask)
    return means[..., 0].transpose(1, 2)


def weighted_mean_with_trend(
    query: Embedded,
    key: Embedded,
    value: Float[Tensor, "#members k outputs"],
    bandwidth: Float[Tensor, "members bandwidths"],
    sample_weight: Float[Tensor, "#members k 1"] | None,
    mask: Mask | None = None,
) -> Float[Tensor, "members q outputs"]:
    """Return the weighted mean with a trend, t(x) + Σ_i w_i (v_i − t(x_i)), for each query; see `weighted_mean`."""
    (query_key, query_trend), (row_key, row_trend) = query, key
    if query_trend is None or row_trend is None:
        return weighted_mean(query_key, row_key, value, bandwidth, sample_weight, mask)
    return query_trend + weighted_mean(query_key, row_key, value - row_trend, bandwidth, sample_weight, mask)


def _attention_mean(
    query: Float[Tensor, "members *#outputs q width"],
    key: Float[Tensor, "members *#outputs k width"],
    value: Float[Tensor, "#members *outputs k value_width"],
    score: Gaussian,
    weight: Float[Tensor, "#members *#outputs k 1"] | None,
    mask: Mask | None,
) -> Float[Tensor, "members *outputs q value_width"]:
    if weight is not None:
        weighted = value * weight
        value = torch.cat([weighted, weight.expand(*weighted.shape[:-1], 1)], dim=-1)
    value = value.expand(len(query), *value.shape[1:])
    sums = cast(Tensor, attend(query, key, value, score=score, mask=mask))
    return sums if weight is None else sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny)
