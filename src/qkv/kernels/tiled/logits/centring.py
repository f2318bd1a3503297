"""Centring of two sides before exponentials: what one side gains the other loses, so that their sums stay the same."""

from __future__ import annotations

from qkv.core.typing import Float, Tensor

__all__ = ["centre_sides"]


def centre_sides(
    left: Float[Tensor, "q n"], right: Float[Tensor, "k n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the shifts that centre the narrower side of each column at 0, and its half range afterwards.

    Args:
        left: the shift is added to it.
        right: the shift is subtracted from it.

    Returns:
        Shifts, which are whole numbers, and min(max|left|, max|right|) of each column of the shifted sides.
    """
    import torch

    middles, halves = [], []
    for side in (left, right):
        low, high = torch.aminmax(side if len(side) else side.new_zeros((1, side.shape[1])), dim=0)
        if bool((low + high).isnan().any()):  # NaN must not change the range of the other rows
            low, high = torch.aminmax(side.masked_fill(side.isnan(), 0), dim=0)
        # Whole numbers: shifting by them keeps the digits of small numbers.
        middle = ((low + high) / 2).round().nan_to_num(0.0, 0.0, 0.0)
        middles.append(middle)
        halves.append(torch.maximum(high - middle, middle - low))
    narrow = halves[1] <= halves[0]
    return torch.where(narrow, middles[1], -middles[0]), torch.where(narrow, halves[1], halves[0])
