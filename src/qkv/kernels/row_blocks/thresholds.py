"""Sparse projections in PyTorch: the threshold of long rows by Newton's method, without sorting them.

Weights are max(0, z − τ)^p with z = l · scale, and τ makes them add up to 1. ‖max(0, z − τ)‖_p falls with τ
and is convex, so Newton's steps from below never pass the root; on equal logits it is a straight line for
p = 2 too, and one step does. The gradient of the logits needs the weights alone:

    p = 1 (Sparsemax)    dl = scale · (dw − mean of dw over the support) on the support
    p = 2 (Entmax15)     dl = 2 scale · s (dw − Σ s dw / Σ s)            with s = √w

Source: Martins, Astudillo (2016), https://arxiv.org/abs/1602.02068, proposition 2; Peters, Niculae, Martins
(2019), https://arxiv.org/abs/1905.05702, section 3.
"""

from __future__ import annotations

import math
from typing import Any

from qkv.core.typing import Tensor

__all__ = ["put_sparse_weights", "sparse_weights", "threshold"]

CHUNK = 2**17
"""Numbers of the rows that are worked on at once: they and their differences stay in the cache."""
STEPS = 60
"""At most; a dozen is much."""
GROUP = 16
"""Keys in a group whose largest gives the first τ."""


def sparse_weights(logits: Tensor, power: int, scale: float) -> Tensor:
    """Weights `(*batch, q, k)` of logits, differentiable twice.

    As the portable definition: −inf gets 0, a row without keys is 0, a row with NaN or +inf is NaN.
    """
    return _function().apply(logits, power, scale)


def put_sparse_weights(logits: Tensor, power: int, scale: float, largest: Tensor | None = None) -> Tensor:
    """Replace logits `(q, k)` by their weights, without gradient.

    `largest`: of groups that together are each row, `(q, groups)`, where they are known.
    """
    return _weights(logits, power, scale, logits, largest)


def _weights(logits: Any, power: int, scale: float, weights: Any = None, largest: Any = None) -> Any:
    """Newton's method, first on the largest of groups of keys, then on all, some rows at a time.

    The weights may be written over the logits.
    """
    import torch

    k = logits.shape[-1]
    if weights is None:
        weights = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if weights.numel() == 0:
        return weights
    rows, out = logits.reshape(-1, k), weights.view(-1, k)
    if largest is None:
        groups = k // GROUP if k >= 16 * GROUP else 0
        largest = rows if not groups else rows[:, : groups * GROUP].unflatten(1, (GROUP, groups)).amax(dim=1)
        maximum = largest.amax(dim=-1, keepdim=True)
        if groups * GROUP < k and groups:
            maximum = torch.maximum(maximum, rows[:, groups * GROUP :].amax(dim=-1, keepdim=True))
    else:
        groups = largest.shape[-1]
        maximum = largest.amax(dim=-1, keepdim=True)
    bad = ~(maximum < math.inf)
    gone = rows[bad[:, 0]] == -math.inf if bool(bad.any()) else None
    shift = torch.where(maximum.isfinite(), maximum, torch.zeros_like(maximum))
    tau = torch.full_like(maximum, -1.0)
    if groups:
        # These are some of the keys, and τ of some is never above that of all.
        largest = (largest - shift) * scale
        tau = threshold(largest, tau, torch.empty_like(largest), power)
    step = max(1, CHUNK // k)
    room = torch.empty_like(out[:step], memory_format=torch.contiguous_format)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        above = out[part]
        z = torch.sub(rows[part], shift[part], out=room[: len(above)])
        if scale != 1:
            z *= scale
        threshold(z, tau[part], above, power)
        if power == 2:
            above.mul_(above)
    if gone is not None:
        zero = out.new_zeros(())
        out[bad[:, 0]] = torch.where(gone, zero, zero + math.nan)
    return weights


def threshold(z: Any, tau: Any, above: Any, power: int) -> Any:
    """τ of rows whose largest z is 0 (or that have no key), from one below; leaves max(0, z − τ) in `above`.

    Every step is from below: a τ that is not yet exact is still a lower bound.
    """
    import torch

    eps = torch.finfo(z.dtype).eps
    signs = torch.empty_like(z) if power == 1 else None
    for _ in range(STEPS):
        torch.sub(z, tau, out=above)
        above.clamp_(min=0)
        total = above.sum(dim=-1, keepdim=True)
        norm = total if power == 1 else torch.linalg.vector_norm(above, dim=-1, keepdim=True)
        # A row without keys has no threshold.
        excess = torch.where(norm > 0, norm - 1, torch.zeros_like(norm))
        if float(excess.abs().amax()) <= 8 * eps:
            return tau
        slope = total / norm if signs is None else torch.sign(above, out=signs).sum(dim=-1, keepdim=True)
        new = tau + torch.where(norm > 0, excess / slope, excess)
        if bool((new == tau).all()):  # no number is nearer
            return tau
        tau = new
    return tau


def _logit_gradient(weights: Any, gradient: Any, power: int, scale: float) -> Any:
    """Of the weights' gradient; differentiable."""
    import torch

    if power == 1:
        slope = weights.detach().sign()
    else:
        on = weights != 0
        slope = torch.where(on, torch.where(on, weights, torch.ones_like(weights)).sqrt(), weights)
    total = slope.sum(dim=-1, keepdim=True)
    mean = (slope * gradient).sum(dim=-1, keepdim=True) / torch.where(total == 0, torch.ones_like(total), total)
    if torch.is_grad_enabled():
        return slope * (gradient - mean) * (power * scale)
    found = gradient - mean
    found *= slope
    if power * scale != 1:
        found *= power * scale
    return found


_FUNCTION: Any = None


def _function() -> Any:
    """The autograd function, made when torch is there."""
    global _FUNCTION
    if _FUNCTION is None:
        import torch

        class SparseWeights(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, logits: Any, power: int, scale: float) -> Any:
                weights = _weights(logits, power, scale)
                ctx.save_for_backward(weights)
                ctx.power, ctx.scale = power, scale
                return weights

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return _logit_gradient(ctx.saved_tensors[0], gradient, ctx.power, ctx.scale), None, None

        _FUNCTION = SparseWeights
    return _FUNCTION
