"""Strips in PyTorch: some queries at a time with their whole rows, computed again in the backward pass.

Forward keeps nothing but its inputs. Backward takes strip after strip: its output and readouts again, with a
graph, differentiated and added. Where the gradient itself is to be differentiated (`create_graph=True`), they
are run again under `torch.utils.checkpoint`: derivatives of every order, at some 60 kB for each strip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qkv.core.arrays import requires_gradient
from qkv.core.equation import BoundCall, side
from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_loop import fully_masked, ranges, weigh_rows
from qkv.readouts import Readout, Reduction
from qkv.readouts.base import flatten, unflatten

__all__ = ["RowBlocks", "double_backward"]

Limits = tuple[int, int]


@dataclass(frozen=True)
class RowBlocks:
    """A call in strips of `rows` queries; results are flat: the output, if wanted, and readouts' fields."""

    call: BoundCall
    readouts: tuple[Readout, ...]
    rows: int
    with_output: bool

    @cached_property
    def limits(self) -> list[Limits]:
        """First and last query of each strip."""
        return list(ranges(self.call.tile.q_total, self.rows))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that a gradient may be wanted of."""
        call = self.call
        return (call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays())

    @cached_property
    def kinds(self) -> list[Any]:
        """The class of each readout's result: of an array, or of named fields. Filled by `run`."""
        return [None] * len(self.readouts)

    def attend(self) -> tuple[Tensor | None, tuple[Any, ...]]:
        """Output (None where it is not wanted) and readouts."""
        if any(requires_gradient(x) for x in self.tensors):
            return self._nested(list(_function().apply(self, *self.tensors)))
        return self._nested(self.collect()[0])

    def run(
        self, limits: Limits, query: Tensor = None, tensors: Sequence[Tensor] = (), cut: bool = False
    ) -> list[Tensor]:
        """One strip, of the call's own tensors or of others: a query already cut, and key, value, … as there.

        `cut`: the score's tensors are cut to the strip too.
        """
        import torch

        call = self.call
        score, columns = call.score, (0, call.tile.k_total)
        key, value, *arrays = tensors or self.tensors[1:]
        held = len(score.arrays())
        cut_score = score.slice(slice(*limits), slice(*columns)) if cut else score
        cut_score = cut_score.replace_arrays(arrays[:held])
        if not cut:
            cut_score = cut_score.slice(slice(*limits), slice(*columns))
        call = replace(call, value=value, normalizer=call.normalizer.replace_arrays(arrays[held:]))
        with torch.autocast(value.device.type, enabled=False):
            logits = call.logits(limits, columns, side(call.query, limits) if query is None else query, key, cut_score)
            if logits is None:
                logits = fully_masked(call, limits, columns[1])
            output, read = weigh_rows(call, limits, logits, self.readouts, self.with_output)
        found = [output] if self.with_output else []
        for n, result in enumerate(read):
            self.kinds[n] = type(result)
            found += flatten(result)
        return found

    def collect(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """The results of all strips, field by field, without a graph; of maxima, which strip they are of."""
        import torch

        whole: list[Tensor] = []
        strips: list[Tensor | None] = []
        for n, limits in enumerate(self.limits):
            found, fields = self.run(limits), self.fields(limits)
            if n == 0:
                whole = [field.allocate(x) for field, x in zip(fields, found, strict=True)]
                strips = [
                    torch.zeros_like(room, dtype=torch.int32) if field.op == "max" else None
                    for field, room in zip(fields, whole, strict=True)
                ]
            for room, strip, x, field in zip(whole, strips, found, fields, strict=True):
                there = field.slice(room)
                if strip is not None:
                    field.slice(strip)[field.exceeds(there, x)] = n
                # In place: small results left between large temporaries would keep the heap from shrinking.
                there.copy_(field.combine(there, x))
        return whole, strips

    def fields(self, limits: Limits) -> list[Reduction]:
        """Where each result of a strip goes."""
        tile = self.call.tile.restrict(limits, (0, self.call.tile.k_total))
        shape = (tile.q_total, self.call.value.shape[-1])
        output = [Reduction(shape, (slice(*limits), slice(None)))] if self.with_output else []
        return [*output, *(field for readout in self.readouts for field in readout.reductions(tile))]

    def checkpointed(self) -> list[Tensor]:
        """All results, differentiable to any order."""
        import torch
        from torch.utils.checkpoint import checkpoint

        query, *tensors = self.tensors

        def strip(limits: Limits, query: Tensor, *tensors: Tensor) -> Any:
            return tuple(self.run(limits, query, tensors))

        # Split once: the gradient of a slice is as long as the whole; one for each strip would be quadratic.
        pieces = zip(self.limits, torch.split(query, self.rows, dim=-2), strict=True)
        whole: list[Any] = []
        for limits, piece in pieces:
            found = checkpoint(strip, limits, piece, *tensors, use_reentrant=False)
            whole = whole or [[] for _ in found]
            for n, (x, field) in enumerate(zip(found, self.fields(limits), strict=True)):
                if field.op == "set":
                    whole[n].append(x)
                else:
                    whole[n] = _met(field.allocate(x) if limits[0] == 0 else whole[n], field, x)
        axes = [-len(field.shape) for field in self.fields(self.limits[0])]
        return [torch.cat(x, dim=axis) if isinstance(x, list) else x for x, axis in zip(whole, axes, strict=True)]

    def _nested(self, found: list[Tensor]) -> tuple[Tensor | None, tuple[Any, ...]]:
        queue = list(found)
        output = queue.pop(0) if self.with_output else None
        results = []
        for readout, kind in zip(self.readouts, self.kinds, strict=True):
            arrays = [queue.pop(0) for _ in readout.reductions(self.call.tile)]
            results.append(readout.finalize(unflatten(tuple(arrays), kind), self.call.tile))
        return output, tuple(results)


def _met(whole: Tensor, field: Reduction, piece: Tensor) -> Tensor:
    """The whole after a piece was added, or was the larger one; not in place, for a graph."""
    import torch

    axis, at = -len(field.shape), field.index[0]
    before, there, after = torch.split(whole, [at.start, at.stop - at.start, field.shape[0] - at.stop], dim=axis)
    return torch.cat([before, field.combine(there, piece), after], dim=axis)


_FUNCTION: Any = None


def _function() -> Any:
    """The autograd function, made when torch is there."""
    global _FUNCTION
    if _FUNCTION is None:
        import torch

        class Attend(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, strips: RowBlocks, *tensors: Any) -> Any:
                joined, ctx.of = strips.collect()
                ctx.strips = strips
                ctx.save_for_backward(*tensors)
                ctx.mark_non_differentiable(*(x for x in joined if not x.is_floating_point()))
                return tuple(joined)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                strips = ctx.strips
                with torch.autocast(strips.call.value.device.type, enabled=False):
                    if torch.is_grad_enabled():
                        found = double_backward(strips, ctx.saved_tensors, gradients)
                    else:
                        found = _backward(strips, ctx.saved_tensors, gradients, ctx.of)
                wanted = ctx.needs_input_grad[1:]
                return (None, *(g if w else None for g, w in zip(found, wanted, strict=True)))

        _FUNCTION = Attend
    return _FUNCTION


def double_backward(strips: RowBlocks, tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of the tensors, which can be differentiated again."""
    import torch

    results = replace(strips, call=strips.call.with_arrays(tensors)).checkpointed()
    pairs = [(x, g) for x, g in zip(results, gradients, strict=True) if x.requires_grad]
    wanted = [x for x in tensors if x.requires_grad]
    found = iter(
        torch.autograd.grad([x for x, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    return [next(found) if x.requires_grad else None for x in tensors]


def _backward(
    strips: RowBlocks, tensors: Sequence[Tensor], gradients: Sequence[Tensor], maxima: list[Tensor | None]
) -> list[Tensor | None]:
    import torch

    held = len(strips.call.score.arrays())
    grads = [torch.zeros_like(x) for x in tensors]
    score = strips.call.score.replace_arrays(list(tensors[3 : 3 + held]))
    score_grads = strips.call.score.replace_arrays(grads[3 : 3 + held])
    for n, limits in enumerate(strips.limits):
        cut = (slice(*limits), slice(0, strips.call.tile.k_total))
        originals = [
            side(tensors[0], limits),
            *tensors[1:3],
            *score.slice(*cut).arrays(),
            *tensors[3 + held :],
        ]
        targets = [side(grads[0], limits), *grads[1:3], *score_grads.slice(*cut).arrays(), *grads[3 + held :]]
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in originals]
        with torch.enable_grad():
            results = strips.run(limits, leaves[0], leaves[1:], cut=True)
        outputs, weights = [], []
        for result, field, gradient, of in zip(results, strips.fields(limits), gradients, maxima, strict=True):
            if result.requires_grad:
                outputs.append(result)
                share = field.slice(gradient)
                weights.append(share if of is None else share.where(field.slice(of) == n, 0.0))
        wanted = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
        new = iter(found)
        for leaf, target in zip(leaves, targets, strict=True):
            more = next(new) if leaf.requires_grad else None
            if more is not None:
                target += more
    return list(grads)
