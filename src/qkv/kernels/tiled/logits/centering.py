"""Opposite shifts of the two summands of a logit, which center one of them at 0 before exponentials are taken."""

from __future__ import annotations

import torch

from qkv.core.typing import Float, Tensor


def center_sides(
    left: Float[Tensor, "q n"], right: Float[Tensor, "k n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return, for each column, the shift that centers the side of narrower range at 0, and half that range.

    Args:
        left: array to which the shift is to be added.
        right: array from which the shift is to be subtracted.

    Returns:
        Shifts, which are integers, and min(max|left + shift|, max|right − shift|), both for each column.
    """
    middles, halves = [], []
    for side in (left, right):
        low, high = torch.aminmax(side if len(side) else side.new_zeros((1, side.shape[1])), dim=0)
        if bool((low + high).isnan().any()):  # ignore NaN, so that the range of other rows does not change
            low, high = torch.aminmax(side.masked_fill(side.isnan(), 0), dim=0)
        # Shifts are integers, because adding an integer preserves the precision of small numbers.
        middle = ((low + high) / 2).round().nan_to_num(0.0, 0.0, 0.0)
        middles.append(middle)
        halves.append(torch.maximum(high - middle, middle - low))
    narrow = halves[1] <= halves[0]
    return torch.where(narrow, middles[1], -middles[0]), torch.where(narrow, halves[1], halves[0])
