"""PyTorch's fused attention with the log-sum-exp of each row: forward, backward and double backward.

On a CPU the operators behind `scaled_dot_product_attention` are called directly: they cannot fall back to an array
of all pairs, need no choice of backend per call, and return the log-sum-exp. With it the outputs of two ranges of
keys merge (see `core/online_softmax.py`): a causal mask that starts d keys late is d keys that all queries attend
to, and a causal rest.

    output = Σ_s output_s e^(lse_s − lse)          lse = log Σ_s e^lse_s

Elsewhere, and where the operators are missing, the public function is called with the backends it may use.

Source: Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from qkv.core.typing import Float, Tensor
from qkv.kernels.compiled.saved import current_saved
from qkv.kernels.fused.layout import Layout, Side
from qkv.kernels.runtime.autograd_function import autograd_function

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        attention: FusedAttention
        saved_tensors: tuple[Tensor, ...]
        needs_input_grad: tuple[bool, ...]


__all__ = ["FusedAttention", "attend", "attend_public", "attend_without_gradient", "operators", "results_are_finite"]

Operator = Callable[..., Any]


@cache
def operators(device: str) -> tuple[Operator, Operator] | None:
    """Return the forward and backward operators for a device; None where PyTorch has none to call."""
    if device != "cpu":
        return None
    import torch

    names = (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
    if not all(hasattr(torch.ops.aten, name) for name in names):
        return None
    return getattr(torch.ops.aten, names[0]).default, getattr(torch.ops.aten, names[1]).default


@dataclass(frozen=True)
class FusedAttention:
    """One call of the fused attention.

    Attributes:
        layout: layout of the batch axes.
        scale: factor of the inner product.
        offset: position of query 0 under a causal mask; None: not causal.
        bias: 0 or −inf for each key, with four axes; None: all keys.
        double_backward: returns the gradients of query, key and value, which can be differentiated again, from
            (query, key, value, gradient).
    """

    layout: Layout
    scale: float
    offset: int | None
    bias: Float[Tensor, "#b #heads 1 k"] | None
    double_backward: Callable[[Tensor, Tensor, Tensor, Tensor], list[Tensor | None]]

    def forward(
        self,
        query: Float[Tensor, "b heads q width"],
        key: Float[Tensor, "b key_heads k width"],
        value: Float[Tensor, "b key_heads k width"],
    ) -> tuple[Float[Tensor, "b heads q width"], Float[Tensor, "b heads q"]]:
        """Return output and log-sum-exp."""
        import torch

        run, _ = self._operators(value)
        offset = self.offset
        if not offset:
            output, log_sum_exp = run(query, key, value, 0.0, offset is not None, attn_mask=self.bias, scale=self.scale)
            return output, log_sum_exp
        if offset < 0:  # the first queries precede every key
            output = torch.zeros_like(query)
            log_sum_exp = query.new_zeros(query.shape[:-1])
            if -offset < query.shape[-2]:
                late = run(query[:, :, -offset:], key, value, 0.0, True, scale=self.scale)
                output[:, :, -offset:], log_sum_exp[:, :, -offset:] = late
            return output, log_sum_exp
        far = run(query, key[:, :, :offset], value[:, :, :offset], 0.0, False, scale=self.scale)
        near = run(query, key[:, :, offset:], value[:, :, offset:], 0.0, True, scale=self.scale)
        log_sum_exp = torch.logaddexp(far[1], near[1])
        output = far[0] * torch.exp(far[1] - log_sum_exp)[..., None]
        return output.addcmul_(near[0], torch.exp(near[1] - log_sum_exp)[..., None]), log_sum_exp

    def backward(
        self,
        gradient: Float[Tensor, "b heads q width"],
        query: Float[Tensor, "b heads q width"],
        key: Float[Tensor, "b key_heads k width"],
        value: Float[Tensor, "b key_heads k width"],
        output: Float[Tensor, "b heads q width"],
        log_sum_exp: Float[Tensor, "b heads q"],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value."""
        import torch

        _, run = self._operators(value)
        offset = self.offset
        if not offset:
            query_gradient, key_gradient, value_gradient = run(
                gradient, query, key, value, output, log_sum_exp, 0.0, offset is not None,
                attn_mask=self.bias, scale=self.scale,
            )  # fmt: skip
            return query_gradient, key_gradient, value_gradient
        if offset < 0:
            late = [x[:, :, -offset:] for x in (gradient, query, output, log_sum_exp)]
            if late[0].shape[-2] == 0:
                return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
            found, key_gradient, value_gradient = run(
                late[0], late[1], key, value, late[2], late[3], 0.0, True, scale=self.scale
            )
            return torch.nn.functional.pad(found, (0, 0, -offset, 0)), key_gradient, value_gradient
        # The weights of every key follow from the log-sum-exp of the whole row, so each range is independent.
        far, near = (
            run(gradient, query, key[:, :, keys], value[:, :, keys], output, log_sum_exp, 0.0, causal, scale=self.scale)
            for keys, causal in ((slice(0, offset), False), (slice(offset, None), True))
        )
        return far[0] + near[0], torch.cat([far[1], near[1]], dim=-2), torch.cat([far[2], near[2]], dim=-2)

    def reveals_nonfinite(self, value: Tensor) -> bool:
        """Return whether the results of this call show that an input was not finite."""
        has_operators = operators(value.device.type) is not None
        return not self.offset and has_operators and _reveals_nonfinite(str(value.dtype))

    def _operators(self, value: Tensor) -> tuple[Operator, Operator]:
        found = operators(value.device.type)
        assert found is not None
        return found


def results_are_finite(output: Float[Tensor, "b heads q width"], log_sum_exp: Float[Tensor, "b heads q"]) -> bool:
    """Return whether the results prove that every input was finite.

    NaN in a row of the query shows in the log-sum-exp of that row, in a key in all of them; in a value it shows in
    every row that is multiplied with it, masked or not, and the last row is multiplied with all. A row of NaN alone
    may be mistaken for one without keys, whose log-sum-exp is 0: so a 0 proves nothing. Nor does an overflow of the
    sum.
    """
    return bool(log_sum_exp.all()) and math.isfinite(float(log_sum_exp.sum() + output[..., -1, :].sum()))


@cache
def _reveals_nonfinite(dtype: str) -> bool:
    """Test on small inputs whether the operator of this machine reveals NaN and Inf as `results_are_finite` expects."""
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    if kind.itemsize < 4:
        return False  # half precision was observed to return finite results for infinite keys
    run, _ = operators("cpu") or (None, None)
    with torch.no_grad():
        for k, causal, side, bad in product((5, 16, 21, 70), (False, True), range(3), (math.nan, math.inf)):
            sides = [torch.ones((1, 1, n, 4), dtype=kind) for n in (k, k, k)]
            sides[side][0, 0, k // 2] = bad
            if run is None or results_are_finite(*run(*sides, 0.0, causal)):
                return False
    return True


def attend(attention: FusedAttention, query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "b heads q width"]:
    """Return the output, differentiable.

    Args:
        attention: the call.
        query: lifted queries.
        key: lifted keys, as wide as the queries.
        value: values, padded to the same width.
    """
    output: Tensor = autograd_function(_attend, _backward)(attention, query, key, value)
    return output


def attend_without_gradient(
    attention: FusedAttention, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Float[Tensor, "b heads q width"], Float[Tensor, "b heads q"]]:
    """Return output and log-sum-exp; arguments as in `attend`."""
    return attention.forward(*attention.layout.sides(query, key, value))


def attend_public(
    attention: FusedAttention, query: Tensor, key: Tensor, value: Tensor, traced: bool
) -> Float[Tensor, "b heads q width"]:
    """Return the output of the public function, for tracers and where the operators are missing.

    Args:
        attention: the call.
        query: lifted queries.
        key: lifted keys, as wide as the queries.
        value: values, padded to the same width.
        traced: whether a tracer runs; it chooses the backend itself.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    layout = attention.layout
    sides = layout.sides(query, key, value)
    options: dict[str, Any] = {"attn_mask": attention.bias, "is_causal": attention.offset is not None}
    if layout.grouped:
        options["enable_gqa"] = True
    if traced:
        return scaled_dot_product_attention(*sides, scale=attention.scale, **options)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        return scaled_dot_product_attention(*sides, scale=attention.scale, **options)


def _attend(ctx: _Context, attention: FusedAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    layout, saved = attention.layout, current_saved()
    sides = layout.sides(query, key, value)
    if saved is not None and (known := saved.take()) is not None:
        output, log_sum_exp = layout.restore(known[0], known[1][0], sides[2].shape[-1])
    else:
        output, log_sum_exp = attention.forward(*sides)
    if saved is not None:
        saved.note([log_sum_exp.reshape((*layout.batch, log_sum_exp.shape[-1], 1))])
    ctx.save_for_backward(query, key, value, output, log_sum_exp)
    ctx.attention = attention
    return output


def _backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
    import torch

    query, key, value, output, log_sum_exp = ctx.saved_tensors
    attention, layout = ctx.attention, ctx.attention.layout
    if torch.is_grad_enabled():
        return (None, *attention.double_backward(query, key, value, gradient))
    if gradient.stride(-1) != 1:
        gradient = gradient.contiguous()
    found = attention.backward(gradient, *layout.sides(query, key, value), output, log_sum_exp)
    given: tuple[tuple[Side, Tensor], ...] = ((0, query), (1, key), (2, value))
    wanted = zip(ctx.needs_input_grad[1:], found, given, strict=True)
    return (None, *(layout.from_four_axes(g, side, x) if w else None for w, g, (side, x) in wanted))
