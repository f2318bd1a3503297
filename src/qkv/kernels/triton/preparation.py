"""Preparation of the arrays of a call for the Triton programs, without reading anything back."""

from __future__ import annotations

import math
from typing import cast

from qkv.core.equation import TorchCall
from qkv.core.typing import Bool, Float, Tensor
from qkv.errors import GradientError
from qkv.masks import Mask

__all__ = ["batch_elements", "pair_biases", "power_of_two", "refuse_second_derivative"]


def batch_elements(x: Float[Tensor, "*_ n width"], batch: tuple[int, ...]) -> Float[Tensor, "element n width"]:
    """Return the vectors of all batch elements, with one batch axis."""
    return x.expand((*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:])


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n` and 16, the smallest side of a matrix product."""
    return max(16, 1 << (n - 1).bit_length())


def pair_biases(
    call: TorchCall, keys: Mask | None
) -> tuple[Bool[Tensor, "*#batch k"], Float[Tensor, "element q"], Float[Tensor, "element k"]]:
    """Return which keys are allowed, a bias for each query and a bias for each key.

    The biases are NaN for queries and keys that are not finite, −inf for masked keys, and 0 for others.

    Args:
        call: the call, before queries and keys that are not finite are set to 0.
        keys: the mask of keys.
    """
    import torch

    batch, q, k = call.tile.batch, call.tile.q_total, call.tile.k_total
    allowed = torch.ones(k, dtype=torch.bool, device=call.value.device)
    if keys is not None:
        allowed = cast("Tensor", keys.allowed(call.tile, call.value))[..., 0, :]
    bad = ~call.key.isfinite().all(-1)
    key_bias = torch.where(allowed, torch.where(bad, math.nan, 0.0), -math.inf).expand((*batch, k)).reshape(-1, k)
    row_bias = (call.query.detach() * 0).sum(-1).expand((*batch, q)).reshape(-1, q)
    return allowed, row_bias.float().contiguous(), key_bias.float().contiguous()


def refuse_second_derivative(kernel: str) -> None:
    """Raise a `GradientError` in a backward pass that is itself recorded, because the programs have no derivatives."""
    import torch

    if torch.is_grad_enabled():
        raise GradientError(
            f"the kernel {kernel} must be differentiated once, got a second derivative. Pass kernel='row_blocks'."
        )
