"""Execution of a call by PyTorch's fused attention: lifting, padding, and a check that the data is finite.

PyTorch's operator multiplies masked keys and values by 0, so that NaN reaches the output (0 · NaN is NaN), and it may
return 0 for a query of NaN. A result is therefore returned only if all inputs are finite: with a gradient the sum of
each input is checked, without a gradient the returned output and log-sum-exp (`sdpa.py`).
"""

from __future__ import annotations

import dataclasses
import typing

import torch

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.parts import expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Num, OutputTensor, Tensor
from qkv.kernels.fused.layout import Layout, Sides, layout_of
from qkv.kernels.fused.pair_bias import (
    BlockBias,
    OffsetsOf,
    block_rows,
    completes_lift,
    few_keys,
    inner_score,
    needs_bias,
    operator_bias,
    split_for_operator,
)
from qkv.kernels.fused.sdpa import FusedAttention, all_finite, attend, attend_public, operators, results_are_finite
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.differentiable_rows import DifferentiableRows
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size
from qkv.masks.base import Mask
from qkv.normalizers import Softmax
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.scores import Dot, Score

FINITE = ("all finite: fused",)
"""Guards of a call whose data is finite."""


def run(call: TorchCall, problem: Problem) -> Result | None:
    """Run a call by fused attention and return its result, or None if the data is not finite.

    Masked keys and values that are not finite are set to 0 first if possible.
    """
    fused = LiftedCall.of(call, problem)
    if problem.traced or problem.device.is_gpu:
        note = "traced: data not checked" if problem.traced else "on a GPU: data not checked"
        return Result(cast(fused.unchecked(), call.out_dtype), (), (note,))
    output, guards = fused.output(), FINITE
    keys = split_mask(call.mask, call.tile)[0]
    if output is None and keys is not None and (cleaned := _zero_masked(call, keys)) is not None:
        output, guards = LiftedCall.of(cleaned, problem).output(), ("finite but for masked keys: fused",)
    return None if output is None else Result(cast(output, call.out_dtype), (), guards)


def attend_finite(
    attention: FusedAttention, sides: Sides, needs_gradient: bool
) -> Float[Tensor, "b heads q width"] | None:
    """Return the output, or None if the output may be wrong because an input is not finite."""
    if operators(sides[2].device.type) is None:
        return attend_public(attention, sides, traced=False) if all_finite(sides) else None
    if needs_gradient:
        output, finite = attend(attention, sides)
        return output if finite else None
    if not attention.reveals_nonfinite(sides[2]):
        return attention.forward(attention.sides(sides))[0] if all_finite(sides) else None
    # Check the results instead of the inputs, because the results are smaller.
    output, log_sum_exp = attention.forward(attention.sides(sides))
    return output if results_are_finite(output, log_sum_exp) or all_finite(sides) else None


@dataclasses.dataclass(frozen=True)
class LiftedCall:
    """Call with lifted queries and keys, whose queries, keys and values are padded to one width."""

    call: TorchCall
    problem: Problem
    layout: Layout
    sides: Sides
    scale: float

    @classmethod
    def of(cls, call: TorchCall, problem: Problem) -> LiftedCall:
        """Lift the queries and keys of a call and pad all inputs to one width, with autocast disabled."""
        with no_autocast(call.value):
            query, key, scale = lift_sides(call, inner_score(call.score), completes_lift(problem))
            sides = [query, key, call.value]
            if call.tile_dtype is not None:
                sides = [typing.cast("Tensor", cast(x, call.out_dtype)) for x in sides]
            width = max(query.shape[-1], call.value.shape[-1])
            for n, x in enumerate(sides):
                if x.shape[-1] != width:
                    sides[n] = torch.nn.functional.pad(x, (0, width - x.shape[-1]))
        batch = call.tile.batch
        layout = layout_of(batch, *(tuple(x.shape[:-2]) for x in sides))
        if layout is None:
            # Lifting broadcast the inputs to batch axes of the score's arrays.
            sides = [x.expand((*batch, *x.shape[-2:])) for x in sides]
            layout = layout_of(batch, batch, batch, batch)
            assert layout is not None
        return cls(call, problem, layout, (sides[0], sides[1], sides[2]), scale)

    def output(self) -> OutputTensor | None:
        """Return the output, or None if the output may be wrong because an input is not finite."""
        needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in self.sides)
        output = attend_finite(self._attention(), self.sides, needs_gradient)
        return None if output is None else self.layout.output(output, self.call.value.shape[-1])

    def unchecked(self) -> OutputTensor:
        """Return the output without a check of the data, with masked keys and values set to 0.

        Under tracing the data cannot be checked, and on a GPU a check would wait for all earlier operations.
        """
        keys, offset, _ = split_mask(self.call.mask, self.call.tile)
        call, poison = self.call, None
        if keys is not None:
            call = _zero_masked(call, keys) or call
        if offset is not None:
            call, poison = _zero_nonfinite(call, offset)
        fused = self if call is self.call else LiftedCall.of(call, self.problem)
        output = attend_public(fused._attention(), fused.sides, bool(self.problem.traced))
        output = fused.layout.output(output, self.call.value.shape[-1])
        if not self.problem.traced:
            # Operators may return 0 for a query of NaN. The product is NaN for such queries, and 0 for others.
            constant = fused.sides[0].detach()
            nan = constant @ constant.new_zeros((constant.shape[-1], 1))
            poison = nan if poison is None else poison + nan
        return output if poison is None else output + poison

    def _attention(self) -> FusedAttention:
        call, layout = self.call, self.layout
        temperature = typing.cast("float", call.normalizer.temperature)
        differentiable = DoubleBackward(self.problem, call.tile, call.mask, self.scale, call.score, temperature)
        q, on_cpu = call.tile.q_total, operators(call.value.device.type) is not None and not self.problem.traced
        rows = block_rows(self.problem) if on_cpu and needs_bias(self.problem) else q
        mask, offset = (call.mask, None) if rows < q else split_for_operator(call.mask, call.score, call.tile)
        if rows < q or (on_cpu and few_keys(mask, offset, call.tile) is not None):
            blocks = BlockBias(mask, call.score, temperature, call.tile, layout, rows)
            return FusedAttention(layout, self.scale, offset, blocks, differentiable)
        bias = operator_bias(mask, call.score, temperature, call.tile, self.sides[2], layout)
        return FusedAttention(layout, self.scale, offset, bias, differentiable)


@dataclasses.dataclass(frozen=True)
class DoubleBackward:
    """Function that returns differentiable gradients of a lifted call, computed in row blocks.

    Attributes:
        problem: the problem of the call.
        tile: the tile of the call.
        mask: the mask of the call.
        scale: factor of the inner products of lifted queries and keys.
        score: the score of the call, for the offsets that are added to these products.
        temperature: temperature of softmax.
    """

    problem: Problem
    tile: Tile
    mask: Mask | None
    scale: float
    score: Score
    temperature: Array | float

    def __call__(self, sides: Sides, gradient: Float[Tensor, "b heads q width"]) -> list[Float[Tensor, "*_"] | None]:
        """Return the differentiable gradients of query, key and value, given the gradient of the output."""
        softmax, score = Softmax(1.0 / self.scale), typing.cast("Score", Dot())
        if inner_score(self.score) is not self.score:
            score = OffsetsOf(Dot(), self.score, self.temperature, self.scale)
        call = TorchCall(*sides, score, softmax, self.mask, self.tile, 0.0, sides[2].dtype)
        rows = row_block_size(self.problem, ROW_BLOCK_BUDGET, row_block_arrays(self.problem))
        gradient = gradient.reshape((*self.tile.batch, *gradient.shape[-2:]))
        tensors = [*sides, *typing.cast("tuple[Tensor, ...]", score.arrays())]
        return DifferentiableRows(call, (), rows).double_backward(tensors, [gradient])[:3]


def lift_sides(
    call: BoundCall, score: Score, complete: bool = False
) -> tuple[Num[Tensor, "*#batch q lifted"], Num[Tensor, "*#batch k lifted"], float]:
    """Return the lifted queries, the lifted keys, and the factor of their inner product.

    The factor or the queries include the temperature.
    """
    centre = score.centre(call.key)
    # The reference point is computed once, because queries and keys must be shifted by the same vector.
    tile = call.tile if centre is None else dataclasses.replace(call.tile, centre=centre)
    *lifted, scale = score.scaled_lift(call.query, call.key, tile, complete)
    query, key = typing.cast("list[Tensor]", lifted)
    if scale < 0:  # the operators multiply the −inf of a causal mask by the factor
        query, scale = -query, -scale
    temperature = call.normalizer.temperature
    if isinstance(temperature, (int, float)):
        return query, key, scale / temperature
    assert temperature is not None  # `FusedKernel.limits` refuses such normalizers
    return query / typing.cast("Tensor", expand_to_pairs(temperature)), key, scale


def _zero_masked(call: TorchCall, keys: Mask) -> TorchCall | None:
    """Return a call with masked keys and values set to 0, or None if the mask differs where a key is shared.

    A key may be shared by several batch elements, which must then have the same mask.
    """
    allowed = typing.cast("Tensor", keys.allowed(call.tile, call.value)).mT
    own = allowed.shape[:-2]
    for x in (call.key, call.value):
        shape = (1,) * (len(own) - x.ndim + 2) + tuple(x.shape[:-2])
        if any(n not in (1, m) for n, m in zip(own, shape[len(shape) - len(own) :], strict=True)):
            return None
    key, value = (torch.where(allowed, x, 0.0) for x in (call.key, call.value))
    return dataclasses.replace(call, key=key.reshape(call.key.shape), value=value.reshape(call.value.shape))


def _zero_nonfinite(call: TorchCall, offset: int) -> tuple[TorchCall, Float[Tensor, "*#batch q 1"]]:
    """Return a call with non-finite keys and values set to 0, and a tensor to add to the output.

    The tensor is NaN for each query that may attend to a non-finite key or value, and 0 for other queries.

    Args:
        call: the call, with a causal mask.
        offset: position of query 0, at least 0.
    """
    key, value = (torch.where(x.isfinite(), x, 0.0) for x in (call.key, call.value))
    nan = (call.key.detach() * 0).sum(-1) + (call.value.detach() * 0).sum(-1)
    poison, q = torch.cumsum(nan, dim=-1)[..., offset:], call.query.shape[-2]
    if poison.shape[-1] < q:
        last = poison[..., -1:].expand((*poison.shape[:-1], q - poison.shape[-1]))
        poison = torch.cat([poison, last], dim=-1)
    return dataclasses.replace(call, key=key, value=value), poison[..., :q, None]
