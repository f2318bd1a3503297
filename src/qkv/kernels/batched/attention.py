"""Attention over all pairs of a batch, as one autograd node with a backward pass in few elementwise passes.

    P = weights(z)        O = P V        dP = dO Vᵀ        dz = P ∘ (dP − rowsum(P ∘ dP)) for softmax

`row_weights.py` defines the weights of the normalizers and dz. z are given logits, or are computed here from inner
products S = L Rᵀ of projections of queries and keys:

    z = S + offset        z = c · tanh((S + offset) / c)        z = S ∘ G,  G = σ(l_i + r_j)

Each array of all pairs is changed in place where no gradient needs it, so that the passes over memory are fewer than
those of the same attention written with PyTorch's operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from qkv.core.autograd_function import autograd_function
from qkv.core.typing import Bool, Float, Shaped, Tensor
from qkv.kernels.batched.row_weights import RowWeights
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.gradients import gradients_of

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        form: Form
        saved_tensors: tuple[Tensor, ...]
        needs_input_grad: tuple[bool, ...]

        def save_for_backward(self, *tensors: Tensor | None) -> None:
            """Save tensors for backward."""


__all__ = ["Form", "attention_of_logits", "attention_of_products"]


@dataclass(frozen=True)
class Form:
    """How logits are computed from inner products, and which pairs are excluded.

    Attributes:
        rows: function of the logits that returns the weights.
        excluded: pairs to which the mask gives no weight, `(*#batch, q, k)`; None: no pair.
        empty: queries whose output is 0, `(*#batch, q, 1)`, because they have no key; None: no query.
        cap: c of the soft cap; None: no cap.
        gated: whether the last columns of both projections belong to a gate.
        scale: factor of the inner products.
    """

    rows: RowWeights
    excluded: Bool[Tensor, "*_ #q #k"] | None = None
    empty: Bool[Tensor, "*_ #q 1"] | None = None
    cap: float | None = None
    gated: bool = False
    scale: float = 1.0


def attention_of_logits(
    logits: Float[Tensor, "*#batch q k"], value: Float[Tensor, "*#batch k value_width"], form: Form
) -> Float[Tensor, "*batch q value_width"]:
    """Return weights(logits) @ value, with weight 0 for excluded pairs.

    Args:
        logits: the logits, which are not changed.
        value: the values.
        form: the excluded pairs and empty queries; its other fields are ignored.
    """
    return _run(_logits_forward, _logits_backward, _logits_passes, form, logits, value)


def attention_of_products(
    left: Float[Tensor, "*#batch q columns"],
    right: Float[Tensor, "*#batch k columns"],
    value: Float[Tensor, "*#batch k value_width"],
    offset: Float[Tensor, "*#batch #q #k"] | None,
    form: Form,
) -> Float[Tensor, "*batch q value_width"]:
    """Return weights(z) @ value for the logits z that `form` defines.

    Args:
        left: projections of the queries.
        right: projections of the keys.
        value: the values.
        offset: array to add to the inner products; None: 0.
        form: the definition of z.
    """
    return _run(_products_forward, _products_backward, _products_passes, form, left, right, value, offset)


def _run(
    forward: Callable[..., Tensor],
    backward: Callable[..., tuple[Tensor | None, ...]],
    passes: Callable[..., Sequence[Tensor | None]],
    form: Form,
    *tensors: Shaped[Tensor, "*_"] | None,
) -> Float[Tensor, "*batch q value_width"]:
    """Return the output, as that of an autograd node if a tensor requires a gradient."""
    import torch

    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return cast("Tensor", autograd_function(forward, backward)(form, *tensors))
    return cast("Tensor", passes(form, *tensors)[0])


def _weighted(
    logits: Float[Tensor, "*#batch q k"], value: Float[Tensor, "*#batch k value_width"], form: Form, owned: bool
) -> tuple[Float[Tensor, "*batch q value_width"], Float[Tensor, "*#batch q k"]]:
    """Return the output and the weights; `logits` are changed in place if they are `owned`."""
    if form.excluded is not None:
        fill = logits.masked_fill_ if owned else logits.masked_fill
        logits, owned = fill(form.excluded, -math.inf), True
    if form.empty is not None:
        # The score itself may give −inf to all pairs of such a query; its weights must be finite for the gradients.
        logits = logits.masked_fill_(form.empty, 0) if owned else logits.masked_fill(form.empty, 0)
    weights = form.rows.weights(logits)
    output = weights @ value
    return (output if form.empty is None else output.masked_fill_(form.empty, 0)), weights


def _value_and_logit_gradients(
    gradient: Float[Tensor, "*batch q value_width"],
    weights: Float[Tensor, "*#batch q k"],
    value: Float[Tensor, "*#batch k value_width"],
    form: Form,
    needs_value: bool,
) -> tuple[Float[Tensor, "*#batch k value_width"] | None, Float[Tensor, "*#batch q k"]]:

    if form.empty is not None:
        gradient = gradient.masked_fill(form.empty, 0)
    d_value = _sum_to(weights.mT @ gradient, value) if needs_value else None
    d_weights = _sum_to(gradient @ value.mT, weights)
    d_logits = form.rows.logit_gradient(weights, d_weights)
    return d_value, d_logits


def _sum_to(x: Float[Tensor, "*_"], like: Float[Tensor, "*_"]) -> Float[Tensor, "*_"]:
    """Return the sum of `x` over the axes along which an array of the shape of `like` was broadcast."""
    return x if x.shape == like.shape else x.sum_to_size(like.shape)


def _logits_passes(
    form: Form, logits: Float[Tensor, "*#batch q k"], value: Float[Tensor, "*#batch k value_width"]
) -> tuple[Float[Tensor, "*batch q value_width"], Float[Tensor, "*#batch q k"]]:
    return _weighted(logits, value, form, owned=False)


def _logits_forward(
    ctx: _Context, form: Form, logits: Float[Tensor, "*#batch q k"], value: Float[Tensor, "*#batch k value_width"]
) -> Float[Tensor, "*batch q value_width"]:
    ctx.form = form
    output, weights = _logits_passes(form, logits, value)
    ctx.save_for_backward(logits, value, weights)
    return output


def _logits_backward(
    ctx: _Context, gradient: Float[Tensor, "*batch q value_width"]
) -> tuple[Float[Tensor, "*_"] | None, ...]:
    import torch

    logits, value, weights = ctx.saved_tensors
    with no_autocast(gradient):
        if torch.is_grad_enabled():
            return (None, *_differentiable(_plain_logits, (logits, value), ctx.form, gradient))
        d_value, d_logits = _value_and_logit_gradients(gradient, weights, value, ctx.form, ctx.needs_input_grad[2])
        return None, d_logits, d_value


def _plain_logits(
    form: Form, logits: Float[Tensor, "*#batch q k"], value: Float[Tensor, "*#batch k value_width"]
) -> Float[Tensor, "*batch q value_width"]:
    if form.excluded is not None:
        logits = logits.masked_fill(form.excluded, -math.inf)
    if form.empty is None:
        return form.rows.differentiable(logits) @ value
    weights = form.rows.differentiable(logits.masked_fill(form.empty, 0))
    return (weights @ value).masked_fill(form.empty, 0)


def _products_passes(
    form: Form,
    left: Float[Tensor, "*#batch q columns"],
    right: Float[Tensor, "*#batch k columns"],
    value: Float[Tensor, "*#batch k value_width"],
    offset: Float[Tensor, "*#batch #q #k"] | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the output, the weights, and the arrays that the gradient of the logits needs."""
    if form.gated:
        products = left[..., :-1] @ right[..., :-1].mT
        gate = (left[..., -1:] + right[..., -1:].mT).sigmoid_()
        output, weights = _weighted(products * gate, value, form, owned=True)
        return output, weights, products, gate
    logits = (left if form.scale == 1 else left * form.scale) @ right.mT
    if offset is not None:
        # A product may have fewer batch axes than the offset.
        fits = offset.ndim <= 2 or offset.shape[:-2] == logits.shape[:-2]
        logits = logits.add_(offset) if fits else logits + offset
    if form.cap is None:
        return *_weighted(logits, value, form, owned=True), None, None
    tanh = logits.mul_(1 / form.cap).tanh_()
    output, weights = _weighted(tanh * form.cap, value, form, owned=True)
    return output, weights, tanh, None


def _products_forward(
    ctx: _Context,
    form: Form,
    left: Float[Tensor, "*#batch q columns"],
    right: Float[Tensor, "*#batch k columns"],
    value: Float[Tensor, "*#batch k value_width"],
    offset: Float[Tensor, "*#batch #q #k"] | None,
) -> Float[Tensor, "*batch q value_width"]:
    ctx.form = form
    output, weights, *more = _products_passes(form, left, right, value, offset)
    ctx.save_for_backward(left, right, value, offset, weights, *more)
    return output


def _products_backward(
    ctx: _Context, gradient: Float[Tensor, "*batch q value_width"]
) -> tuple[Float[Tensor, "*_"] | None, ...]:
    import torch

    with no_autocast(gradient):
        if torch.is_grad_enabled():
            tensors = ctx.saved_tensors[:4]
            return (None, *_differentiable(_plain_products, tensors, ctx.form, gradient))
        return (None, *_product_gradients(ctx, gradient))


def _product_gradients(
    ctx: _Context, gradient: Float[Tensor, "*batch q value_width"]
) -> tuple[Float[Tensor, "*_"] | None, ...]:
    import torch

    left, right, value, offset, weights, first, gate = ctx.saved_tensors
    form = ctx.form
    _, needs_left, needs_right, needs_value, needs_offset = ctx.needs_input_grad
    d_value, d = _value_and_logit_gradients(gradient, weights, value, form, needs_value)
    if gate is not None:
        d = d.mul_(gate)
        # The gradient of the gate's argument: dz ∘ S ∘ G (1 − G).
        d_gate = torch.addcmul(first, first, gate, value=-1).mul_(d)
        d_left = _sum_to(torch.cat([d @ right[..., :-1], d_gate.sum(-1, keepdim=True)], -1), left)
        d_right = _sum_to(torch.cat([d.mT @ left[..., :-1], d_gate.sum(-2)[..., None]], -1), right)
        return d_left, d_right, d_value, None
    if first is not None:
        d = torch.ops.aten.tanh_backward.grad_input(d, first, grad_input=d)
    d_offset = _sum_to(d, offset) if needs_offset else None
    d_left = _sum_to(d @ right, left) if needs_left else None
    d_right = _sum_to(d.mT @ left, right) if needs_right else None
    if form.scale != 1:
        d_left, d_right = (None if x is None else x.mul_(form.scale) for x in (d_left, d_right))
    return d_left, d_right, d_value, d_offset


def _plain_products(
    form: Form,
    left: Float[Tensor, "*#batch q columns"],
    right: Float[Tensor, "*#batch k columns"],
    value: Float[Tensor, "*#batch k value_width"],
    offset: Float[Tensor, "*#batch #q #k"] | None,
) -> Float[Tensor, "*batch q value_width"]:
    if form.gated:
        gate = (left[..., -1:] + right[..., -1:].mT).sigmoid()
        return _plain_logits(form, gate * (left[..., :-1] @ right[..., :-1].mT), value)
    logits = left @ right.mT * form.scale
    logits = logits if offset is None else logits + offset
    return _plain_logits(form, logits if form.cap is None else (logits / form.cap).tanh() * form.cap, value)


def _differentiable(
    function: Callable[..., Tensor],
    tensors: Sequence[Shaped[Tensor, "*_"] | None],
    form: Form,
    gradient: Float[Tensor, "*batch q value_width"],
) -> list[Tensor | None]:
    """Return gradients of `function`, computed such that autograd can differentiate them again."""
    sides = [None if x is None else x.view_as(x) for x in tensors]
    output = function(form, *sides)
    found = iter(gradients_of([output], [gradient], [x for x in sides if x is not None], create_graph=True))
    return [None if x is None else next(found) for x in sides]
