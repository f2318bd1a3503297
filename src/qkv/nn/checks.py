"""Check the shapes of tensors that are passed to attention modules."""

from __future__ import annotations

from torch import Tensor

from qkv.core.typing import Float
from qkv.errors import ShapeError

__all__ = ["check_width"]


def check_width(name: str, x: Float[Tensor, "*shape"], width: int) -> Float[Tensor, "*shape"]:
    """Check that `x` has shape `(*batch, length, width)`, and return it.

    Raises:
        ShapeError: if `x` has another shape.
    """
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(
            f"{name} must have shape (*batch, length, {width}), got {tuple(x.shape)}. Project {name} to this "
            "width, or build the module for another width."
        )
    return x
