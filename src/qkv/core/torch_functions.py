"""Array API functions of PyTorch: those of array-api-compat, with a faster `matmul`.

It is imported only by `qkv.core.arrays.namespace`, because PyTorch is optional.
"""

from __future__ import annotations

import array_api_compat.torch as _compat
import torch

from qkv.core.typing import Num, Tensor

# `torch.classes` and `torch.ops` look up every attribute as a registered class or operator, which misleads inspection.
_COPIED = {name: x for name, x in vars(_compat).items() if not name.startswith("__") and name not in ("classes", "ops")}
globals().update(_COPIED)


def matmul(x: Num[Tensor, "*_x"], y: Num[Tensor, "*_y"]) -> Num[Tensor, "*_product"]:
    """Return the matrix product, without the promotion of dtypes by array-api-compat (10 µs) if both are equal."""
    return torch.matmul(x, y) if x.dtype == y.dtype else _compat.matmul(x, y)
