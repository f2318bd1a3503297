"""Logits of a tile from inner products, with a soft cap, from distances, or of any score with an offset."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch

from qkv.core.distances import distance_gradients, pair_distances
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.faster_ops import LARGEST_FACTOR, FasterOps, add_matmul_
from qkv.kernels.runtime.gradients import leaves_of
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import (
    Gradients,
    RowSlices,
    Shift,
    TileLogits,
    TileTensor,
    Traced,
    accumulate_logits,
    scale_and_shift_,
    tensors_of,
)
from qkv.scores.wrapper import PointwiseScore


class InnerProductLogits(TileLogits):
    """Logits and gradients of tiles for a score that is an inner product of projections."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps) -> None:
        super().__init__(call, factor, ops)
        self._queries, self._keys = RowSlices(call.query), RowSlices(call.key)
        self._scaled_queries = self._queries if factor == 1 else RowSlices(call.query * factor)

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        product = self.ops.matmul_nt(self._scaled_queries(rows), self._keys(cols), workspace, "logits")
        return scale_and_shift_(product, 1.0, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        # The gradients are dL += dS R and dR += dSᵀ L.

        def backward(gradient: TileTensor, gradients: Gradients) -> None:
            add_matmul_(gradients.queries(rows), gradient, self._keys(cols))
            add_matmul_(gradients.keys(cols), gradient.mT, self._queries(rows))

        return self.logits(rows, cols, workspace, shift), backward


class SoftcapLogits(TileLogits):
    """Logits and gradients of tiles for the inner products of a call with a soft cap, which is a number."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps, cap: float) -> None:
        super().__init__(call, factor, ops if cap <= LARGEST_FACTOR else replace(ops, sigmoid_tanh=False))
        self._cap = cap
        self._inner = InnerProductLogits(call, 1.0 / cap, ops)

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        tanh = self.ops.tanh_(self._inner.logits(rows, cols, workspace))
        return scale_and_shift_(tanh, self._cap * self.factor, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        # The gradient of the inner logits is (1 − tanh²) dS.
        inner, inner_backward = self._inner.trace(rows, cols, workspace)
        tanh = self.ops.tanh_(inner)
        square = torch.mul(tanh, tanh, out=workspace.take("square of tanh", tuple(tanh.shape), tanh))

        def backward(gradient: TileTensor, gradients: Gradients) -> None:
            gradient.addcmul_(gradient, square, value=-1)
            inner_backward(gradient, replace(gradients, score=cast("PointwiseScore", gradients.score).score))

        return scale_and_shift_(tanh, self._cap * self.factor, shift), backward


class DistanceLogits(TileLogits):
    """Logits −a ‖q − k‖ and gradients of tiles, with one number a; queries and keys have the same batch axes."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps, slope: float) -> None:
        super().__init__(call, factor, ops)
        self._slope = slope
        count = math.prod(call.query.shape[:-2])
        self._queries, self._keys = (RowSlices(x.reshape(count, *x.shape[-2:])) for x in (call.query, call.key))

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        found, _ = pair_distances(self._queries(rows), self._keys(cols))
        return scale_and_shift_(self._with_batch(found), -self._slope * self.factor, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        sides = self._queries(rows), self._keys(cols)
        found, near = pair_distances(*sides)

        def backward(gradient: TileTensor, gradients: Gradients) -> None:
            results = distance_gradients(*sides, found, near, gradient.reshape(found.shape).mul_(-self._slope))
            for total, result in zip((gradients.queries(rows), gradients.keys(cols)), results, strict=True):
                total.add_(self._with_batch(result))

        scaled = torch.mul(found, -self._slope * self.factor, out=workspace.take("logits", tuple(found.shape), found))
        return scale_and_shift_(self._with_batch(scaled), 1.0, shift), backward

    def _with_batch(self, x: Float[Tensor, "elements n m"]) -> Float[Tensor, "*batch n m"]:
        return x.view(*self.call.query.shape[:-2], *x.shape[1:])


@dataclass
class BiasedLogits(TileLogits):
    """Logits and gradients of tiles for a score that adds an offset to the logits of an inner score.

    Args:
        call: the call.
        factor: factor by which logits are multiplied.
        ops: the faster of equivalent operations on this machine.
        inner: implementation of the logits of the inner score, with the same factor.
    """

    inner: TileLogits

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        tile, score = (
            self.call.tile.restrict(rows, cols),
            cast("PointwiseScore", self.call.score).slice(slice(*rows), slice(*cols)),
        )
        offset = cast("Tensor", score.offset(tile, self.call.value))
        # The shift is subtracted last, so that logits round as where it was computed.
        logits = self.inner.logits(rows, cols, workspace)
        return scale_and_shift_(logits.add_(offset, alpha=self.factor), 1.0, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        # The gradients of the offset are computed by autograd.
        tile, limits = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = cast("PointwiseScore", self.call.score).slice(*limits)
        leaves = leaves_of(tensors_of(score))
        with torch.enable_grad():
            offset = cast("Tensor", score.replace_arrays(leaves).offset(tile, self.call.value))
        logits, inner_backward = self.inner.trace(rows, cols, workspace)

        def backward(gradient: TileTensor, gradients: Gradients) -> None:
            accumulate_logits(offset, gradient, leaves, tensors_of(gradients.score.slice(*limits)))
            inner_backward(gradient, replace(gradients, score=cast("PointwiseScore", gradients.score).score))

        return scale_and_shift_(logits.add_(offset.detach(), alpha=self.factor), 1.0, shift), backward
