"""Kernel for softmax of modified inner products on GPUs, which calls PyTorch's compiled FlexAttention.

It supports soft caps, ALiBi, biases, relative positions, and masks such as windows, documents and prefixes.

Source: Dong et al. (2024), Flex Attention, https://arxiv.org/abs/2412.05496, and
https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.typing import Float, Num, Tensor
from qkv.kernels.flex.modifications import BatchAxes, mask_function, modifications_of, score_function, supports_mask
from qkv.kernels.fused.layout import Layout, layout_of
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.scores import Dot, ScaledDot, Softcap
from qkv.scores.forms import ScaledProduct

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from qkv.core.equation import TorchCall
    from qkv.scores import Score


__all__ = ["FlexKernel"]


_LEAST_WIDTH = 16
"""Smallest width of vectors that FlexAttention's compiled kernel supports."""
_MOST_BLOCK_MASKS = 64
_block_masks: dict[tuple[object, ...], BlockMask] = {}
"""Block masks that depend on no arrays, such as that of a window, by what they depend on."""


def flex_attend(call: TorchCall, compiled: bool) -> Float[Tensor, "*batch q value_width"]:
    """Return the output of a call whose score and mask FlexAttention can apply.

    Args:
        call: the call.
        compiled: whether to compile FlexAttention; otherwise it computes all pairs at once, for tests.
    """
    import torch
    from torch.nn.attention.flex_attention import AuxRequest

    inner, modifications = modifications_of(call.score)
    key_bias = None
    if call.mask is not None:
        call, key_bias = _without_nonfinite(call)
    with no_autocast(call.value):
        query, key, scale = _lift(call, inner)
        value, width = call.value, call.value.shape[-1]
        if not query.dtype == key.dtype == value.dtype:
            query, key, value = (x.to(torch.promote_types(query.dtype, torch.float32)) for x in (query, key, value))
        query, key, value = _padded(query), _padded(key), _padded(value)
        layout, (query, key, value) = _four_axes(call, query, key, value)
        temperature = cast("float", call.normalizer.temperature)
        if not modifications:
            scale, temperature = scale / temperature, 1.0
        axes = BatchAxes(call.tile.batch, layout.heads[1])
        modify = score_function(modifications, call.tile, axes, call.value, temperature, key_bias)
        blocks = None if call.mask is None else _block_mask(call, axes, layout, compiled)
        output, more = _flex_attention(compiled)(
            query,
            key,
            value,
            score_mod=modify,
            block_mask=blocks,
            scale=scale,
            enable_gqa=layout.grouped,
            return_aux=AuxRequest(lse=True),
        )
        # The output of rows without keys is not documented.
        output = torch.where((more.lse == -math.inf)[..., None], 0.0, output)
    return layout.output(output, width)


def _lift(call: TorchCall, score: Score) -> tuple[Num[Tensor, "*_ q lifted"], Num[Tensor, "*_ k lifted"], float]:
    centre = score.centre(call.key)
    tile = call.tile if centre is None else dataclasses.replace(call.tile, centre=centre)
    query, key, scale = score.scaled_lift(call.query, call.key, tile)
    return cast("Tensor", query), cast("Tensor", key), scale


def _padded(x: Num[Tensor, "*_ n width"]) -> Num[Tensor, "*_ n padded"]:
    import torch

    missing = _LEAST_WIDTH - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing > 0 else x


def _four_axes(call: TorchCall, *sides: Num[Tensor, "*_"]) -> tuple[Layout, tuple[Num[Tensor, "b heads n width"], ...]]:
    batch = call.tile.batch
    layout = layout_of(batch, *(tuple(x.shape[:-2]) for x in sides))
    if layout is None:  # the lift broadcast the inputs to batch axes of the score's arrays
        sides = tuple(x.expand((*batch, *x.shape[-2:])) for x in sides)
        layout = layout_of(batch, batch, batch, batch)
        assert layout is not None
    query, key, value = sides
    return layout, layout.sides((query, key, value))


def _without_nonfinite(call: TorchCall) -> tuple[TorchCall, Num[Tensor, "*_ k"]]:
    """Return a call with keys and values that are not finite set to 0, and NaN for these keys and 0 for others."""
    import torch

    bias = (call.key.detach() * 0).sum(-1) + (call.value.detach() * 0).sum(-1)
    key, value = (torch.where(x.isfinite(), x, 0.0) for x in (call.key, call.value))
    dtype = torch.float64 if bias.dtype == torch.float64 else torch.float32
    return dataclasses.replace(call, key=key, value=value), bias.to(dtype)


def _block_mask(call: TorchCall, axes: BatchAxes, layout: Layout, compiled: bool) -> BlockMask:
    assert call.mask is not None
    function, batched, key = mask_function(call.mask, call.tile, axes, call.value)
    q, k, device = call.tile.q_total, call.tile.k_total, call.value.device
    known = None if key is None else (key, q, k, device, compiled)
    found = None if known is None else _block_masks.get(known)
    if found is None:
        b, h = layout.heads if batched else (None, None)
        found = _create_block_mask(compiled)(function, b, h, q, k, device)
        if known is not None:
            if len(_block_masks) >= _MOST_BLOCK_MASKS:
                _block_masks.clear()
            _block_masks[known] = found
    return found


@cache
def _flex_attention(compiled: bool) -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


@cache
def _create_block_mask(compiled: bool) -> Any:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask) if compiled else create_block_mask


_BLOCK = 128
"""Number of queries, and of keys, of a block of a block mask."""
_FIRST_RELEASE = (2, 9)
"""First release of PyTorch whose FlexAttention returns the log-sum-exp by `AuxRequest`."""


@dataclass(frozen=True)
class FlexKernel(Kernel):
    """Kernel that calls FlexAttention on lifted queries and keys.

    Args:
        eager: whether FlexAttention runs without a compiler on tensors of any device, for tests.
    """

    name: ClassVar[str] = "flex"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    runs_on_gpu: ClassVar[bool] = True
    eager: bool = False

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why FlexAttention cannot compute a call, or not with the same result."""
        from qkv.kernels.fused.layout import layout_of

        axes = problem.axes
        inner, modifications = modifications_of(problem.score)
        if not (problem.device.is_gpu or self.eager):
            yield "it runs on GPUs"
        if inner.form.lift is None or inner.form.inner is not None:
            yield f"{problem.score} is not an inner product with a soft cap, positions or biases"
        if inner.form.lift != "exact" and any(isinstance(each, Softcap) for each in modifications):
            yield f"{inner} is an inner product only up to a term of the query, which a soft cap changes"
        yield from softmax_limits(problem.normalizer, number=True)
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if problem.dtype == "float64" and not self.eager:
            yield "it computes in single precision"
        if not supports_mask(problem.spec.mask):
            yield f"the mask {problem.spec.mask} cannot be translated to a function of indices"
        if 0 in (axes.q, axes.k, axes.query_width, axes.key_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if max(inner.lifted_width(axes.query_width, axes.key_width), axes.value_width) > 256:
            yield "it supports vectors up to 256 wide"
        if layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2]) is None:
            yield "the batch axes cannot be mapped to two without a copy"
        if not _has_flex():
            yield f"PyTorch is older than {_FIRST_RELEASE[0]}.{_FIRST_RELEASE[1]}"

    def describe(self, problem: Problem) -> str:
        """Describe the modifications and the block mask."""
        inner, modifications = modifications_of(problem.score)
        notes = ["compiled FlexAttention", inner.lift_description()]
        if modifications:
            notes.append(" and ".join(type(each).__name__ for each in modifications) + " applied to each logit")
        if problem.spec.mask is not None:
            notes.append(f"block mask of {_BLOCK} × {_BLOCK} pairs")
        return "; ".join(note for note in notes if note)

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return what happens to data that is not finite, which is never read back."""
        if problem.spec.mask is None:
            return ()
        return ("NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them",)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift: FlexAttention accumulates in single precision."""
        return isinstance(modifications_of(problem.score)[0], (Dot, ScaledDot))

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call: copies of lifted or padded inputs, the output and the block mask."""
        axes = problem.axes
        pairs = visible_pairs(problem, _BLOCK, _BLOCK)
        width = max(16, modifications_of(problem.score)[0].lifted_width(axes.query_width, axes.key_width))
        rows = axes.batch_size * (axes.q + axes.k)
        copies = (2 * rows * (width + axes.value_width)) * problem.itemsize
        if problem.spec.mask is not None:
            # Four lists of blocks, and their transposes, in 4 bytes for each block.
            copies += axes.batch_size * -(-axes.q // _BLOCK) * -(-axes.k // _BLOCK) * 4 * 4
        times = 2 if problem.gradient else 1
        flop = pairs * (problem.flop_per_pair + 2 * width) * (3.5 if problem.gradient else 1)
        return Cost(flop, (problem.input_bytes + copies) * times, copies * times + 2**20, 3e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the compiled kernel, of the lift and of the block mask."""
        axes = problem.axes
        inner, modifications = modifications_of(problem.score)
        pairs, times = visible_pairs(problem, _BLOCK, _BLOCK), 3.5 if problem.gradient else 1.0
        width = max(inner.lifted_width(axes.query_width, axes.key_width), axes.value_width)
        changes = 6 + 8 * len(modifications) + (4 if problem.spec.mask is not None else 0)
        caps = sum(isinstance(each, Softcap) for each in modifications)
        launches = (
            15 + (0 if isinstance(inner.form, ScaledProduct) else 8) + (25 if problem.spec.mask is not None else 0)
        )
        return GpuWork(
            matrix=pairs * 4 * width * times,
            vector=pairs * changes * times,
            special=pairs * (1 + 2 * caps) * times,
            traffic=self.cost(problem).traffic,
            launches=launches,
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run FlexAttention, without reading anything back."""
        output = flex_attend(cast("TorchCall", call), compiled=not self.eager)
        return Result(arrays.cast(output, call.out_dtype))


def _has_flex() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) >= _FIRST_RELEASE
