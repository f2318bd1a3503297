"""PyTorch's fused attention, forward and backward, with what it keeps of each row, and a second derivative.

On a CPU the operators behind `scaled_dot_product_attention` are called themselves: they cannot fall back to
an array of all pairs, need no choice of backend at each call, and also give the logarithm of each row's
total. With it two calls over different keys are one: a causal mask that starts d keys late is d keys that
all queries see, and a causal rest.

    out = Σ_s out_s e^(lse_s − lse)          lse = log Σ_s e^lse_s

Elsewhere, and where the operators are missing, it is the public function, told which backends it may take.

Source: Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from qkv.core.typing import Tensor
from qkv.kernels.compiled.saved import current_saved
from qkv.kernels.fused.layout import Layout

__all__ = ["Flash", "attend", "operators", "public", "told_finite"]


@cache
def operators(device: str) -> tuple[Any, Any] | None:
    """The operators for the device: forward and backward; None where PyTorch has none to call."""
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
class Flash:
    """One call.

    Attributes:
        layout: of the batch axes.
        scale: the inner product is multiplied by it.
        offset: position of query 0 under a causal mask; None: not causal.
        bias: 0 or −inf for each key, with four axes; None: all keys.
        again: gives the gradients in a form that can be differentiated, from (query, key, value, gradient).
    """

    layout: Layout
    scale: float
    offset: int | None
    bias: Tensor | None
    again: Callable[..., Any]

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Any, Any]:
        """Output and log-total of each row, `(b, heads, q, width)` and `(b, heads, q)`."""
        import torch

        found = operators(value.device.type)
        assert found is not None
        run, _ = found
        offset = self.offset
        if not offset:
            return run(  # type: ignore[no-any-return]
                query, key, value, 0.0, offset is not None, attn_mask=self.bias, scale=self.scale
            )
        if offset < 0:  # the first queries stand before every key
            output = torch.zeros_like(query)
            total = query.new_zeros(query.shape[:-1])
            if -offset < query.shape[-2]:
                late = run(query[:, :, -offset:], key, value, 0.0, True, scale=self.scale)
                output[:, :, -offset:], total[:, :, -offset:] = late
            return output, total
        far = run(query, key[:, :, :offset], value[:, :, :offset], 0.0, False, scale=self.scale)
        near = run(query, key[:, :, offset:], value[:, :, offset:], 0.0, True, scale=self.scale)
        total = torch.logaddexp(far[1], near[1])
        output = far[0] * torch.exp(far[1] - total)[..., None]
        return output.addcmul_(near[0], torch.exp(near[1] - total)[..., None]), total

    def tells(self, value: Tensor) -> bool:
        """Whether output and log-totals of this call show that something was not finite."""
        return not self.offset and operators(value.device.type) is not None and _tells(str(value.dtype))

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, total: Tensor
    ) -> tuple[Any, Any, Any]:
        """Gradients of query, key and value; those of key and value as many heads as they have."""
        import torch

        found = operators(value.device.type)
        assert found is not None
        _, run = found
        offset, rest = self.offset, {"scale": self.scale}
        if not offset:
            return run(  # type: ignore[no-any-return]
                gradient, query, key, value, output, total, 0.0, offset is not None,
                attn_mask=self.bias, **rest,
            )  # fmt: skip
        if offset < 0:
            late = [x[:, :, -offset:] for x in (gradient, query, output, total)]
            if late[0].shape[-2] == 0:
                return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
            grad, *others = run(late[0], late[1], key, value, late[2], late[3], 0.0, True, **rest)
            return torch.nn.functional.pad(grad, (0, 0, -offset, 0)), others[0], others[1]
        # The weights of every key follow from the total of the whole row, so each piece is on its own.
        pieces = [
            run(gradient, query, key[:, :, keys], value[:, :, keys], output, total, 0.0, causal, **rest)
            for keys, causal in ((slice(0, offset), False), (slice(offset, None), True))
        ]
        (far, *far_sides), (near, *near_sides) = pieces
        joined = [torch.cat(pair, dim=-2) for pair in zip(far_sides, near_sides, strict=True)]
        return far + near, joined[0], joined[1]


def told_finite(output: Tensor, total: Tensor) -> bool:
    """Whether nothing that was read can have been other than finite.

    A NaN in a row of the query shows in the total of that row, in a key in all of them; in a value it shows
    in every row that is multiplied with it, masked or not, and the last row is with all. A row of NaN alone
    may be taken for one without keys, whose total is given as 0: so a 0 is no answer. False, too, where a sum
    overflows.
    """
    return bool(total.all()) and math.isfinite(total.sum() + output[..., -1, :].sum())


@cache
def _tells(dtype: str) -> bool:
    """Whether the operator of this machine shows what it read, as `told_finite` believes. By trying."""
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    if kind.itemsize < 4:
        return False  # seen: finite answers to infinite keys in half precision
    run, _ = operators("cpu") or (None, None)
    with torch.no_grad():
        for k, causal, side, bad in product((5, 16, 21, 70), (False, True), range(3), (math.nan, math.inf)):
            sides = [torch.ones((1, 1, n, 4), dtype=kind) for n in (k, k, k)]
            sides[side][0, 0, k // 2] = bad
            if run is None or told_finite(*run(*sides, 0.0, causal)):
                return False
    return True


def attend(flash: Flash, left: Tensor, right: Tensor, value: Tensor, gradient: bool) -> Any:
    """The output `(b, heads, q, width)` with a graph; where none is wanted, output and log-totals."""
    if gradient:
        return _function()(flash, left, right, value)
    layout = flash.layout
    return flash.forward(layout.four(left, 0), layout.four(right, 1), layout.four(value, 2))


def public(flash: Flash, left: Tensor, right: Tensor, value: Tensor, traced: bool) -> Any:
    """The same by the public function: for tracers, and where the operators are not known."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    layout, sides = flash.layout, (left, right, value)
    query, key, value = (layout.four(x, n) for n, x in enumerate(sides))
    options: dict[str, Any] = {"attn_mask": flash.bias, "is_causal": flash.offset is not None}
    if layout.grouped:
        options["enable_gqa"] = True
    if traced:
        return scaled_dot_product_attention(query, key, value, scale=flash.scale, **options)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        return scaled_dot_product_attention(query, key, value, scale=flash.scale, **options)


_APPLY: Any = None


def _function() -> Any:
    """The autograd function, made when torch is there."""
    global _APPLY
    if _APPLY is None:
        import torch

        class Attend(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, flash: Flash, left: Any, right: Any, value: Any) -> Any:
                layout, kept = flash.layout, current_saved()
                sides = layout.four(left, 0), layout.four(right, 1), layout.four(value, 2)
                if kept is not None and (known := kept.take()) is not None:
                    output, total = layout.known(known[0], known[1][0], sides[2].shape[-1])
                else:
                    output, total = flash.forward(*sides)
                if kept is not None:
                    kept.note([total.reshape((*layout.batch, total.shape[-1], 1))])
                ctx.save_for_backward(left, right, value, output, total)
                ctx.flash = flash
                return output

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                left, right, value, output, total = ctx.saved_tensors
                flash, layout = ctx.flash, ctx.flash.layout
                if torch.is_grad_enabled():  # the gradient itself will be differentiated
                    return (None, *flash.again(left, right, value, gradient))
                if gradient.stride(-1) != 1:
                    gradient = gradient.contiguous()
                sides = [layout.four(x, n) for n, x in enumerate((left, right, value))]
                found = flash.backward(gradient, *sides, output, total)
                wanted = zip(ctx.needs_input_grad[1:], found, (left, right, value), strict=True)
                return (None, *(layout.back(g, n, x) if w else None for n, (w, g, x) in enumerate(wanted)))

        _APPLY = Attend.apply
    return _APPLY
