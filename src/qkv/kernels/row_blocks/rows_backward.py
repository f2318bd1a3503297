"""Backward of whole rows (`rows.py`): of the keys that were kept, or of a strip weighed whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qkv.core.batch import BatchIndex, take_batch
from qkv.core.equation import BoundCall, drop, side
from qkv.core.typing import Tensor
from qkv.kernels.row_blocks.candidates import Candidates, columns_allowed, strip_logits
from qkv.kernels.runtime.tile_loop import row_weights

__all__ = ["Backward", "joined", "kept_weights", "sum_of_rows"]

Limits = tuple[int, int]

TOGETHER = 2**15
"""Kept keys whose gradient is taken at once: the gradient of all keys is added up as seldom as that."""


def kept_weights(call: BoundCall, kept: Candidates, logits: Any, rows: Limits) -> Any:
    """Weights of the kept keys, from logits that stand in for theirs."""
    normalizer, tile = call.normalizer, call.tile.restrict(rows, (0, call.tile.k_total))
    if normalizer.power is not None:
        return row_weights(normalizer, logits, tile)
    # Where just the best were kept, nothing is left to choose.
    normalizer = normalizer.simplify(logits.shape[-1])
    return normalizer.candidate_weights(logits, logits if kept.ranks is kept.logits else kept.ranks, tile)


def sum_of_rows(index: Any, table: Any, weights: Any) -> Any:
    """Σ_s weights_is table[index_is], without an array of all those rows."""
    import torch

    return torch.nn.functional.embedding_bag(index, table, per_sample_weights=weights, mode="sum")


@dataclass(frozen=True)
class Backward:
    """Gradients of a call's tensors.

    Attributes:
        call: the `Rows` of the forward pass.
        tensors: query, key, value, the score's and the normalizer's arrays.
        gradient: of the output.
        wanted: which of the tensors need one.
    """

    forward: Any
    tensors: Sequence[Tensor]
    gradient: Tensor
    wanted: Sequence[bool]

    @cached_property
    def held(self) -> int:
        """How many arrays the score holds."""
        return len(self.forward.call.score.arrays())

    @cached_property
    def grads(self) -> list[Tensor]:
        """Filled by `run`."""
        import torch

        return [torch.zeros_like(x) for x in self.tensors]

    @cached_property
    def call(self) -> BoundCall:
        """The call, of the tensors."""
        asked: BoundCall = self.forward.call
        return asked.with_arrays([x.detach() for x in self.tensors])

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """Score and normalizer that hold the gradients: cut to a tile, their arrays are views."""
        arrays = self.grads[3:]
        score, normalizer = self.call.score, self.call.normalizer
        return score.replace_arrays(arrays[: self.held]), normalizer.replace_arrays(arrays[self.held :])

    def run(self, kept: list[Candidates | None]) -> list[Tensor]:
        """All gradients."""
        room = self.forward.room()
        waiting: list[tuple[Limits, Candidates]] = []
        last: BatchIndex | None = None
        for (index, limits), of_strip in zip(self.forward.places(), kept, strict=True):
            count = sum(k.index.numel() for _, k in waiting)
            if waiting and (of_strip is None or index != last or count >= TOGETHER):
                Element(self, last or ()).kept(waiting, room)
                waiting = []
            last = index
            if of_strip is None:
                Element(self, index).whole(limits, room)
            else:
                waiting.append((limits, of_strip))
        if waiting:
            Element(self, last or ()).kept(waiting, room)
        return self.grads


class Element:
    """Gradients of one batch element, added to those of the call."""

    def __init__(self, backward: Backward, index: BatchIndex) -> None:
        self.call = backward.call.select_batch(index)
        self.query, self.key, self.value = (take_batch(x, index, 2) for x in backward.grads[:3])
        self.score, self.normalizer = (part.select_batch(index) for part in backward.parts)
        self.gradient = take_batch(backward.gradient, index, 2)
        self.wanted, self.tile_keys, self.held = backward.wanted, backward.forward.tile_keys, backward.held
        self.product = self.call.projected and self.call.score.is_product

    def kept(self, strips: list[tuple[Limits, Candidates]], room: Any) -> None:
        """Of consecutive strips whose kept keys are known."""
        import torch

        call, rows = self.call, (strips[0][0][0], strips[-1][0][1])
        kept = joined([of_strip for _, of_strip in strips])
        gradient = side(self.gradient, rows)
        tile = call.tile.restrict(rows, (0, call.tile.k_total))
        if not call.normalizer.differentiable:
            weights, leaves = kept.logits, []
        else:
            leaves = [kept.logits.detach().requires_grad_(), *self._normalizer_leaves()]
            of_kept = Candidates(kept.index, leaves[0], leaves[0] if kept.ranks is kept.logits else kept.ranks)
            with torch.enable_grad():
                normalizer = call.normalizer.replace_arrays(leaves[1:])
                weights = kept_weights(replace(call, normalizer=normalizer), of_kept, leaves[0], rows)
        with torch.enable_grad():
            dropped = drop(weights, tile, call.dropout, keys=kept.index)
            value, weight = call.value.detach().requires_grad_(), dropped.detach().requires_grad_()
            output = sum_of_rows(kept.index, value, weight)
        more, weight_gradient = torch.autograd.grad(output, (value, weight), gradient)
        self.value += more
        del more, output
        logit_gradient = self._through_weights(dropped, leaves, weight_gradient)
        if logit_gradient is None:
            return
        if self.product:
            with torch.enable_grad():
                right = call.key.detach().requires_grad_()
                left_gradient = sum_of_rows(kept.index, right, logit_gradient)
            if self.wanted[0]:
                side(self.query, rows).add_(left_gradient.detach())
            if self.wanted[1]:
                self.key += torch.autograd.grad(left_gradient, right, side(call.query, rows))[0]
            return
        for limits, _ in strips:
            cols = columns_allowed(call, limits)
            part = slice(limits[0] - rows[0], limits[1] - rows[0])
            dense = call.value.new_zeros((limits[1] - limits[0], call.tile.k_total))
            dense.scatter_add_(1, kept.index[part].long(), logit_gradient[part])
            self._through_score(limits, cols, dense[:, slice(*cols)])

    def whole(self, rows: Limits, room: Any) -> None:
        """Of a strip that was weighed whole."""
        import torch

        call, cols = self.call, columns_allowed(self.call, rows)
        if cols[0] == cols[1]:
            return
        strip = strip_logits(call, rows, cols, room, self.tile_keys).keys
        leaves = [strip.detach().requires_grad_(), *self._normalizer_leaves()]
        tile, gradient = call.tile.restrict(rows, cols), side(self.gradient, rows)
        with torch.enable_grad():
            normalizer = call.normalizer.replace_arrays(leaves[1:])
            dropped = drop(row_weights(normalizer, leaves[0], tile), tile, call.dropout)
        side(self.value, cols).addmm_(dropped.detach().T, gradient)
        weight_gradient = gradient @ side(call.value, cols).T
        logit_gradient = self._through_weights(dropped, leaves, weight_gradient)
        if logit_gradient is not None:
            self._through_score(rows, cols, logit_gradient)

    def _normalizer_leaves(self) -> list[Tensor]:
        arrays = self.call.normalizer.arrays()
        return [x.detach().requires_grad_() if x.is_floating_point() else x for x in arrays]

    def _through_weights(self, dropped: Any, leaves: list[Tensor], gradient: Any) -> Any:
        """Gradient of the logits; None where there is none. Those of the normalizer's arrays are added."""
        import torch

        if not dropped.requires_grad:
            return None
        of = [x for x in leaves if x.requires_grad]
        logits, *found = torch.autograd.grad(dropped, of, gradient, allow_unused=True)
        targets = [t for t, x in zip(self.normalizer.arrays(), leaves[1:], strict=True) if x.requires_grad]
        for target, more in zip(targets, found, strict=True):
            if more is not None:
                target += more
        return logits

    def _through_score(self, rows: Limits, cols: Limits, gradient: Any) -> None:
        """From the gradient of the logits of these pairs to those of the sides and the score's arrays."""
        import torch

        call = self.call
        if self.product:
            if self.wanted[0]:
                side(self.query, rows).addmm_(gradient, side(call.key, cols))
            if self.wanted[1]:
                side(self.key, cols).addmm_(gradient.T, side(call.query, rows))
            return
        for start in range(cols[0], cols[1], self.tile_keys):
            piece = (start, min(start + self.tile_keys, cols[1]))
            cut = (slice(*rows), slice(*piece))
            score = call.score.slice(*cut)
            originals = [side(call.query, rows), side(call.key, piece), *score.arrays()]
            leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in originals]
            with torch.enable_grad():
                logits = call.logits(rows, piece, leaves[0], leaves[1], score.replace_arrays(leaves[2:]))
            if logits is None or not logits.requires_grad:
                continue
            of = [x for x in leaves if x.requires_grad]
            part = gradient[:, piece[0] - cols[0] : piece[1] - cols[0]]
            new = iter(torch.autograd.grad(logits, of, part, allow_unused=True))
            targets = [side(self.query, rows), side(self.key, piece), *self.score.slice(*cut).arrays()]
            for leaf, target in zip(leaves, targets, strict=True):
                more = next(new) if leaf.requires_grad else None
                if more is not None:
                    target += more


def joined(kept: list[Candidates]) -> Candidates:
    """The kept keys of consecutive strips, one below the other."""
    import torch

    if len(kept) == 1:
        return kept[0]
    most = max(x.index.shape[-1] for x in kept)

    def join(arrays: list[Any], fill: float) -> Any:
        pad = torch.nn.functional.pad
        return torch.cat([pad(x, (0, most - x.shape[-1]), value=fill) for x in arrays])

    logits = join([x.logits for x in kept], -torch.inf)
    same = all(x.ranks is x.logits for x in kept)
    ranks = logits if same else join([x.ranks for x in kept], -torch.inf)
    return Candidates(join([x.index for x in kept], 0), logits, ranks)
