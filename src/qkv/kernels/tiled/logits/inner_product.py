"""Logits of a tile for scores that are inner products of the projections of query and key."""

from __future__ import annotations

from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.microbenchmarks import FasterOps, add_matmul_
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, RowSlices, TileLogits, scale_and_shift_

__all__ = ["InnerProductLogits"]


class InnerProductLogits(TileLogits):
    """Logits and gradients of tiles for a score that is an inner product of projections."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps) -> None:
        super().__init__(call, factor, ops)
        self._queries, self._keys = RowSlices(call.query), RowSlices(call.key)
        self._scaled_queries = self._queries if factor == 1 else RowSlices(call.query * factor)

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        product = self.ops.matmul_nt(self._scaled_queries(rows), self._keys(cols), workspace, "logits")
        return scale_and_shift_(product, 1.0, shift)

    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:
        """Return the logits of a tile and a function that adds the gradients of the tile to a `Gradients` object.

        The gradients are dL += dS R and dR += dSᵀ L.
        """

        def backward(gradient: Float[Tensor, "*#batch q k"], gradients: Gradients) -> None:
            add_matmul_(gradients.queries(rows), gradient, self._keys(cols))
            add_matmul_(gradients.keys(cols), gradient.mT, self._queries(rows))

        return self.logits(rows, cols, workspace, shift), backward
