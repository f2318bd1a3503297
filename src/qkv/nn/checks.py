"""Checks of module arguments, whose errors state the argument, its condition and the given value."""

from __future__ import annotations

from torch import Tensor

from qkv.core.checks import check_integers
from qkv.errors import OptionError, ShapeError

__all__ = ["check_integers", "check_probability", "check_width"]


def check_probability(dropout: float) -> float:
    """Check a dropout probability and return it as a float.

    Raises:
        OptionError: if `dropout` is not in [0, 1).
    """
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise OptionError(f"dropout must be a number in [0, 1), got {dropout!r}.")
    return float(dropout)


def check_width(name: str, x: Tensor, width: int) -> Tensor:
    """Return `x` if it has shape `(*batch, length, width)`.

    Raises:
        ShapeError: if `x` has another shape.
    """
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(
            f"{name} must have shape (*batch, length, {width}), got {tuple(x.shape)}. Project {name} to this "
            "width, or build the module for another width."
        )
    return x
