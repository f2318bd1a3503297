"""Forward and backward pass over tiles in PyTorch, for any normalizer that can be accumulated tile by tile.

backward: weights W of the tile from the summary;  dV += Wᵀ dO
          dS by the normalizer's `logit_gradient`;  gradients of query, key and arrays from dS, by autograd on the tile
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from qkv.core.equation import TorchCall, apply_dropout, take_range
from qkv.core.guard import zero_nonfinite
from qkv.core.online_softmax import PartialResult
from qkv.core.typing import Float, Num, Tensor
from qkv.kernels.runtime.gradients import block_tensors, leaves_of, traced_logits
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, partial_rows, visible_tiles
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.autograd import accumulate_logits
from qkv.kernels.tiled.logits.base import Gradients

__all__ = ["GenericTiles"]


@dataclass
class GenericTiles:
    """Forward and backward pass over tiles for any normalizer that can be accumulated tile by tile.

    Args:
        call: the call, or some of its batch elements.
        cols: number of keys in a tile.
    """

    call: TorchCall
    cols: int

    def guard_notes(self) -> tuple[str, ...]:
        """Return an empty tuple, because no fast path of this class depends on the data."""
        return ()

    def forward(self, rows: Limits, workspace: Workspace) -> tuple[Num[Tensor, "*batch q _"], ...]:
        """Return the output of a range of queries, followed by the arrays of the normalizer's summary."""
        output, summary = attend_rows(self.call, rows, self.cols)
        return cast("tuple[Tensor, ...]", (output, *summary))

    def partial(self, rows: Limits, workspace: Workspace) -> PartialResult:
        """Return the partial result of a range of queries over all keys of the call."""
        return partial_rows(self.call, rows, self.cols)

    def backward(
        self,
        rows: Limits,
        summary: tuple[Num[Tensor, "*batch q _"], ...],
        row_dot: Float[Tensor, "*batch q 1"],
        gradient: Float[Tensor, "*batch q value_width"],
        gradients: Gradients,
        workspace: Workspace,
        logits_needed: bool,
    ) -> None:
        """Add the gradients from a range of queries to `gradients`, as `SoftmaxTiles.backward` does."""
        import torch

        call = self.call
        value = call.value if call.finite_value else cast("Tensor", zero_nonfinite(call.value))
        for cols in visible_tiles(call, rows, self.cols, aligned=True):
            tile, leaves = call.tile.restrict(rows, cols), leaves_of(block_tensors(call, rows, cols))
            with torch.enable_grad():
                logits, normalizer = traced_logits(call, rows, cols, leaves)
                if logits is None:
                    continue
                prepared = cast("Tensor", normalizer.prepare(logits))
            constant = prepared.detach()
            weights = cast("Tensor", call.normalizer.tile_weights(constant, summary, tile))
            target = gradients.values(cols)
            target += (apply_dropout(weights, tile, call.dropout).mT @ gradient).sum_to_size(target.shape)
            if not (logits_needed and normalizer.differentiable and prepared.requires_grad):
                continue
            d_weights = apply_dropout(gradient @ take_range(value, cols).mT, tile, call.dropout)
            d_logits = cast(
                "Tensor", call.normalizer.logit_gradient(constant, weights, d_weights, row_dot, summary, tile)
            )
            accumulate_logits(prepared, d_logits, leaves, block_tensors(gradients, rows, cols))
