"""Any normalizer with a fold, tile by tile in PyTorch, by the normalizer's own functions.

backward: weights of the tile from the summary;  dV += Wᵀ dO
          dS by the normalizer's `logit_gradient`;  query, key and parameters from dS, by autograd on the tile
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.equation import BoundCall, drop, side
from qkv.core.guard import zero_nonfinite
from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_loop import attend_rows, visible_tiles
from qkv.kernels.runtime.workers import Workspace
from qkv.kernels.tiled.logits.base import Gradients
from qkv.normalizers.base import Summary

__all__ = ["Folded"]

Limits = tuple[int, int]


@dataclass
class Folded:
    """A call, or some of its batch elements.

    Args:
        call: the call.
        cols: keys in a tile.
    """

    call: BoundCall
    cols: int

    def notes(self) -> tuple[str, ...]:
        """There are no guards."""
        return ()

    def fold(self, rows: Limits, room: Workspace) -> tuple[Tensor, Summary]:
        """Output of some queries, and the normalizer's summary of each."""
        return attend_rows(self.call, rows, self.cols)

    def unfold(
        self,
        rows: Limits,
        summary: Summary,
        row_dot: Tensor,
        gradient: Tensor,
        gradients: Gradients,
        room: Workspace,
        logits_wanted: bool,
    ) -> None:
        """Add the gradients that some queries give; arguments as in `Exponentials.unfold`."""
        import torch

        call = self.call
        value = call.value if call.finite_value else zero_nonfinite(call.value)
        held = len(call.score.arrays())
        for cols in visible_tiles(call, rows, self.cols, whole=True):
            tile, limits = call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
            score = call.score.slice(*limits)
            originals = [
                side(call.query, rows),
                side(call.key, cols),
                *score.arrays(),
                *call.normalizer.arrays(),
            ]
            leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in originals]
            with torch.enable_grad():
                score = score.replace_arrays(leaves[2 : 2 + held])
                normalizer = call.normalizer.replace_arrays(leaves[2 + held :])
                logits = call.logits(rows, cols, leaves[0], leaves[1], score)
                if logits is None:
                    continue
                prepared = normalizer.prepare(logits)
            constant = prepared.detach()
            weights = call.normalizer.tile_weights(constant, summary, tile)
            target = gradients.values(cols)
            target += (drop(weights, tile, call.dropout).mT @ gradient).sum_to_size(target.shape)
            if not (logits_wanted and normalizer.differentiable and prepared.requires_grad):
                continue
            of_weights = drop(gradient @ side(value, cols).mT, tile, call.dropout)
            of_logits = call.normalizer.logit_gradient(constant, weights, of_weights, row_dot, summary, tile)
            wanted = [x for x in leaves if x.requires_grad]
            found = iter(torch.autograd.grad(prepared, wanted, of_logits, allow_unused=True))
            targets = [
                gradients.queries(rows),
                gradients.keys(cols),
                *gradients.score.slice(*limits).arrays(),
                *gradients.normalizer.arrays(),
            ]
            for leaf, target in zip(leaves, targets, strict=True):
                more = next(found) if leaf.requires_grad else None
                if more is not None:
                    target += more
