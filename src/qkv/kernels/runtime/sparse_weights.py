"""Sparsemax and entmax with 1 < α ≤ 2 in PyTorch, where Newton's method finds the threshold without sorting a row.

Weights are max(0, z − τ)^p with z = l · scale, where the threshold τ makes them sum to 1. The norm ‖max(0, z − τ)‖_p
is decreasing and convex in τ, so Newton steps from below never exceed the root. For equal logits the norm is linear in
τ, and one step suffices. The gradient of the logits depends only on the weights:

    p = 1 (Sparsemax)    dl = scale · (dw − mean of dw over the support) on the support
    p > 1 (Entmax)       dl = p scale · s (dw − Σ s dw / Σ s)            with s = w^((p − 1) / p), for p = 2 √w

Source: Martins, Astudillo (2016), https://arxiv.org/abs/1602.02068, proposition 2; Peters, Niculae, Martins
(2019), https://arxiv.org/abs/1905.05702, section 3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qkv.core.autograd_function import autograd_function
from qkv.core.typing import Float, PairTensor, Tensor

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        power: float
        scale: float


_CHUNK = 2**17
"""Number of elements in rows that are processed at once, so that they and their differences stay in the cache."""
_MAX_STEPS = 60
"""Largest number of Newton steps. About 12 steps are usual."""
_GROUP_SIZE = 16
"""Number of keys in a group. The first τ is computed from the largest logit of each group."""


def sparse_weights(logits: PairTensor, power: float, scale: float) -> PairTensor:
    """Return the sparsemax or entmax weights of rows of logits, with first and second derivatives.

    Special values are treated as in `Normalizer.weights`: the weight of −inf is 0, the weights of a row without keys
    are 0, and the weights of a row with NaN or +inf are NaN.
    """
    weights: Tensor = autograd_function(_forward, _backward)(logits, power, scale)
    return weights


def write_sparse_weights(
    logits: PairTensor, out: PairTensor, power: float, scale: float, group_max: Float[Tensor, "q groups"] | None = None
) -> PairTensor:
    """Write the sparsemax or entmax weights of rows of logits to `out`, without a gradient, and return `out`.

    Newton's method runs on some rows at a time, first on the maxima of groups and then on all keys.

    Args:
        logits: whole rows of logits.
        out: contiguous tensor for the weights, which may be the same tensor as `logits`.
        power: exponent p ≥ 1 of the projection.
        scale: factor of the logits.
        group_max: maxima of groups of keys that together cover each row; computed if None.
    """
    import torch

    k = logits.shape[-1]
    if out.numel() == 0:
        return out
    rows, weights = logits.reshape(-1, k), out.view(-1, k)
    if group_max is None:
        groups = k // _GROUP_SIZE if k >= 16 * _GROUP_SIZE else 0
        group_max = (
            rows if not groups else rows[:, : groups * _GROUP_SIZE].view(len(rows), _GROUP_SIZE, groups).amax(dim=1)
        )
        maximum = group_max.amax(dim=-1, keepdim=True)
        if groups * _GROUP_SIZE < k and groups:
            maximum = torch.maximum(maximum, rows[:, groups * _GROUP_SIZE :].amax(dim=-1, keepdim=True))
    else:
        groups = group_max.shape[-1]
        maximum = group_max.amax(dim=-1, keepdim=True)
    invalid = ~(maximum < math.inf)
    excluded = rows[invalid[:, 0]] == -math.inf if bool(invalid.any()) else None
    shift = torch.where(maximum.isfinite(), maximum, torch.zeros_like(maximum))
    tau = torch.full_like(maximum, -1.0)
    if groups:
        # The maxima are logits of a subset of the keys, whose τ never exceeds the τ of all keys.
        z = (group_max - shift) * scale
        tau = newton_threshold(z, tau, torch.empty_like(z), power)
    step = max(1, _CHUNK // k)
    buffer = torch.empty_like(weights[:step], memory_format=torch.contiguous_format)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        above = weights[part]
        z = torch.sub(rows[part], shift[part], out=buffer[: len(above)])
        if scale != 1:
            z *= scale
        newton_threshold(z, tau[part], above, power)
        if power == 2:
            above.mul_(above)
        elif power != 1:  # the error of the sum is p times that of the norm
            above.pow_(power)
            above /= above.sum(dim=-1, keepdim=True).clamp_(min=0.5)  # the sum of a row without keys is 0
    if excluded is not None:
        zero = weights.new_zeros(())
        weights[invalid[:, 0]] = torch.where(excluded, zero, zero + math.nan)
    return out


def newton_threshold(
    z: Float[Tensor, "q k"], tau: Float[Tensor, "q 1"], above: Float[Tensor, "q k"], power: float
) -> Float[Tensor, "q 1"]:
    """Return the threshold τ of each row, and write max(0, z − τ) to `above`.

    Newton steps approach τ from below, so the result is a lower bound of τ even if it is not exact.

    Args:
        z: scaled logits minus the maximum of their row, so that the largest of each row with keys is 0.
        tau: a lower bound of τ, from which the iteration starts.
        above: output array of the shape of `z`.
        power: exponent p of the projection.
    """
    import torch

    eps, buffer = torch.finfo(z.dtype).eps, None if power == 2 else torch.empty_like(z)
    for _ in range(_MAX_STEPS):
        torch.sub(z, tau, out=above)
        above.clamp_(min=0)
        norm, slope = _norm_and_slope(above, power, buffer)
        excess = norm - 1
        new = tau + (excess / slope).nan_to_num_(0, 0, 0)  # a row without keys has no threshold
        if bool(((excess.abs() <= 8 * eps) | (new == tau)).all()):  # to the precision of the sum or of the threshold
            return tau
        tau = new
    return tau


def _norm_and_slope(
    above: Float[Tensor, "q k"], power: float, buffer: Float[Tensor, "q k"] | None
) -> tuple[Float[Tensor, "q 1"], Float[Tensor, "q 1"]]:
    """Return the p-norm of each row, and its negative derivative by the threshold.

    Args:
        above: max(0, z − τ).
        power: exponent p.
        buffer: tensor of the same shape that is overwritten; unused for p = 2.
    """
    import torch

    if buffer is None:
        norm = torch.linalg.vector_norm(above, dim=-1, keepdim=True)
        return norm, above.sum(dim=-1, keepdim=True) / norm
    if power == 1:
        return above.sum(dim=-1, keepdim=True), torch.sign(above, out=buffer).sum(dim=-1, keepdim=True)
    # `exp2` of `log2` takes a quarter of the time of `pow`; 0 becomes 0.
    shares = torch.exp2(torch.log2(above, out=buffer).mul_(power - 1), out=buffer)
    slope = shares.sum(dim=-1, keepdim=True)
    total = shares.mul_(above).sum(dim=-1, keepdim=True)
    norm = total ** (1 / power)
    return norm, slope * norm / total


def sparse_logit_gradient(weights: PairTensor, gradient: PairTensor, power: float, scale: float) -> PairTensor:
    """Return the gradient of the logits of sparsemax or entmax, given that of the weights.

    Args:
        gradient: gradient of the weights.
        power: exponent p of the projection.
        scale: factor of the logits.
    """
    import torch

    if power == 1:
        slope = weights.detach().sign()
    else:
        positive = weights != 0
        safe = torch.where(positive, weights, torch.ones_like(weights))  # the derivative at 0 is infinite
        slope = torch.where(positive, safe.sqrt() if power == 2 else safe ** (1 - 1 / power), weights)
    total = slope.sum(dim=-1, keepdim=True)
    mean = (slope * gradient).sum(dim=-1, keepdim=True) / torch.where(total == 0, torch.ones_like(total), total)
    if torch.is_grad_enabled():
        return slope * (gradient - mean) * (power * scale)
    found = gradient - mean
    found *= slope
    if power * scale != 1:
        found *= power * scale
    return found


def _forward(ctx: _Context, logits: PairTensor, power: float, scale: float) -> PairTensor:
    import torch

    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    weights = write_sparse_weights(logits, out, power, scale)
    ctx.save_for_backward(weights)
    ctx.power, ctx.scale = power, scale
    return weights


def _backward(ctx: _Context, gradient: PairTensor) -> tuple[PairTensor, None, None]:
    return sparse_logit_gradient(ctx.saved_tensors[0], gradient, ctx.power, ctx.scale), None, None
