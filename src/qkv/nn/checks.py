"""Check the tensors and objects that are passed to attention modules."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from qkv.core.checks import describe
from qkv.core.typing import Float
from qkv.errors import KindError, ShapeError
from qkv.nn.protocols import Cache, Rotation

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The dtypes of most calls, which need no further check."""


def check_width(name: str, x: Float[Tensor, "*shape"], width: int) -> Float[Tensor, "*shape"]:
    """Check that `x` has shape `(*batch, length, width)`, and return it.

    Raises:
        KindError: if `x` is not a dense tensor of floating-point numbers.
        ShapeError: if `x` has another shape.
    """
    plain = type(x) is Tensor and x.layout is torch.strided and not x.is_nested
    if plain and x.dtype in _FLOATS and x.ndim >= 2 and x.shape[-1] == width:
        return x
    dense = isinstance(x, Tensor) and x.layout == torch.strided and not x.is_nested
    if not dense or not x.is_floating_point() or x.dtype.itemsize == 1:
        raise KindError(
            f"{name} must be a dense tensor of floating-point numbers with at least 16 bits, got {_describe(x)}. "
            "Convert it, for example with torch.as_tensor, .to_dense(), .to_padded_tensor(0) or .float()."
        )
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(
            f"{name} must have shape (*batch, length, {width}), got {tuple(x.shape)}. Project {name} to this "
            "width, or build the module for another width."
        )
    return x


def require_rotation(positions: object) -> Rotation:
    """Return `positions`, or raise an error if it is not a `Rotation`.

    Raises:
        KindError: if `positions` has no method `rotate`, or is a class.
    """
    if isinstance(positions, type) or not isinstance(positions, Rotation):
        raise KindError(
            f"positions must be an nn.Rotation, got {describe(positions)}. Pass a module such as "
            "nn.positions.Rotary(head_width), and an instance of qkv.Positions only in a call of the module."
        )
    return positions


def require_cache(cache: object) -> Cache:
    """Return `cache`, or raise an error if it is not a `Cache`.

    Raises:
        KindError: if `cache` has no method `append`, or is a list or a class.
    """
    # Not `isinstance(cache, Cache)`, which would compute all properties.
    if isinstance(cache, (list, type)) or not hasattr(cache, "append"):
        raise KindError(
            f"cache must be an nn.Cache, got {describe(cache)}. Pass nn.KeyValueCache(), one for each attention module."
        )
    return cast("Cache", cache)


def _describe(x: object) -> str:
    if not isinstance(x, Tensor):
        return describe(x)
    if x.is_nested:
        return "a nested tensor"
    layout = "" if x.layout == torch.strided else f" in the layout {str(x.layout).removeprefix('torch.')}"
    return f"{str(x.dtype).removeprefix('torch.')} elements{layout}"
