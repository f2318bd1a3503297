"""Logits of additive scores for all pairs of a batch, Σ_h v_h tanh(a_h + b_h), with one reciprocal for each tanh.

    r = 1 / (1 + e^{2a} e^{2b})        tanh(a + b) = 1 − 2 r        1 − tanh²(a + b) = 4 (r − r²)

The exponentials are computed once for each query and each key, and the reciprocals in steps that fit the second-level
cache, forward and again backward. Hidden units are centered first, a + c and b − c, so that the exponentials cannot
overflow in opposite directions. Measured in float32 on one core with AVX-512: 12 × 4 heads × 96 tokens × 24 units take
0.09 of the time of `torch.tanh(a[:, None] + b[None]) @ v` forward, and 0.12 with backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qkv.core.autograd_function import autograd_function
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.gradients import gradients_of

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        saved_tensors: tuple[Tensor, ...]


__all__ = ["STEP_BYTES", "additive_logits"]

STEP_BYTES = 1 << 20
"""Largest size in bytes of an array of reciprocals, unless one query needs more: 1 MiB fits the second-level cache."""
_MAX_HALF_RANGE = {4: 40.0, 8: 350.0}
"""Largest min(max|a_h|, max|b_h|) at which e^{2a} or e^{2b} is a normal number, by the bytes of an element."""


def additive_logits(
    left: Float[Tensor, "batch q hidden"],
    right: Float[Tensor, "batch k hidden"],
    vector: Float[Tensor, "#batch hidden"],
) -> Float[Tensor, "batch q k"] | None:
    """Return the logits Σ_h v_h tanh(left_ih + right_jh) of all pairs, or None if the ranges are too large for it.

    They are too large if both sides of a hidden unit are far from 0 after centering, or if an element is not finite.

    Args:
        left: projected queries.
        right: projected keys.
        vector: vector v of the score.
    """
    import torch

    with torch.no_grad():
        low, high = torch.aminmax(right, dim=-2, keepdim=True)
        center = (low + high) / 2
        key_range = (high - center).flatten(1)
        low, high = torch.aminmax(left + center, dim=-2)
        query_range = torch.maximum(high, -low)
        narrow = torch.minimum(query_range, key_range).amax()
        widest = torch.maximum(query_range, key_range).amax() + vector.abs().amax()
        half_range, total = torch.stack([narrow, widest]).tolist()
    # NaN fails both comparisons. Below this limit no product of three such numbers overflows.
    if not (half_range <= _MAX_HALF_RANGE[left.element_size()] and total < 2.0**40):
        return None
    logits: Tensor = autograd_function(_forward, _backward)(left, right, vector, center)
    return logits


def _forward(
    ctx: _Context,
    left: Float[Tensor, "batch q hidden"],
    right: Float[Tensor, "batch k hidden"],
    vector: Float[Tensor, "#batch hidden"],
    center: Float[Tensor, "batch 1 hidden"],
) -> Float[Tensor, "batch q k"]:
    import torch

    ctx.save_for_backward(left, right, vector, center)
    out = left.new_empty(len(left), left.shape[1], right.shape[1])
    shared = len(vector) == 1
    for some, rows, r in _reciprocals(left, right, center):
        part = out[some, rows]
        if shared:
            product = r.flatten(0, 2) @ vector[0]
        else:
            product = r.flatten(1, 2) @ vector[some, :, None]
        part.copy_(product.view(part.shape))
    return torch.add(vector.sum(dim=-1)[:, None, None], out, alpha=-2, out=out)


def _backward(ctx: _Context, gradient: Float[Tensor, "batch q k"]) -> tuple[Tensor | None, ...]:
    import torch

    left, right, vector, center = ctx.saved_tensors
    if torch.is_grad_enabled():
        return (*_differentiable_gradients(left, right, vector, gradient), None)
    d_left, d_right = torch.empty_like(left), torch.zeros_like(right)
    products = left.new_zeros(len(vector), left.shape[2])
    shared = len(vector) == 1
    for some, rows, r in _reciprocals(left, right, center):
        part = gradient[some, rows]
        if shared:
            products[0].addmv_(r.flatten(0, 2).T, part.reshape(-1))
        else:
            products[some] += (part.reshape(len(part), 1, -1) @ r.flatten(1, 2))[:, 0]
        # In place, r becomes the gradient of the sum a + b divided by 4 v.
        torch.addcmul(r, r, r, value=-1, out=r).mul_(part[..., None])
        torch.sum(r, dim=2, out=d_left[some, rows])
        d_right[some] += r.sum(dim=1)
    weight = 4 * vector[:, None]
    total = gradient.sum().view(1, 1) if shared else gradient.sum(dim=(1, 2))[:, None]
    return d_left.mul_(weight), d_right.mul_(weight), torch.sub(total, products, alpha=2), None


def _reciprocals(
    left: Float[Tensor, "batch q hidden"],
    right: Float[Tensor, "batch k hidden"],
    center: Float[Tensor, "batch 1 hidden"],
) -> Iterator[tuple[slice, slice, Float[Tensor, "some rows k hidden"]]]:
    """Yield ranges of batch elements and of queries, and r of their pairs, in a buffer that the next step reuses."""
    import torch

    x, y = (left + center).mul_(2).exp_(), (right - center).mul_(2).exp_()
    (batch, q, hidden), k = x.shape, y.shape[1]
    row_bytes = max(1, k * hidden * x.element_size())
    rows = max(1, min(q, STEP_BYTES // row_bytes))
    some = max(1, min(batch, STEP_BYTES // (row_bytes * rows))) if rows == q else 1
    buffer = x.new_empty(some * rows * k * hidden)
    for start in range(0, batch, some):
        elements = slice(start, min(batch, start + some))
        for first in range(0, q, rows):
            part = slice(first, min(q, first + rows))
            shape = (elements.stop - start, part.stop - first, k, hidden)
            r = buffer[: shape[0] * shape[1] * k * hidden].view(shape)
            torch.mul(x[elements, part, None], y[elements, None], out=r)
            # An infinite product gives r = 0, which is exact.
            yield elements, part, r.add_(1).reciprocal_()


def _differentiable_gradients(
    left: Float[Tensor, "batch q hidden"],
    right: Float[Tensor, "batch k hidden"],
    vector: Float[Tensor, "#batch hidden"],
    gradient: Float[Tensor, "batch q k"],
) -> list[Tensor | None]:
    """Return the gradients of the three arguments, computed such that autograd can differentiate them again."""
    import torch

    sides = [x.view_as(x) for x in (left, right, vector)]
    hidden = torch.tanh(sides[0][:, :, None] + sides[1][:, None])
    logits = (hidden @ sides[2][:, None, :, None])[..., 0]
    return gradients_of([logits], [gradient], sides, create_graph=True)
