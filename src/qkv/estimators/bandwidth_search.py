"""Settling a bandwidth: rows are predicted from all the others at the bandwidths of a ladder; the best stays.

    error(h) = mean over rows i of  error(y_i, t(x_i) + Σ_{j≠i} w_ij(h) (y_j − t(x_j)))

Every output has its own. Rows that a member of an ensemble did not learn from are asked, so their errors are
honest; they are kept, and tell how far an answer may be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.estimators.metric_learning import loss_of
from qkv.estimators.nadaraya_watson import answer
from qkv.masks import Documents

__all__ = ["LADDER", "NEARBY", "Settled", "settle"]

NEARBY = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Around a bandwidth that was learned from a sample of the rows."""
LADDER = tuple(2.0 ** (1.0 - step / 2) for step in range(18))
"""In units of √width: where nothing was learned."""
_PAIRS = 4e8
_LEAST = 128


@dataclass(frozen=True)
class Settled:
    """What settling gives.

    Fields:
        bandwidth: `(members, bandwidths)`.
        asked: `(members, rows)`, indices of the rows that were asked.
        errors: `(members, rows, outputs)`, squared.
        loss: `(members,)`, the mean error at the bandwidths that stay.
    """

    bandwidth: Tensor
    asked: Tensor
    errors: Tensor
    loss: Tensor


@torch.no_grad()
def settle(
    keys: Tensor,
    trends: Tensor | None,
    values: Tensor,
    shares: Tensor | None,
    asked: Tensor,
    bandwidth: Tensor,
    ratios: Sequence[float],
    classes: bool,
) -> Settled:
    """The bandwidth, `bandwidth` times one of the ratios, with the least error.

    Args:
        keys, trends: of all rows, `(members, rows, …)`.
        values: `(rows, outputs)`; shares: `(rows, 1)` or None.
        asked: `(members, rows asked)`; fewer are asked where the rows are very many.
        bandwidth: `(members, bandwidths)` to start from.
        ratios: to try.
        classes: whether values are shares of classes.
    """
    members, rows = keys.shape[:2]
    asked = asked[:, : max(_LEAST, int(_PAIRS / max(rows * members, 1)))]
    others = ~Documents(asked[:, None], torch.arange(rows)) if bandwidth.shape[1] > 1 else None
    others = ~Documents(asked, torch.arange(rows).expand(members, rows)) if others is None else others
    mine = torch.arange(members)[:, None]
    query = keys[mine, asked], None if trends is None else trends[mine, asked]
    wanted = values[asked]
    weights = torch.ones(members, asked.shape[1], 1) if shares is None else shares[asked]
    predicted, losses = [], []
    for ratio in ratios:
        given = answer(
            query,
            (keys, trends),
            values[None],
            bandwidth * ratio,
            None if shares is None else shares[None],
            others,
        )
        apart = loss_of(given, wanted, classes)[..., None] if classes else (given - wanted).square()
        predicted.append(given)
        losses.append((apart * weights).sum(dim=1) / weights.sum(dim=1))
    every = torch.stack(losses)  # (ratios, members, outputs), or one for classes
    best = every.argmin(dim=0)
    chosen = torch.stack(predicted)
    place = best[None, :, None, :].expand(1, *chosen.shape[1:])
    errors = (chosen.gather(0, place)[0] - wanted).square()
    return Settled(
        bandwidth * torch.tensor(ratios, dtype=bandwidth.dtype)[best],
        asked,
        errors,
        every.gather(0, best[None])[0].mean(dim=1),
    )
