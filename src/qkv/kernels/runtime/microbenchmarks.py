"""Which of two routes to one result is faster on this machine: timed once in a process, when first needed.

A matrix product in float32 goes through `torch.mm` or through oneDNN (on AMD processors the library behind
`torch.mm` takes an older instruction set, and oneDNN needs half of its time). An exponential goes through
`exp` or, with log₂ e multiplied into the logits beforehand, through `exp2`; a hyperbolic tangent through
`tanh` or `sigmoid`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from qkv.core.typing import Tensor
from qkv.kernels.runtime.workers import Workspace

__all__ = ["Routes", "add_product", "onednn_product", "routes"]

_SIZE = 384
_MARGIN = 0.9
"""A route that must copy its result has to be clearly faster."""


@dataclass(frozen=True)
class Routes:
    """The faster routes for one dtype on one device.

    Attributes:
        base2: powers of 2, of logits multiplied by log₂ e, are faster than powers of e.
        logistic: a hyperbolic tangent is 2σ(2x) − 1; its error is then 2e-7, not 5e-8.
        onednn: products of a tile's sides go through oneDNN.
    """

    base2: bool
    logistic: bool
    onednn: bool

    def tanh_(self, x: Tensor) -> Tensor:
        """tanh in place."""
        return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0) if self.logistic else x.tanh_()

    def product(self, left: Tensor, right: Tensor, room: Workspace, name: str) -> Tensor:
        """left @ rightᵀ in an array that may be written to: the buffer of this name."""
        import torch

        if left.ndim == 2 and right.ndim == 2:
            if self.onednn:
                return onednn_product(left, right)
            # Not `matmul`, which computes into an array of its own and copies.
            return torch.mm(left, right.mT, out=room.take(name, (left.shape[0], right.shape[0]), left))
        if left.shape[:-2] == right.shape[:-2]:
            shape = (*left.shape[:-1], right.shape[-2])
            out = room.take(name, shape, left)
            torch.bmm(left.flatten(0, -3), right.flatten(0, -3).mT, out=out.flatten(0, -3))
            return out
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        shape = (*batch, left.shape[-2], right.shape[-2])
        return torch.matmul(left, right.mT, out=room.take(name, shape, left))


def add_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target += left @ right, summed over batch axes that the target does not have."""
    if target.ndim == 2 and left.ndim == 2 and right.ndim == 2:
        target.addmm_(left, right)
    elif target.shape[:-2] == left.shape[:-2] == right.shape[:-2] and target.is_contiguous():
        target.flatten(0, -3).baddbmm_(left.flatten(0, -3), right.flatten(0, -3))
    else:
        target += (left @ right).sum_to_size(target.shape)


def onednn_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ rightᵀ by oneDNN's operator, which is private to PyTorch and may be missing."""
    import torch

    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return result


def routes(reference: Tensor) -> Routes:
    """The routes for arrays like this one."""
    return _routes(str(reference.dtype), reference.device.type)


@cache
def _routes(dtype: str, device: str) -> Routes:
    if device != "cpu":
        return Routes(base2=True, logistic=False, onednn=False)
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    x = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=kind).reshape(_SIZE, _SIZE)
    room = torch.empty_like(x)
    base2 = _faster(lambda: torch.exp2(x, out=room), lambda: torch.exp(x, out=room))
    logistic = _faster(
        lambda: torch.sigmoid(x, out=room).mul_(2.0).sub_(1.0).mul_(2.0), lambda: torch.tanh(x, out=room)
    )
    side = x[:, :64].contiguous()
    onednn = dtype == "torch.float32" and _has_onednn(side)
    if onednn:
        onednn = _faster(lambda: onednn_product(side, side), lambda: torch.mm(side, side.mT, out=room), _MARGIN)
    return Routes(base2, logistic, onednn)


def _has_onednn(side: Tensor) -> bool:
    import torch

    try:
        right = torch.mm(side, side.mT)
        return bool(torch.allclose(onednn_product(side, side), right, atol=1e-4))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def _faster(one: Callable[[], Any], other: Callable[[], Any], margin: float = 1.0) -> bool:
    """Whether the first is the faster one: the best of several interleaved runs of each."""
    import torch

    best = [math.inf, math.inf]
    with torch.no_grad():
        for _ in range(9):
            for n, run in enumerate((one, other)):
                start = time.perf_counter()
                run()
                best[n] = min(best[n], time.perf_counter() - start)
    return best[0] < margin * best[1]
