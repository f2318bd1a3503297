"""Calls of scaled dot products by PyTorch's fused attention with little overhead, for calls that are made repeatedly.

Everything that does not depend on data is computed when the plan of a call is cached: the layout of the batch axes,
the operator, the scale, and which axis of the mask belongs to the keys.
"""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import torch

from qkv.core.equation import BoundCall, TorchCall
from qkv.core.tile import Tile
from qkv.core.typing import Array, Int, Tensor
from qkv.kernels.fused.call import FINITE, DoubleBackward, LiftedCall, attend_finite
from qkv.kernels.fused.layout import layout_of
from qkv.kernels.fused.pair_bias import (
    BlockBias,
    block_rows,
    few_keys,
    inner_score,
    needs_bias,
    operator_bias,
    split_for_operator,
)
from qkv.kernels.fused.sdpa import FusedAttention, operators, results_are_finite
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.kernel_protocol import PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.scores import Score
from qkv.scores.forms import ScaledProduct


def prepare_call(problem: Problem) -> PreparedCall | None:
    """Return a function that runs a call on a CPU, or None if the mask or the widths are not supported.

    Supported are scaled dot products of queries, keys and values of the same width, without a mask or with a causal
    mask, or with any mask and offsets, and all scores that are lifted.
    """
    if problem.device.is_gpu or problem.traced:
        return None
    axes, score, tile = problem.axes, inner_score(problem.score), problem.tile
    form = score.form
    if not isinstance(form, ScaledProduct) or (needs_bias(problem) and block_rows(problem) < axes.q):
        return _prepare_lifted(problem)
    keys, offset = split_for_operator(problem.spec.mask, problem.score, tile)
    has_bias = keys is not None or score is not problem.score
    equal = axes.query_width == axes.key_width == axes.value_width
    temperature = problem.normalizer.temperature
    if offset or score.arrays() or not equal:
        return None
    layout = layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2])
    if layout is None or not isinstance(temperature, (int, float)) or (found := operators("cpu")) is None:
        return None
    one = torch.ones((1, axes.query_width), dtype=getattr(torch, problem.dtype), device="cpu")
    scale, width = form.factor(axes.query_width) / temperature, axes.value_width
    if scale < 0:
        return _prepare_lifted(problem)
    gradient, bounds = problem.gradient, (one.new_zeros(()), one.new_full((), -math.inf))
    identity = layout.is_identity(axes.query, axes.key, axes.value)
    if keys is not None and all(type(part).__module__.startswith("qkv.masks.") for part in keys.parts()):
        tile = TileOfCalls(*[getattr(tile, field.name) for field in dataclasses.fields(tile)])
    double_backward = DoubleBackward(problem, tile, problem.spec.mask, scale, problem.score, temperature)
    fixed = FusedAttention(layout, scale, offset, None, double_backward, identity)
    operator, causal = found[0], offset is not None
    # Arrays that already have the operator's four axes, and whose results reveal that an array is not finite.
    simple = not gradient and identity and fixed.reveals_nonfinite(one)

    def run(
        query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
    ) -> Result | None:
        sides = cast("tuple[Tensor, Tensor, Tensor]", (query, key, value))
        if not sides[2].is_cpu:
            return None
        bias = own = few = None
        if has_bias:
            own = mask if mask is None or offset is None else split_mask(mask, tile)[0]
            few = few_keys(own, offset, tile)
            if simple or few is None:  # otherwise `BlockBias` computes it for these keys alone
                bias = operator_bias(own, score, temperature, tile, sides[2], layout, bounds)
        if simple and sides[0].stride(-1) == sides[1].stride(-1) == sides[2].stride(-1) == 1:
            if few is not None and bias is not None:
                key, value, bias = key[..., few, :], value[..., few, :], bias[..., few]
            output, log_sum_exp = operator(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
            if results_are_finite(output, log_sum_exp):
                return Result(output, (), FINITE)
        attention = fixed
        if has_bias:
            differentiable = DoubleBackward(problem, tile, mask, scale, score, temperature)
            block = bias if few is None else BlockBias(own, score, temperature, tile, layout, axes.q)
            attention = FusedAttention(layout, scale, offset, block, differentiable, identity)
        output = attend_finite(attention, sides, gradient)
        return None if output is None else Result(layout.output(output, width), (), FINITE)

    return run


class TileOfCalls(Tile):
    """Tile of a whole call on a CPU that computes the positions of its keys once; masks must not change them."""

    __slots__ = ("_key_positions",)
    _key_positions: Int[Tensor, " k"]

    def key_positions(self, reference: Array) -> Int[Array, " k"]:
        try:
            return self._key_positions
        except AttributeError:
            self._key_positions = cast("Tensor", super().key_positions(reference))
            return self._key_positions


def _prepare_lifted(problem: Problem) -> PreparedCall:
    tile = problem.tile

    def run(
        query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
    ) -> Result | None:
        call = BoundCall(query, key, value, score, normalizer, mask, tile, 0.0, value.dtype)
        output = LiftedCall.of(cast("TorchCall", call), problem).output()
        return None if output is None else Result(output, (), FINITE)

    return run
