"""Logits of additive scores for all pairs of a batch, Σ_h v_h tanh(a_h + b_h), with one reciprocal for each tanh.

    r = 1 / (1 + e^{2a} e^{2b})        tanh(a + b) = 1 − 2 r        1 − tanh²(a + b) = 4 (r − r²)

Few pairs use s = 1 − r, the sigmoid of 2 (a + b), or tanh itself where that takes less time, in fewer operators.

The exponentials are computed once for each query and each key, and the reciprocals in steps that fit the second-level
cache, forward and again backward. Hidden units far from 0 are centered first, a + c and b − c, so that the
exponentials cannot overflow in opposite directions. Measured in float32 on one core with AVX-512: 12 × 4 heads ×
96 tokens × 24 units take 0.09 of the time of `torch.tanh(a[:, None] + b[None]) @ v` forward, and 0.12 with backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch

from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.faster_ops import LARGEST_FACTOR, has_fast_tanh

STEP_BYTES = 1 << 20
"""Largest size in bytes of an array of reciprocals, unless one query needs more: 1 MiB fits the second-level cache."""
_MAX_HALF_RANGE = {4: 40.0, 8: 350.0}
"""Largest min(max|a_h|, max|b_h|) at which e^{2a} or e^{2b} is a normal number, by the bytes of an element."""
_MIN_HIDDEN = 8
"""Number of hidden units from which they are the fastest axis in memory: sums over queries then take a tenth
of the time, and products a quarter. With fewer units the vector instructions of the processor are not filled."""
_FEW_ELEMENTS = {False: 1 << 14, True: 1 << 18}
"""Number of hidden units of all pairs up to which the sigmoid takes less time than the operators of its expansion,
by whether a gradient follows (AMD EPYC: 4 to 32 batch elements × 16 tokens × 16 units with backward take .67 to .94 of
the time)."""
_FEW_ELEMENTS_FAST = 1 << 19
"""The same where `tanh` is fast and is computed itself (Intel Xeon with AVX-512: 4 batch elements × 48 tokens ×
32 units with backward take .7 of the time; 16 × 64 tokens × 32 units would take 1.1 of it)."""
_FEW_ROWS = 2
"""Number of queries or of keys up to which sigmoids of any number of pairs take less time than exponentials of the
other side (AMD EPYC: 8 batch elements × 1 query × 512 keys × 64 units take .2 to .5 of the time)."""


_FEW_PAIRS = 1 << 11
"""Number of pairs whose products with a unit are summed at once."""


def tanh_sums(
    left: Float[Tensor, "batch q hidden"],
    right: Float[Tensor, "batch k hidden"],
    vector: Float[Tensor, "#batch hidden"],
    gradient: bool = True,
) -> tuple[Float[Tensor, "*_"] | None, ...] | None:
    """Return the logits Σ_h v_h tanh(left_ih + right_jh) of all pairs, or None if the ranges are too large for it.

    They are too large if both sides of a hidden unit are far from 0 after centering, if an element is not finite, or
    if the vector is so large that the error of the expansion would show in the logits.

    Args:
        left: projected queries.
        right: projected keys.
        vector: vector v of the score.
        gradient: whether `tanh_sum_gradients` follows.

    Returns:
        Logits `(batch, q, k)`, and what `tanh_sum_gradients` needs: e^{2a}, e^{2b}, and r if it fits one step; or
        None, None and (1 + tanh) / 2 of all pairs; or None, tanh of all pairs, and None.
    """
    (batch, q, hidden), k = left.shape, right.shape[1]
    fast = has_fast_tanh(left)
    # NaN fails this comparison and those below.
    if not float(torch.linalg.vector_norm(vector, 1, dim=-1).amax()) <= LARGEST_FACTOR:
        return None
    few = batch * q * k * hidden <= (_FEW_ELEMENTS_FAST if fast else _FEW_ELEMENTS[gradient])
    if few or min(q, k) <= _FEW_ROWS:
        # Without a gradient NaN shows in the output, and σ(∞) is 1 as it should be.
        if gradient and not math.isfinite((left.sum() + right.sum()).item()):
            return None
        if fast:
            tanh = (left.unsqueeze(2) + right.unsqueeze(1)).tanh_()
            if len(vector) == 1:
                logits = tanh.view(-1, hidden) @ vector[0]
            else:
                logits = tanh.flatten(1, 2) @ vector.unsqueeze(2)
            return logits.view(batch, q, k), None, tanh, None
        half = torch.add((left + left).unsqueeze(2), right.unsqueeze(1), alpha=2).sigmoid_()
        constant = vector.sum(-1)
        if len(vector) == 1:
            logits = torch.addmv(constant, half.view(-1, hidden), vector[0], beta=-1, alpha=2)
        else:
            logits = torch.baddbmm(constant[:, None, None], half.flatten(1, 2), vector.unsqueeze(2), beta=-1, alpha=2)
        return logits.view(batch, q, k), None, None, half
    limit = _MAX_HALF_RANGE[left.element_size()]
    low, high = torch.aminmax(left)
    low_key, high_key = torch.aminmax(right)
    if not (-limit <= float(low) and float(high) <= limit and -limit <= float(low_key) and float(high_key) <= limit):
        center = _center(left, right, vector)
        if center is None:
            return None
        left, right = left + center, right - center
    x, y = left.exp().square_(), right.exp().square_()
    if right.shape[2] < _MIN_HIDDEN:
        y = y.mT.contiguous().mT  # for `_reciprocals`
    constant, out, whole = vector.sum(dim=-1), None, None
    for some, rows, r in _reciprocals(x, y):
        if len(vector) == 1:
            part = torch.addmv(constant, r.flatten(0, 2), vector[0], alpha=-2).view(r.shape[:3])
        else:
            part = torch.baddbmm(constant[some, None, None], r.flatten(1, 2), vector[some, :, None], alpha=-2)
        if r.shape[:2] == left.shape[:2]:
            out, whole = part.view(r.shape[:3]), r
            break
        out = left.new_empty(*left.shape[:2], right.shape[1]) if out is None else out
        out[some, rows] = part.view(r.shape[:3])
    return out, x, y, whole


def _center(
    left: Float[Tensor, "batch q hidden"],
    right: Float[Tensor, "batch k hidden"],
    vector: Float[Tensor, "#batch hidden"],
) -> Float[Tensor, "batch 1 hidden"] | None:
    """Return c such that left + c and right − c are in range, or None if there is none."""
    low, high = torch.aminmax(right, dim=-2, keepdim=True)
    center = (low + high) / 2
    key_range = (high - center).flatten(1)
    low, high = torch.aminmax(left + center, dim=-2)
    query_range = torch.maximum(high, -low)
    narrow = torch.minimum(query_range, key_range).amax()
    widest = torch.maximum(query_range, key_range).amax() + vector.abs().amax()
    half_range, total = torch.stack([narrow, widest]).tolist()
    # NaN fails both comparisons. Below this limit no product of three such numbers overflows.
    return center if half_range <= _MAX_HALF_RANGE[left.element_size()] and total < 2.0**40 else None


def tanh_sum_gradients(
    vector: Float[Tensor, "#batch hidden"],
    saved: Sequence[Float[Tensor, "*_"] | None],
    gradient: Float[Tensor, "batch q k"],
    needs_vector: bool,
) -> tuple[Float[Tensor, "batch q hidden"], Float[Tensor, "batch k hidden"], Float[Tensor, "#batch hidden"] | None]:
    """Return the gradients of left, right and vector, the last only if `needs_vector`.

    Args:
        vector: vector v of the score.
        saved: the tensors that `tanh_sums` returned after the logits.
        gradient: gradient of the logits.
        needs_vector: whether the gradient of the vector is needed.
    """
    if saved[0] is None and saved[1] is not None:
        return _tanh_gradients(vector, saved[1], gradient, needs_vector)
    if saved[0] is None:
        return _plain_gradients(vector, cast("Tensor", saved[2]), gradient, needs_vector)
    x, y, whole = cast("tuple[Tensor, Tensor, Tensor | None]", saved)
    products = vector.new_zeros(vector.shape) if needs_vector else None
    everything = _reciprocals(x, y) if whole is None else iter([(slice(None), slice(None), whole)])
    d_left, d_right = (torch.empty_like(x), torch.zeros_like(y)) if whole is None else (x, y)
    for some, rows, r in everything:
        part = gradient if whole is not None else gradient[some, rows]
        if products is not None:
            products[some if len(vector) > 1 else slice(None)] += _unit_sums(part, r, len(vector) == 1)
        # The gradient of the sum a + b divided by 4 v, in place unless another backward pass may follow.
        slope = torch.addcmul(r, r, r, value=-1, out=r if whole is None else None).mul_(part.unsqueeze(-1))
        if whole is not None:
            d_left, d_right = slope.sum(dim=2), slope.sum(dim=1)
        else:
            torch.sum(slope, dim=2, out=d_left[some, rows])
            d_right[some] += slope.sum(dim=1)
    weight = (4 * vector).unsqueeze(1)
    if products is not None:
        products = torch.sub(_totals(gradient, len(vector) == 1), products, alpha=2)
    return d_left.mul_(weight), d_right.mul_(weight), products


def _tanh_gradients(
    vector: Float[Tensor, "#batch hidden"],
    tanh: Float[Tensor, "batch q k hidden"],
    gradient: Float[Tensor, "batch q k"],
    needs_vector: bool,
) -> tuple[Float[Tensor, "batch q hidden"], Float[Tensor, "batch k hidden"], Float[Tensor, "#batch hidden"] | None]:
    slope = gradient.unsqueeze(-1) * (vector[0] if len(vector) == 1 else vector[:, None, None])
    slope = torch.ops.aten.tanh_backward.grad_input(slope, tanh, grad_input=slope)
    products = _unit_sums(gradient, tanh, len(vector) == 1) if needs_vector else None
    return slope.sum(dim=2), slope.sum(dim=1), products


def _plain_gradients(
    vector: Float[Tensor, "#batch hidden"],
    half: Float[Tensor, "batch q k hidden"],
    gradient: Float[Tensor, "batch q k"],
    needs_vector: bool,
) -> tuple[Float[Tensor, "batch q hidden"], Float[Tensor, "batch k hidden"], Float[Tensor, "#batch hidden"] | None]:
    weight = 4 * vector
    slope = gradient.unsqueeze(-1) * (weight[0] if len(vector) == 1 else weight[:, None, None])
    slope = torch.ops.aten.sigmoid_backward.grad_input(slope, half, grad_input=slope)
    products = None
    if needs_vector:
        products = _unit_sums(gradient, half, len(vector) == 1).mul_(2).sub_(_totals(gradient, len(vector) == 1))
    return slope.sum(dim=2), slope.sum(dim=1), products


def _totals(gradient: Float[Tensor, "batch q k"], shared: bool) -> Float[Tensor, "#batch 1"]:
    """Return the sum of the gradients of all pairs, of the whole batch if `shared`."""
    return gradient.sum().view(1, 1) if shared else gradient.sum(dim=(1, 2))[:, None]


def _unit_sums(
    gradient: Float[Tensor, "batch q k"], units: Float[Tensor, "batch q k hidden"], shared: bool
) -> Float[Tensor, "#batch hidden"]:
    """Return the sum over all pairs of their gradient times each unit, of the whole batch if `shared`.

    Many pairs are summed query by query: of products one after the other, a sum loses digits with their number.
    """
    if shared and gradient.numel() <= _FEW_PAIRS:
        return gradient.reshape(1, -1) @ units.flatten(0, 2)
    rows = gradient.reshape(-1, 1, gradient.shape[-1]) @ units.flatten(0, 1)
    return rows.sum(0) if shared else rows.view(*units.shape[:2], -1).sum(1)


def _reciprocals(
    x: Float[Tensor, "batch q hidden"], y: Float[Tensor, "batch k hidden"]
) -> Iterator[tuple[slice, slice, Float[Tensor, "some rows k hidden"]]]:
    """Yield ranges of batch elements and of queries, and r of their pairs, in a buffer that the next step reuses.

    With few hidden units keys are the fastest axis in memory of r, and should be that of y.
    """
    (batch, q, hidden), k = x.shape, y.shape[1]
    row_bytes = max(1, k * hidden * x.element_size())
    rows = max(1, min(q, STEP_BYTES // row_bytes))
    some = max(1, min(batch, STEP_BYTES // (row_bytes * rows))) if rows == q else 1
    buffer, one = x.new_empty(some * rows * k * hidden), x.new_ones(())

    def reciprocals(
        x: Float[Tensor, "some rows hidden"], y: Float[Tensor, "some k hidden"]
    ) -> Float[Tensor, "some rows k hidden"]:
        size = x.shape[0], x.shape[1], k
        if hidden < _MIN_HIDDEN:
            r = buffer[: math.prod(size) * hidden].view(hidden, *size).permute(1, 2, 3, 0)
        else:
            r = buffer[: math.prod(size) * hidden].view(*size, hidden)
        # An infinite product gives r = 0, which is exact.
        return torch.addcmul(one, x.unsqueeze(2), y.unsqueeze(1), out=r).reciprocal_()

    if rows == q and some == batch:
        yield slice(None), slice(None), reciprocals(x, y)
        return
    for start in range(0, batch, some):
        elements = slice(start, min(batch, start + some))
        for first in range(0, q, rows):
            part = slice(first, min(q, first + rows))
            yield elements, part, reciprocals(x[elements, part], y[elements])
