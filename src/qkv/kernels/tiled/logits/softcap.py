"""Logits of a tile for inner products with a soft cap, cap · tanh(logit / cap), where the cap is a number."""

from __future__ import annotations

from dataclasses import replace

from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.microbenchmarks import LARGEST_FACTOR, FasterOps
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, TileLogits, scale_and_shift_
from qkv.kernels.tiled.logits.inner_product import InnerProductLogits

__all__ = ["SoftcapLogits"]


class SoftcapLogits(TileLogits):
    """Logits and gradients of tiles for a soft-capped inner product, whose cap is a number."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps) -> None:
        super().__init__(call, factor, ops)
        score = call.score
        assert score.inner is not None
        assert score.tanh_cap is not None
        self._cap = score.tanh_cap
        if self._cap > LARGEST_FACTOR:
            self.ops = replace(ops, sigmoid_tanh=False)
        self._inner = InnerProductLogits(replace(call, score=score.inner), 1.0 / self._cap, ops)

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
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
            assert gradients.score.inner is not None
            gradient.addcmul_(gradient, square, value=-1)
            inner_backward(gradient, replace(gradients, score=gradients.score.inner))

        return scale_and_shift_(tanh, self._cap * self.factor, shift), backward
