"""PyTorch's fused attention with its forward, backward and double backward pass.

It also returns the log-sum-exp of each query.

On a CPU the operators behind `scaled_dot_product_attention` are called directly: they never allocate an array of all
pairs, need no choice of backend per call, and return the log-sum-exp, with which the outputs of two ranges of keys can
be merged (see `core/partial.py`). A causal mask with an offset of d is split into the first d keys, to which
all queries attend, and a causal mask over the remaining keys:

    output = far + (near − far) σ(lse_near − lse_far)          lse = log(e^lse_far + e^lse_near)

On other devices, and if the operators are missing, the public function is called, restricted to its linear-memory
backends.

Source: Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import torch

from qkv.core.autograd_function import autograd_function
from qkv.core.typing import Float, Tensor
from qkv.kernels.fused.layout import FourAxes, Layout, Side, Sides
from qkv.kernels.fused.pair_bias import BlockBias
from qkv.kernels.runtime.saved_statistics import SAVED
from qkv.kernels.runtime.subnormals import FlushedSubnormals
from qkv.kernels.runtime.workers import run_on_workers, split_evenly

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        attention: FusedAttention


_Operator = Callable[..., Any]
_DoubleBackward = Callable[[Sides, Float[Tensor, "b heads q width"]], list[Float[Tensor, "*_"] | None]]
"""Function of query, key and value and the gradient of the output, which returns the gradients of the first three."""


@cache
def operators(device: str) -> tuple[_Operator, _Operator] | None:
    """Return PyTorch's forward and backward operators of fused attention for a device, or None if there are none."""
    if device != "cpu":
        return None
    forward = "_scaled_dot_product_flash_attention_for_cpu"
    backward = forward + "_backward"
    if not all(hasattr(torch.ops.aten, name) for name in (forward, backward)):
        return None
    # Python's own binding, which exists for the forward pass alone, takes 2 µs less than that of `torch.ops`.
    direct = getattr(torch, forward, None) or getattr(torch.ops.aten, forward).default
    return direct, getattr(torch.ops.aten, backward).default


@dataclass(frozen=True)
class FusedAttention:
    """Configuration of one call of PyTorch's fused attention, with its forward and backward pass.

    Attributes:
        layout: mapping of the batch axes.
        scale: factor of the inner product.
        offset: position of query 0 under a causal mask, or None without a causal mask.
        bias: 0 for allowed and −inf for masked keys, with four axes; None if all keys are allowed. A `BlockBias` has
            the mask and the offsets for a block of queries at a time; `offset` is then None, or 0 with a single block.
        double_backward: function that returns gradients of query, key and value that are differentiable themselves.
        identity: whether query, key and value have the four axes already.
    """

    layout: Layout
    scale: float
    offset: int | None
    bias: Float[Tensor, "#b #heads 1 k"] | BlockBias | None
    double_backward: _DoubleBackward
    identity: bool = False

    def sides(self, sides: Sides) -> FourAxes:
        """Return query, key and value with four axes, of which the last is contiguous."""
        if self.identity and sides[0].stride(-1) == sides[1].stride(-1) == sides[2].stride(-1) == 1:
            return sides
        return self.layout.sides(sides)

    def forward(self, sides: FourAxes) -> tuple[Float[Tensor, "b heads q width"], Float[Tensor, "b heads q"]]:
        """Return the output and the log-sum-exp of each query."""
        query, key, value = sides
        if isinstance(self.bias, BlockBias):
            found = [
                replace(self, bias=bias).forward((query[:, :, rows], key[:, :, keys], value[:, :, keys]))
                for rows, keys, bias in self.bias.blocks(value)
            ]
            outputs, log_sum_exps = zip(*found, strict=True)
            return torch.cat(outputs, -2), torch.cat(log_sum_exps, -1)
        run, _ = cast("tuple[_Operator, _Operator]", operators(value.device.type))
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
        share = torch.sigmoid(near[1] - far[1])[..., None]  # of the near keys: both shares sum to 1
        return far[0] * (1 - share) + near[0] * share, torch.logaddexp(far[1], near[1])

    def backward(
        self,
        gradient: Float[Tensor, "b heads q width"],
        sides: FourAxes,
        output: Float[Tensor, "b heads q width"],
        log_sum_exp: Float[Tensor, "b heads q"],
    ) -> FourAxes:
        """Return the gradients of query, key and value, given the gradient of the output."""
        query, key, value = sides
        if isinstance(self.bias, BlockBias):
            gradients = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
            for rows, keys, bias in self.bias.blocks(value):
                of_block = replace(self, bias=bias).backward(
                    gradient[:, :, rows], (query[:, :, rows], key[:, :, keys], value[:, :, keys]),
                    output[:, :, rows], log_sum_exp[:, :, rows],
                )  # fmt: skip
                for whole, part, some in zip(gradients, of_block, (rows, keys, keys), strict=True):
                    whole[:, :, some] += part
            return gradients
        offset, run = self.offset, partial(_run_backward, scale=self.scale)
        if not offset:
            return run(gradient, query, key, value, output, log_sum_exp, offset is not None, self.bias)
        if offset < 0:
            late = [x[:, :, -offset:] for x in (gradient, query, output, log_sum_exp)]
            if late[0].shape[-2] == 0:
                return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
            found, key_gradient, value_gradient = run(late[0], late[1], key, value, late[2], late[3], True)
            return torch.nn.functional.pad(found, (0, 0, -offset, 0)), key_gradient, value_gradient
        # The weights of every key follow from the log-sum-exp of the whole row, so both ranges are independent.
        far, near = (
            run(gradient, query, key[:, :, keys], value[:, :, keys], output, log_sum_exp, causal)
            for keys, causal in ((slice(0, offset), False), (slice(offset, None), True))
        )
        return far[0] + near[0], torch.cat([far[1], near[1]], dim=-2), torch.cat([far[2], near[2]], dim=-2)

    def reveals_nonfinite(self, value: Float[Tensor, "*own_value k width"]) -> bool:
        """Return whether `results_are_finite` detects every NaN and infinity in the inputs of this call."""
        has_operators = operators(value.device.type) is not None
        in_blocks = isinstance(self.bias, BlockBias)
        return not (self.offset or in_blocks) and has_operators and _reveals_nonfinite(str(value.dtype))


def _run_backward(
    gradient: Float[Tensor, "b heads q width"],
    query: Float[Tensor, "b heads q width"],
    key: Float[Tensor, "b key_heads k width"],
    value: Float[Tensor, "b key_heads k width"],
    output: Float[Tensor, "b heads q width"],
    log_sum_exp: Float[Tensor, "b heads q"],
    causal: bool,
    bias: Float[Tensor, "#b #heads #q k"] | None = None,
    scale: float = 1.0,
) -> FourAxes:
    """Return the gradients of query, key and value from PyTorch's operator.

    It divides batch elements and heads among its threads, which take up to 18 times as long for weights that are
    subnormal. Threads that flush them share the work instead.
    """
    _, operator = cast("tuple[_Operator, _Operator]", operators(value.device.type))
    arrays, elements = (gradient, query, key, value, output, log_sum_exp), value.shape[:2]
    axis = int(elements[1] > elements[0])
    pairs = gradient.shape[:-1].numel() * key.shape[-2]
    shares = split_evenly(range(elements[axis]), min(torch.get_num_threads(), pairs // _SHARED_PAIRS))
    found: dict[int, FourAxes] = {}

    def on_worker(n: int) -> None:
        def part(x: Tensor) -> Tensor:
            group = x.shape[axis] // elements[axis]  # query heads of a key head; 0 where a bias is shared
            return x.narrow(axis, shares[n][0] * group, len(shares[n]) * group) if group else x

        own_bias = None if bias is None else part(bias)
        found[n] = operator(*map(part, arrays), 0.0, causal, attn_mask=own_bias, scale=scale)

    with FlushedSubnormals():
        if len(shares) == 1:
            return cast("FourAxes", operator(*arrays, 0.0, causal, attn_mask=bias, scale=scale))
        run_on_workers(on_worker, len(shares))
    query_gradient, key_gradient, value_gradient = (
        torch.cat(parts, axis) for parts in zip(*(found[n] for n in range(len(shares))), strict=True)
    )
    return query_gradient, key_gradient, value_gradient


def all_finite(sides: Sides) -> bool:
    """Return whether all elements of query, key and value are finite."""
    query, key, value = sides
    # If the sum is finite, all terms are. If not, the sum may have overflowed, and all elements are checked.
    if query.numel() <= _FEW_ELEMENTS and query.shape == key.shape == value.shape:
        total = torch.addcmul(query, key, value).sum().item()  # two operators instead of three sums
    else:
        total = query.sum().item() + key.sum().item() + value.sum().item()
    return math.isfinite(total) or all(bool(x.isfinite().all()) for x in sides)


def results_are_finite(output: Float[Tensor, "b heads q width"], log_sum_exp: Float[Tensor, "b heads q"]) -> bool:
    """Return whether `output` and `log_sum_exp` prove that all elements of query, key and value were finite.

    A non-finite query makes the log-sum-exp of its row non-finite, and a non-finite key that of all rows. A non-finite
    value makes every output row non-finite whose weights are multiplied with it, masked or not; the last row is
    multiplied with all values. The operator may return a log-sum-exp of 0 for a row of NaN, as for a row without keys,
    so a 0 proves nothing, nor does a sum that is not finite, because sums may overflow.
    """
    # x / x is 1 unless x is 0 or not finite, and then NaN, which does not equal itself. Adding up few elements takes
    # less time than slicing.
    ratio = log_sum_exp / log_sum_exp
    rows = output if output.numel() <= _FEW_ELEMENTS else output[..., -1, :]
    return torch.equal(ratio, ratio) and math.isfinite(rows.sum().item())


_LARGEST_ROUNDING = 2.0**-11
"""Largest rounding error of a log-sum-exp with which PyTorch's operator computes gradients."""
_SHARED_PAIRS = 2**23
"""Least number of pairs of each thread that shares backward: PyTorch's threads spin beside it for some milliseconds."""
_FEW_ELEMENTS = 4096
"""Number of elements up to which a whole output is added up."""


@cache
def _reveals_nonfinite(dtype: str) -> bool:
    """Return whether `results_are_finite` detects NaN and infinity in small test inputs on this machine."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    if kind.itemsize < 4:
        return False  # half precision was observed to return finite results for infinite keys
    run, _ = operators("cpu") or (None, None)
    with torch.no_grad():
        for k, causal, side, bad in product((5, 16, 21, 70), (False, True), range(3), (math.nan, math.inf)):
            sides = [torch.ones((1, 1, n, 4), dtype=kind, device="cpu") for n in (k, k, k)]
            sides[side][0, 0, k // 2] = bad
            if run is None or results_are_finite(*run(*sides, 0.0, causal)):
                return False
    return True


def _rounding(log_sum_exp: Float[Tensor, "b heads q"]) -> float:
    """Return the largest rounding error of the finite elements of a log-sum-exp."""
    if not log_sum_exp.numel():
        return 0.0
    low, high = torch.aminmax(log_sum_exp)
    largest = max(-low.item(), high.item())
    if not math.isfinite(largest):  # of a row without keys, or of data that is not finite
        largest = log_sum_exp.abs().nan_to_num(0, 0, 0).amax().item()
    return largest * torch.finfo(log_sum_exp.dtype).eps


def attend(attention: FusedAttention, sides: Sides) -> tuple[Float[Tensor, "b heads q width"], bool]:
    """Return the output of fused attention, and `all_finite` of the inputs.

    The output supports first and second derivatives. The gradients of a finite output may be NaN, because an infinite
    key can have the weight 0.
    """
    finite: list[bool] = []
    output: Tensor = autograd_function(_attend, _backward)(attention, finite, *sides)
    return output, finite[0]


def attend_public(attention: FusedAttention, given: Sides, traced: bool) -> Float[Tensor, "b heads q width"]:
    """Return the output of fused attention, computed by PyTorch's public `scaled_dot_product_attention`.

    It is used while PyTorch traces a call, and on devices for which `operators` returns None. If `traced`, the backend
    is chosen when the graph runs.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    layout = attention.layout
    sides = layout.sides(given)
    mask, causal = attention.bias, attention.offset is not None
    assert not isinstance(mask, BlockBias)  # which only the operators for CPUs take
    if attention.offset:
        from torch.nn.attention.bias import causal_lower_right

        mask, causal = causal_lower_right(sides[0].shape[-2], sides[1].shape[-2]), False
    attend = partial(
        scaled_dot_product_attention, attn_mask=mask, is_causal=causal, scale=attention.scale, enable_gqa=layout.grouped
    )
    if traced:
        return attend(*sides)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        return attend(*sides)


def _attend(
    ctx: _Context,
    attention: FusedAttention,
    finite: list[bool],
    query: Float[Tensor, "*own_query q width"],
    key: Float[Tensor, "*own_key k width"],
    value: Float[Tensor, "*own_value k width"],
) -> Float[Tensor, "b heads q width"]:
    layout, saved = attention.layout, SAVED.get()
    sides = attention.sides((query, key, value))
    if saved is not None and (known := saved.take()) is not None:
        output, log_sum_exp = layout.restore(known[0], known[1][0], sides[2].shape[-1])
    else:
        output, log_sum_exp = attention.forward(sides)
    if saved is not None:
        saved.note([log_sum_exp.reshape((*layout.batch, log_sum_exp.shape[-1], 1))])
    ctx.save_for_backward(query, key, value, output, log_sum_exp)
    ctx.attention = attention
    finite.append(all_finite((query, key, value)))  # here, where nothing is recorded for backward
    return output


def _backward(ctx: _Context, gradient: Float[Tensor, "b heads q width"]) -> tuple[Float[Tensor, "*_"] | None, ...]:
    *given, output, log_sum_exp = ctx.saved_tensors
    own = cast("Sides", tuple(given))
    attention, needs = ctx.attention, ctx.needs_input_grad[2:]
    if torch.is_grad_enabled():
        return (None, None, *attention.double_backward(own, gradient))
    if gradient.stride(-1) != 1:
        gradient = gradient.contiguous()
    # The operator's weights e^(l − lse) do not sum to 1 where the log-sum-exp of a row with keys is rounded.
    if _rounding(log_sum_exp) > _LARGEST_ROUNDING:
        with torch.enable_grad():
            sides = cast("Sides", tuple(x.detach().requires_grad_() for x in own))
            again = attention.double_backward(sides, gradient)
        return (None, None, *(None if g is None or not w else g.detach() for w, g in zip(needs, again, strict=True)))
    found = attention.backward(gradient, attention.sides(own), output, log_sum_exp)
    if attention.identity and all(needs):
        return (None, None, *found)
    indices: tuple[Side, ...] = (0, 1, 2)
    results = zip(needs, found, indices, own, strict=True)
    split = attention.layout.from_four_axes
    return (None, None, *(split(g, side, x) if w else None for w, g, side, x in results))
