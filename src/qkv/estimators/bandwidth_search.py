"""Choice of bandwidths from a grid, by the leave-one-out error of rows that were not used for training.

    error(h) = mean over rows i of  error(y_i, t(x_i) + Σ_{j≠i} w_ij(h) (y_j − t(x_j)))

Every output has its own bandwidth. Each ensemble member is evaluated on its out-of-bag rows, which it was not
trained on, so the errors are unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.typing import Float, Int
from qkv.estimators.metric_learning import row_losses
from qkv.estimators.nadaraya_watson import weighted_mean_with_trend
from qkv.masks import Documents

__all__ = ["BATCH_GRID", "LOCAL_GRID", "MIN_ROWS", "SEARCH_ROWS", "SMALL_GRID", "WIDE_GRID", "search_bandwidth"]

LOCAL_GRID = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Factors of a bandwidth that was learned from a sample of the rows."""
BATCH_GRID = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 1.0, 1.15, 1.35)
"""Factors of a bandwidth that was learned from the rows of a batch, which are farther apart than all rows."""
SMALL_GRID = (*BATCH_GRID, 2.0, 4.0, 8.0, 30.0)
"""Factors for small tables, up to equal weights of all rows, where the trend alone predicts best."""
WIDE_GRID = tuple(2.0 ** (1.0 - step / 2) for step in range(18))
"""Bandwidths in units of √width, used if no metric was trained."""
MIN_ROWS = 128
"""Minimum number of rows whose errors are compared."""
SEARCH_ROWS = 4096
"""Maximum number of rows whose errors are compared if no metric was trained."""


@dataclass(frozen=True)
class _BandwidthSearch:
    """The bandwidths that `search_bandwidth` chose, with their losses on out-of-bag rows.

    Attributes:
        bandwidth: chosen bandwidths `(members, bandwidths)`.
        loss: mean loss of each member at the chosen bandwidths, `(members,)`.
    """

    bandwidth: Tensor
    loss: Tensor


@torch.no_grad()
def search_bandwidth(
    keys: Float[Tensor, "members k width"],
    trends: Float[Tensor, "members k outputs"] | None,
    values: Float[Tensor, "k outputs"],
    sample_weight: Float[Tensor, "k 1"] | None,
    out_of_bag: Int[Tensor, "members n"],
    bandwidth: Float[Tensor, "members bandwidths"],
    factors: Sequence[float],
    classification: bool,
    max_pairs: float,
    together: bool = False,
) -> _BandwidthSearch:
    """Return each bandwidth multiplied by the factor of smallest leave-one-out error, with its loss.

    Args:
        keys: keys of all rows.
        trends: trends of all rows, or None.
        values: values of all rows.
        sample_weight: weights of all rows; None means equal weights.
        out_of_bag: rows to evaluate; in large tables, only the first of them are used.
        bandwidth: bandwidths that the factors multiply.
        factors: the grid.
        classification: whether values are class indicators, with log loss instead of squared error.
        max_pairs: maximum number of pairs of rows per bandwidth of the grid, which limits the time of the search.
        together: whether all members use the factor that has the smallest mean error.
    """
    members, rows = keys.shape[:2]
    out_of_bag = out_of_bag[:, : max(MIN_ROWS, int(max_pairs / max(rows * members, 1)))]
    if bandwidth.shape[1] > 1:
        others = ~Documents(out_of_bag[:, None], torch.arange(rows))
    else:
        others = ~Documents(out_of_bag, torch.arange(rows).expand(members, rows))
    member = torch.arange(members)[:, None]
    query = keys[member, out_of_bag], None if trends is None else trends[member, out_of_bag]
    target = values[out_of_bag]
    weights = torch.ones(members, out_of_bag.shape[1], 1) if sample_weight is None else sample_weight[out_of_bag]
    row_weights = None if sample_weight is None else sample_weight[None]
    losses = []
    for factor in factors:
        predicted = weighted_mean_with_trend(
            query, (keys, trends), values[None], bandwidth * factor, row_weights, others
        )
        if classification:
            loss = row_losses(predicted, target, classification)[..., None]
        else:
            loss = (predicted - target).square()
        losses.append((loss * weights).sum(dim=1) / weights.sum(dim=1))
    all_losses = torch.stack(losses)  # (factors, members, outputs), or one output for classes
    if together:
        all_losses = all_losses.mean(dim=1, keepdim=True).expand_as(all_losses)
    best = all_losses.argmin(dim=0)
    return _BandwidthSearch(
        bandwidth * torch.tensor(factors, dtype=bandwidth.dtype)[best],
        all_losses.gather(0, best[None])[0].mean(dim=1),
    )
