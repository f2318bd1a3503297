"""Logits of a tile for scores that add an offset, which does not depend on query and key, to an inner score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.gradients import leaves_of
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.autograd import accumulate_logits
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, TileLogits, tensors_of
from qkv.scores.wrapper import PointwiseScore

__all__ = ["BiasedLogits"]


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

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        """Return `factor` times the sum of inner logits and offset of a tile, minus `shift`."""
        tile, score = (
            self.call.tile.restrict(rows, cols),
            cast("PointwiseScore", self.call.score).slice(slice(*rows), slice(*cols)),
        )
        offset = cast("Tensor", score.offset(tile, self.call.value))
        return self.inner.logits(rows, cols, workspace, shift).add_(offset, alpha=self.factor)

    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:
        """Return the logits of a tile and a function that adds the gradients of the tile to a `Gradients` object.

        The gradients of the offset are computed by autograd.
        """
        import torch

        tile, limits = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = cast("PointwiseScore", self.call.score).slice(*limits)
        leaves = leaves_of(tensors_of(score))
        with torch.enable_grad():
            offset = cast("Tensor", score.replace_arrays(leaves).offset(tile, self.call.value))
        logits, inner_backward = self.inner.trace(rows, cols, workspace, shift)

        def backward(gradient: Float[Tensor, "*#batch q k"], gradients: Gradients) -> None:
            accumulate_logits(offset, gradient, leaves, tensors_of(gradients.score.slice(*limits)))
            inner_backward(gradient, replace(gradients, score=cast("PointwiseScore", gradients.score).score))

        return logits.add_(offset.detach(), alpha=self.factor), backward
