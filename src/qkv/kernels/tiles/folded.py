"""Any normalizer with a fold, tile by tile in PyTorch, by the normalizer's own functions.

backward: weights of the tile from the summary;  dV += Wᵀ dO
          dS by the normalizer's `logit_gradient`;  query, key and parameters from dS, by autograd on the tile
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import Array
from qkv.core.equation import Ready, drop, side
from qkv.core.guard import finite
from qkv.kernels.fold import fold_rows, reached
from qkv.kernels.tiles.pairs import Gradients
from qkv.kernels.tiles.workers import Room
from qkv.normalizers.base import Summary

__all__ = ["Folded"]

Limits = tuple[int, int]


@dataclass
class Folded:
    """A call, or some of its batch elements.

    Args:
        ready: the call.
        cols: keys in a tile.
    """

    ready: Ready
    cols: int

    def notes(self) -> tuple[str, ...]:
        """There are no guards."""
        return ()

    def fold(self, rows: Limits, room: Room) -> tuple[Array, Summary]:
        """Output of some queries, and the normalizer's summary of each."""
        return fold_rows(self.ready, rows, self.cols)

    def unfold(
        self,
        rows: Limits,
        summary: Summary,
        row_dot: Array,
        gradient: Array,
        gradients: Gradients,
        room: Room,
        logits_wanted: bool,
    ) -> None:
        """Add the gradients that some queries give; arguments as in `Exponentials.unfold`."""
        import torch

        ready = self.ready
        value = ready.value if ready.clean_value else finite(ready.value)
        held = len(ready.score.arrays())
        for cols in reached(ready, rows, self.cols, whole=True):
            place, limits = ready.place.cut(rows, cols), (slice(*rows), slice(*cols))
            score = ready.score.slice(*limits)
            originals = [
                side(ready.query, rows),
                side(ready.key, cols),
                *score.arrays(),
                *ready.normalizer.arrays(),
            ]
            leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in originals]
            with torch.enable_grad():
                score = score.replace_arrays(leaves[2 : 2 + held])
                normalizer = ready.normalizer.replace_arrays(leaves[2 + held :])
                logits = ready.tile(rows, cols, leaves[0], leaves[1], score)
                if logits is None:
                    continue
                prepared = normalizer.prepare(logits)
            constant = prepared.detach()
            weights = ready.normalizer.tile_weights(constant, summary, place)
            target = gradients.values(cols)
            target += (drop(weights, place, ready.dropout).mT @ gradient).sum_to_size(target.shape)
            if not (logits_wanted and normalizer.trains_logits and prepared.requires_grad):
                continue
            of_weights = drop(gradient @ side(value, cols).mT, place, ready.dropout)
            of_logits = ready.normalizer.logit_gradient(
                constant, weights, of_weights, row_dot, summary, place
            )
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
