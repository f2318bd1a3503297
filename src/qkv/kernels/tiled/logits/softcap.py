"""Logits of a tile for inner products with a soft cap, cap · tanh(logit / cap), where the cap is a number."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.microbenchmarks import LARGEST_FACTOR, FasterOps
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, TileLogits, scale_and_shift_
from qkv.kernels.tiled.logits.inner_product import InnerProductLogits
from qkv.scores.wrapper import PointwiseScore

__all__ = ["SoftcapLogits"]


class SoftcapLogits(TileLogits):
    """Logits and gradients of tiles for the inner products of a call with a soft cap, which is a number."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps, cap: float) -> None:
        super().__init__(call, factor, ops if cap <= LARGEST_FACTOR else replace(ops, sigmoid_tanh=False))
        self._cap = cap
        self._inner = InnerProductLogits(call, 1.0 / cap, ops)

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        """Return `factor` times the soft-capped logits of a tile, minus `shift`."""
        tanh = self.ops.tanh_(self._inner.logits(rows, cols, workspace))
        return scale_and_shift_(tanh, self._cap * self.factor, shift)

    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:
        """Return the logits of a tile and a function that adds the gradients of the tile to a `Gradients` object.

        The gradient of the inner logits is (1 − tanh²) dS.
        """
        import torch

        inner, inner_backward = self._inner.trace(rows, cols, workspace)
        tanh = self.ops.tanh_(inner)
        square = torch.mul(tanh, tanh, out=workspace.take("square of tanh", tuple(tanh.shape), tanh))

        def backward(gradient: Float[Tensor, "*#batch q k"], gradients: Gradients) -> None:
            gradient.addcmul_(gradient, square, value=-1)
            inner_backward(gradient, replace(gradients, score=cast("PointwiseScore", gradients.score).score))

        return scale_and_shift_(tanh, self._cap * self.factor, shift), backward
