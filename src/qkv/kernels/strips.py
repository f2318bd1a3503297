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

from qkv.core.arrays import Array, requires_gradient
from qkv.core.equation import Ready, side
from qkv.kernels.fold import nothing, spans, weigh_rows
from qkv.readouts import Readout

__all__ = ["Strips", "twice_differentiable"]

Limits = tuple[int, int]


@dataclass(frozen=True)
class Strips:
    """A call in strips of `rows` queries; results are flat: the output, if wanted, and readouts' fields."""

    ready: Ready
    readouts: tuple[Readout, ...]
    rows: int
    with_output: bool

    @cached_property
    def limits(self) -> list[Limits]:
        """First and last query of each strip."""
        return list(spans(self.ready.place.q_total, self.rows))

    @cached_property
    def tensors(self) -> tuple[Array, ...]:
        """All that a gradient may be wanted of."""
        ready = self.ready
        return (ready.query, ready.key, ready.value, *ready.score.arrays(), *ready.normalizer.arrays())

    @cached_property
    def shapes(self) -> list[Any]:
        """Of each readout's result: None for an array, or the class of its named fields. Filled by `run`."""
        return [None] * len(self.readouts)

    def attend(self) -> tuple[Array | None, tuple[Any, ...]]:
        """Output (None where it is not wanted) and readouts."""
        if any(requires_gradient(x) for x in self.tensors):
            return self._nested(list(_function().apply(self, *self.tensors)))
        return self._nested(self.collect()[0])

    def run(
        self, limits: Limits, query: Array = None, tensors: Sequence[Array] = (), cut: bool = False
    ) -> list[Array]:
        """One strip, of the call's own tensors or of others: a query already cut, and key, value, … as there.

        `cut`: the score's tensors are cut to the strip too.
        """
        import torch

        ready = self.ready
        score, columns = ready.score, (0, ready.place.k_total)
        key, value, *arrays = tensors or self.tensors[1:]
        held = len(score.arrays())
        cut_score = score.slice(slice(*limits), slice(*columns)) if cut else score
        cut_score = cut_score.replace_arrays(arrays[:held])
        if not cut:
            cut_score = cut_score.slice(slice(*limits), slice(*columns))
        ready = replace(ready, value=value, normalizer=ready.normalizer.replace_arrays(arrays[held:]))
        with torch.autocast(value.device.type, enabled=False):
            logits = ready.tile(
                limits, columns, side(ready.query, limits) if query is None else query, key, cut_score
            )
            if logits is None:
                logits = nothing(ready, limits, columns[1])
            output, read = weigh_rows(ready, limits, logits, self.readouts, self.with_output)
        flat = [output] if self.with_output else []
        for n, result in enumerate(read):
            self.shapes[n] = type(result) if isinstance(result, tuple) else None
            flat += list(result) if isinstance(result, tuple) else [result]
        return flat

    def collect(self) -> tuple[list[Array], list[list[int]]]:
        """The results of all strips, field by field, without a graph; and how long each strip's part is."""
        import torch

        whole: list[Any] = []
        lengths: list[list[int]] = []
        for n, limits in enumerate(self.limits):
            flat = self.run(limits)
            if n == 0:
                whole = [self._room(x, *field) for x, field in zip(flat, self.fields(), strict=True)]
                lengths = [[] for _ in flat]
            for room, x, (axis, _), of in zip(whole, flat, self.fields(), lengths, strict=True):
                of.append(x.shape[axis])
                # In place: small results left between large temporaries would keep the heap from shrinking.
                room.append(x) if isinstance(room, list) else room.narrow(axis, limits[0], of[-1]).copy_(x)
        joined = [
            torch.cat(room, dim=axis) if isinstance(room, list) else room
            for room, (axis, _) in zip(whole, self.fields(), strict=True)
        ]
        return joined, lengths

    def fields(self) -> list[tuple[int, bool]]:
        """Of each field, along which axis it is joined, and whether it has an entry for every query."""
        out = [(-2, True)] if self.with_output else []
        for readout, kind in zip(self.readouts, self.shapes, strict=True):
            out += [(readout.q_axis, readout.every_query)] * (1 if kind is None else len(kind._fields))
        return out

    def _room(self, piece: Array, axis: int, every_query: bool) -> Any:
        """Room for all strips of a field."""
        if not every_query:
            return []
        shape = list(piece.shape)
        shape[axis] = self.ready.place.q_total
        return piece.new_empty(shape)

    def checkpointed(self) -> list[Array]:
        """All results, differentiable to any order."""
        import torch
        from torch.utils.checkpoint import checkpoint

        query, *tensors = self.tensors

        def strip(limits: Limits, query: Array, *tensors: Array) -> Any:
            return tuple(self.run(limits, query, tensors))

        # Split once: the gradient of a slice is as long as the whole; one for each strip would be quadratic.
        pieces = zip(self.limits, torch.split(query, self.rows, dim=-2), strict=True)
        strips = [checkpoint(strip, limits, piece, *tensors, use_reentrant=False) for limits, piece in pieces]
        columns = zip(self.fields(), zip(*strips, strict=True), strict=True)
        return [torch.cat(of, dim=axis) for (axis, _), of in columns]

    def _nested(self, flat: list[Array]) -> tuple[Array | None, tuple[Any, ...]]:
        queue = list(flat)
        output = queue.pop(0) if self.with_output else None
        results = []
        for readout, kind in zip(self.readouts, self.shapes, strict=True):
            result = queue.pop(0) if kind is None else kind(*(queue.pop(0) for _ in kind._fields))
            results.append(readout.finish(result, self.ready.place))
        return output, tuple(results)


_FUNCTION: Any = None


def _function() -> Any:
    """The autograd function, made when torch is there."""
    global _FUNCTION
    if _FUNCTION is None:
        import torch

        class Attend(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, strips: Strips, *tensors: Any) -> Any:
                joined, ctx.lengths = strips.collect()
                ctx.strips = strips
                ctx.save_for_backward(*tensors)
                ctx.mark_non_differentiable(*(x for x in joined if not x.is_floating_point()))
                return tuple(joined)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                strips = ctx.strips
                if torch.is_grad_enabled():
                    found = twice_differentiable(strips, ctx.saved_tensors, gradients)
                else:
                    found = _backward(strips, ctx.saved_tensors, gradients, ctx.lengths)
                wanted = ctx.needs_input_grad[1:]
                return (None, *(g if w else None for g, w in zip(found, wanted, strict=True)))

        _FUNCTION = Attend
    return _FUNCTION


def _with(strips: Strips, tensors: Sequence[Array]) -> Strips:
    query, key, value, *arrays = tensors
    held = len(strips.ready.score.arrays())
    ready = replace(
        strips.ready,
        query=query,
        key=key,
        value=value,
        score=strips.ready.score.replace_arrays(arrays[:held]),
        normalizer=strips.ready.normalizer.replace_arrays(arrays[held:]),
    )
    return replace(strips, ready=ready)


def twice_differentiable(
    strips: Strips, tensors: Sequence[Array], gradients: Sequence[Array]
) -> list[Array | None]:
    """Gradients of the tensors, which can be differentiated again."""
    import torch

    results = _with(strips, tensors).checkpointed()
    pairs = [(x, g) for x, g in zip(results, gradients, strict=True) if x.requires_grad]
    wanted = [x for x in tensors if x.requires_grad]
    found = iter(
        torch.autograd.grad(
            [x for x, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    )
    return [next(found) if x.requires_grad else None for x in tensors]


def _backward(
    strips: Strips, tensors: Sequence[Array], gradients: Sequence[Array], lengths: list[list[int]]
) -> list[Array | None]:
    import torch

    held = len(strips.ready.score.arrays())
    grads = [torch.zeros_like(x) for x in tensors]
    score = strips.ready.score.replace_arrays(list(tensors[3 : 3 + held]))
    score_grads = strips.ready.score.replace_arrays(grads[3 : 3 + held])
    starts = [0] * len(gradients)
    for n, limits in enumerate(strips.limits):
        cut = (slice(*limits), slice(0, strips.ready.place.k_total))
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
        for field, ((axis, _), result) in enumerate(zip(strips.fields(), results, strict=True)):
            length = lengths[field][n]
            if result.requires_grad:
                outputs.append(result)
                weights.append(gradients[field].narrow(axis, starts[field], length))
            starts[field] += length
        wanted = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
        new = iter(found)
        for leaf, target in zip(leaves, targets, strict=True):
            more = next(new) if leaf.requires_grad else None
            if more is not None:
                target += more
    return list(grads)
