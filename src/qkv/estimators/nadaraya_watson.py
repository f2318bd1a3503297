"""Attention from rows to rows: the one call of the engine that learning and answering share.

    answer(x) = t(x) + Σ_i w_i(x) (v_i − t(x_i))        w_i(x) ∝ s_i exp(−‖k(x) − k(x_i)‖² / 2h²)

v are the values of the fitted rows, t the trend (0 without one), s the weights of the rows and h a bandwidth
for each output. Nothing of the size rows × rows is held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.engine import attend
from qkv.masks import Mask
from qkv.scores import Gaussian

__all__ = ["answer", "weigh"]


def weigh(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bandwidth: Tensor,
    share: Tensor | None,
    mask: Mask | None = None,
) -> Tensor:
    """Σ_i w_i v_i `(members, q, outputs)`.

    Args:
        query, key: `(members, q or k, width)`.
        value: `(members or 1, k, outputs)`.
        bandwidth: `(members, 1)`, or `(members, outputs)`: one for each.
        share: s `(members or 1, k, 1)`; None: all alike.
        mask: which pairs may meet.
    """
    members, groups = bandwidth.shape
    if share is not None:
        value = torch.cat([value * share, share], dim=-1) if groups == 1 else value * share
    value = value.expand(members, -1, -1)
    if groups == 1:
        seen = attend(query, key, value, score=Gaussian(bandwidth[:, 0]), mask=mask)
        return seen if share is None else _ratio(seen[..., :-1], seen[..., -1:])
    value = value.transpose(1, 2)[..., None]
    if share is not None:
        value = torch.cat([value, share.transpose(1, 2)[..., None].expand_as(value)], dim=-1)
    seen = attend(query[:, None], key[:, None], value, score=Gaussian(bandwidth), mask=mask)
    seen = seen[..., 0] if share is None else _ratio(seen[..., 0], seen[..., 1])
    return seen.transpose(1, 2)


def answer(
    query: tuple[Tensor, Tensor | None],
    key: tuple[Tensor, Tensor | None],
    value: Tensor,
    bandwidth: Tensor,
    share: Tensor | None,
    mask: Mask | None = None,
) -> Tensor:
    """The equation above; `query` and `key` are keys and trends, as a metric gives them."""
    (asked, at), (known, trend) = query, key
    if trend is None or at is None:
        return weigh(asked, known, value, bandwidth, share, mask)
    return at + weigh(asked, known, value - trend, bandwidth, share, mask)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return above / below.clamp_min(torch.finfo(below.dtype).tiny)
