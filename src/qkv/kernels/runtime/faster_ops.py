"""Microbenchmarks that determine, once per process, which of two equivalent operations is faster.

A matrix product in float32 is computed by `torch.mm` or by oneDNN. (On AMD processors the library behind `torch.mm`
uses an older instruction set, and oneDNN takes half as long.) An exponential is computed by `exp`, or by `exp2` with
logits multiplied by log₂ e beforehand; a hyperbolic tangent is computed by `tanh`, by `sigmoid` or by `expm1`. (On
Intel processors `tanh` takes a quarter of the time of `expm1`, on AMD processors more than twice as long.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from qkv.core.typing import Float, Shaped, Tensor
from qkv.kernels.runtime.workspace import Workspace

LARGEST_FACTOR = 256.0
"""Largest cap, or sum of |v|, with which tanh may be computed from sigmoids or exponentials.

Their error is that of numbers near 1, 2e-7 in float32, however small tanh is. Logits are then off by at most 5e-5."""

_SIZE = 384
_MARGIN = 0.9
"""Largest ratio of run times at which oneDNN is used: it allocates its result, so it has to be clearly faster."""


@dataclass(frozen=True)
class FasterOps:
    """Flags that select the faster of equivalent operations, for one dtype on one device.

    Attributes:
        exp2: whether `exp2` of logits multiplied by log₂ e is faster than `exp`.
        sigmoid_tanh: whether 2σ(2x) − 1 is faster than tanh x. In float32 its error is 2e-7, that of tanh 5e-8.
        onednn: whether oneDNN computes matrix products faster than `torch.mm`.
    """

    exp2: bool
    sigmoid_tanh: bool
    onednn: bool

    def tanh_(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Replace each element by its hyperbolic tangent, in place, and return the tensor."""
        return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0) if self.sigmoid_tanh else x.tanh_()

    def matmul_nt(
        self,
        left: Float[Tensor, "*#batch q width"],
        right: Float[Tensor, "*#batch k width"],
        workspace: Workspace,
        name: str,
    ) -> Float[Tensor, "*#batch q k"]:
        """Return left @ rightᵀ in the workspace buffer `name` or in a new array.

        The caller may overwrite either.
        """
        import torch

        if left.ndim == 2 and right.ndim == 2:
            if self.onednn and left.shape[1]:  # oneDNN raises an error for products of width 0
                return _onednn_matmul_nt(left, right)
            # Not `matmul`, which allocates a second result and copies it.
            return torch.mm(left, right.mT, out=workspace.take(name, (left.shape[0], right.shape[0]), left))
        if left.shape[:-2] == right.shape[:-2]:
            shape = (*left.shape[:-1], right.shape[-2])
            out = workspace.take(name, shape, left)
            torch.bmm(left.flatten(0, -3), right.flatten(0, -3).mT, out=out.flatten(0, -3))
            return out
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        shape = (*batch, left.shape[-2], right.shape[-2])
        return torch.matmul(left, right.mT, out=workspace.take(name, shape, left))


def add_matmul_(
    target: Float[Tensor, "*#batch n m"],
    left: Float[Tensor, "*#batch n inner"],
    right: Float[Tensor, "*#batch inner m"],
) -> None:
    """Add left @ right to `target`, summed over batch axes along which `target` is broadcast."""
    if target.ndim == 2 and left.ndim == 2 and right.ndim == 2:
        target.addmm_(left, right)
    elif target.shape[:-2] == left.shape[:-2] == right.shape[:-2] and target.is_contiguous():
        target.flatten(0, -3).baddbmm_(left.flatten(0, -3), right.flatten(0, -3))
    else:
        target += (left @ right).sum_to_size(target.shape)


def _onednn_matmul_nt(left: Float[Tensor, "q width"], right: Float[Tensor, "k width"]) -> Float[Tensor, "q k"]:
    """Return left @ rightᵀ, computed by an operator for oneDNN that is private to PyTorch and may be missing.

    A `right` with gaps between its rows (such as one head of keys in the layout batch, tokens, heads, width) is copied
    first, because oneDNN computes such a product in a reference loop that is a thousand times slower.
    """
    import torch

    if not (right.is_contiguous() or right.mT.is_contiguous()):
        right = right.contiguous()
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return result


def faster_ops(reference: Shaped[Tensor, "*_"]) -> FasterOps:
    """Return flags that select the faster operations for the dtype and device of `reference`."""
    return _faster_ops(str(reference.dtype), reference.device.type)


@cache
def _faster_ops(dtype: str, device: str) -> FasterOps:
    if device != "cpu":
        return FasterOps(exp2=True, sigmoid_tanh=False, onednn=False)
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    x = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=kind, device="cpu").reshape(_SIZE, _SIZE)
    out = torch.empty_like(x)
    exp2 = is_faster(lambda: torch.exp2(x, out=out), lambda: torch.exp(x, out=out))
    sigmoid_tanh = is_faster(
        lambda: torch.sigmoid(x, out=out).mul_(2.0).sub_(1.0).mul_(2.0), lambda: torch.tanh(x, out=out)
    )
    side = x[:, :64].contiguous()
    onednn = dtype == "torch.float32" and _has_onednn(side)
    if onednn:
        onednn = is_faster(lambda: _onednn_matmul_nt(side, side), lambda: torch.mm(side, side.mT, out=out), _MARGIN)
    return FasterOps(exp2, sigmoid_tanh, onednn)


def has_fast_tanh(reference: Shaped[Tensor, "*_"]) -> bool:
    """Return whether `tanh` takes less time than 1 / (1 + 2 / (e^2x − 1)) for the dtype and device of `reference`."""
    return _has_fast_tanh(str(reference.dtype), reference.device.type)


@cache
def _has_fast_tanh(dtype: str, device: str) -> bool:
    if device != "cpu":
        return True
    import torch

    x = torch.linspace(-1.0, 1.0, 1 << 15, dtype=getattr(torch, dtype.removeprefix("torch.")), device="cpu")
    out = torch.empty_like(x)
    return is_faster(
        lambda: torch.tanh(x, out=out), lambda: torch.expm1(x, out=out).reciprocal_().add_(1.0).reciprocal_()
    )


def _has_onednn(side: Float[Tensor, "n width"]) -> bool:
    import torch

    try:
        return bool(torch.allclose(_onednn_matmul_nt(side, side), torch.mm(side, side.mT), atol=1e-4))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def is_faster(one: Callable[[], object], other: Callable[[], object], margin: float = 1.0) -> bool:
    """Return whether the function `one` takes less than `margin` times as long as the function `other`.

    The times compared are the shortest of 9 interleaved runs of each function.
    """
    best = [math.inf, math.inf]
    for _ in range(9):
        for n, run in enumerate((one, other)):
            start = time.perf_counter()
            run()
            best[n] = min(best[n], time.perf_counter() - start)
    return best[0] < margin * best[1]
