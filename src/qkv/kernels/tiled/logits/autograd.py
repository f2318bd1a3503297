"""Logits of a tile for any score, computed by the score's method `logits` and differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from qkv.core.equation import take_range
from qkv.core.typing import Float, Num, Shaped, Tensor
from qkv.kernels.runtime.gradients import accumulate, leaves_of
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, TileLogits, scale_and_shift_, tensors_of
from qkv.scores.base import Score

__all__ = ["AutogradLogits", "accumulate_logits"]


class AutogradLogits(TileLogits):
    """Logits and gradients of tiles for scores without a specialized implementation, by autograd."""

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        """Return `factor` times the logits of a tile, minus `shift`, in a buffer of the workspace.

        The score may return a view of another array, which must not be overwritten.
        """
        tile, score = self.call.tile.restrict(rows, cols), self.call.score.slice(slice(*rows), slice(*cols))
        logits = self._function(score)(take_range(self.call.query, rows), take_range(self.call.key, cols), tile)
        return self._copy(logits, rows, cols, workspace, shift)

    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:
        """Return the logits of a tile and a function that adds the gradients of the tile to a `Gradients` object.

        The function holds the autograd graph of the tile.
        """
        import torch

        tile, limits = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = self.call.score.slice(*limits)
        leaves = leaves_of([take_range(self.call.query, rows), take_range(self.call.key, cols), *tensors_of(score)])
        with torch.enable_grad():
            traced = self._function(score.replace_arrays(leaves[2:]))(leaves[0], leaves[1], tile)

        def backward(gradient: Float[Tensor, "*#batch q k"], gradients: Gradients) -> None:
            sums = [gradients.queries(rows), gradients.keys(cols), *tensors_of(gradients.score.slice(*limits))]
            accumulate_logits(traced, gradient, leaves, sums)

        return self._copy(traced.detach(), rows, cols, workspace, shift), backward

    def _function(self, score: Score) -> Callable[..., Num[Tensor, "*#batch #q #k"]]:
        return cast("Callable[..., Tensor]", score.projected_logits if self.call.projected else score.logits)

    def _copy(
        self,
        logits: Num[Tensor, "*#batch #q #k"],
        rows: Limits,
        cols: Limits,
        workspace: Workspace,
        shift: Float[Tensor, "*#batch q 1"] | None,
    ) -> Float[Tensor, "*#batch q k"]:
        import torch

        shape = (*self.call.tile.batch, rows[1] - rows[0], cols[1] - cols[0])
        out = workspace.take("logits", shape, self.call.value)
        if logits.dtype == out.dtype and logits.shape == out.shape:
            torch.mul(logits, self.factor, out=out)
            return out if shift is None else out.sub_(shift)
        return scale_and_shift_(out.copy_(logits), self.factor, shift)


def accumulate_logits(
    logits: Num[Tensor, "*#batch #q #k"],
    gradient: Float[Tensor, "*#batch q k"],
    leaves: Sequence[Shaped[Tensor, "*_"]],
    sums: Sequence[Shaped[Tensor, "*_"]],
) -> None:
    """Add the gradients of `leaves` to `sums`, computed by autograd from the gradient of the logits.

    The logits may broadcast to the tile. If they require no gradient, nothing is added.
    """
    if logits.requires_grad:
        accumulate([logits], [gradient.sum_to_size(logits.shape).to(logits.dtype)], leaves, sums)
