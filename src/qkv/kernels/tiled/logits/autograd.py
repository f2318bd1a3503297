"""Logits of any score on a tile: the score's own function, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from qkv.core.equation import side
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, TileLogits, scale_and_shift_, tensors_of
from qkv.scores.base import Score

__all__ = ["AutogradLogits", "add_autograd_gradients", "float_leaves"]


class AutogradLogits(TileLogits):
    """Logits of a score that has no implementation of its own."""

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        """Return a copy of the score's logits, which may be a view of another array."""
        tile, score = self.call.tile.restrict(rows, cols), self.call.score.slice(slice(*rows), slice(*cols))
        logits = self._function(score)(side(self.call.query, rows), side(self.call.key, cols), tile)
        return self._copy(logits, rows, cols, workspace, shift)

    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:
        """Return the logits and their backward function, which holds the autograd graph of the tile."""
        import torch

        tile, limits = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = self.call.score.slice(*limits)
        leaves = float_leaves([side(self.call.query, rows), side(self.call.key, cols), *tensors_of(score)])
        with torch.enable_grad():
            traced = self._function(score.replace_arrays(leaves[2:]))(leaves[0], leaves[1], tile)

        def backward(gradient: Tensor, gradients: Gradients) -> None:
            if traced.requires_grad:
                arrays = tensors_of(gradients.score.slice(*limits))
                targets = [gradients.queries(rows), gradients.keys(cols), *arrays]
                add_autograd_gradients(traced, gradient, leaves, targets)

        return self._copy(traced.detach(), rows, cols, workspace, shift), backward

    def _function(self, score: Score) -> Callable[..., Tensor]:
        return cast("Callable[..., Tensor]", score.projected_logits if self.call.projected else score.logits)

    def _copy(self, logits: Tensor, rows: Limits, cols: Limits, workspace: Workspace, shift: Tensor | None) -> Tensor:
        import torch

        shape = (*self.call.tile.batch, rows[1] - rows[0], cols[1] - cols[0])
        out = workspace.take("logits", shape, self.call.value)
        if logits.dtype == out.dtype and logits.shape == out.shape:
            if shift is None:
                return torch.mul(logits, self.factor, out=out)
            return torch.add(-shift, logits, alpha=self.factor, out=out)
        return scale_and_shift_(out.copy_(logits), self.factor, shift)


def float_leaves(arrays: Sequence[Tensor]) -> list[Tensor]:
    """Return a leaf that requires a gradient for each floating-point array; other arrays are returned as they are."""
    return [x.detach().requires_grad_() if x.is_floating_point() else x for x in arrays]


def add_autograd_gradients(
    output: Tensor, gradient: Tensor, leaves: Sequence[Tensor], targets: Sequence[Tensor]
) -> None:
    """Add to each target the gradient of its leaf, given the gradient of `output`."""
    import torch

    needed = [x for x in leaves if x.requires_grad]
    gradient = gradient.sum_to_size(output.shape).to(output.dtype)
    gradients = iter(torch.autograd.grad(output, needed, gradient, allow_unused=True))
    for leaf, target in zip(leaves, targets, strict=True):
        more = next(gradients) if leaf.requires_grad else None
        if more is not None:
            target += more
