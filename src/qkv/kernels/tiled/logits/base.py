"""Logits of a tile in PyTorch, and their way back: several ways to compute one thing, chosen by facts.

    Product        the score is a product of its sides: one matrix product forward, two back
    Shifted        something is added to the logits of another score (`PointwiseScore.adds`)
    Bent           logits of a product are capped by a tanh (`PointwiseScore.bend`)
    GatedProduct   a product times a sigmoid of both sides, in `gates.py`
    Traced         any other score: its `pair` runs, and is differentiated by autograd on the tile

`choice.py` chooses. Each gives logits in an array that may be written to, multiplied by a factor (a
temperature, log₂ e), and less a shift of each query where one is given: both often fit into a pass over the
tile that is made anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qkv.core.batch import BatchIndex, take_batch
from qkv.core.equation import BoundCall, side
from qkv.core.typing import Tensor
from qkv.kernels.runtime.microbenchmarks import Routes, add_product
from qkv.kernels.runtime.workers import Workspace

__all__ = ["Back", "Bent", "Gradients", "Pairs", "Product", "Shifted", "Slices", "Traced", "moved"]

Limits = tuple[int, int]


class Slices:
    """Rows of an array by their limits; each cut is made once, because tiles ask for it again and again."""

    def __init__(self, array: Tensor) -> None:
        self.array = array
        self._cut: dict[Limits, Tensor] = {}

    def __call__(self, limits: Limits) -> Tensor:
        """Those rows."""
        found = self._cut.get(limits)
        if found is None:
            found = self._cut[limits] = self.array[..., slice(*limits), :]
        return found


@dataclass(frozen=True)
class Gradients:
    """Where gradients are added: arrays like the call's own; parts hold them in place of their arrays."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: Any
    normalizer: Any

    @cached_property
    def queries(self) -> Slices:
        """Where gradients of some queries are added."""
        return Slices(self.query)

    @cached_property
    def keys(self) -> Slices:
        """The same of keys."""
        return Slices(self.key)

    @cached_property
    def values(self) -> Slices:
        """The same of values."""
        return Slices(self.value)

    @classmethod
    def zeros(cls, call: BoundCall) -> Gradients:
        """Nothing yet."""
        import torch

        zeros = torch.zeros_like

        def turned(x: Tensor) -> Tensor:
            # The products that add to keys and values are a seventh faster where columns lie together.
            return x.new_zeros((*x.shape[:-2], x.shape[-1], x.shape[-2])).mT

        return cls(
            zeros(call.query),
            turned(call.key),
            turned(call.value),
            call.score.map_arrays(zeros),
            call.normalizer.map_arrays(zeros),
        )

    def at(self, index: BatchIndex) -> Gradients:
        """Those of some batch elements: views."""
        query, key, value = (take_batch(x, index, 2) for x in (self.query, self.key, self.value))
        return Gradients(query, key, value, self.score.select_batch(index), self.normalizer.select_batch(index))

    def tensors(self) -> list[Tensor]:
        """All, in the order of the call's own."""
        return [self.query, self.key, self.value, *self.score.arrays(), *self.normalizer.arrays()]


Back = Callable[[Tensor, Gradients], None]


class Pairs(ABC):
    """Logits of the tiles of a call.

    Args:
        call: the call, or some of its batch elements.
        factor: by which logits are multiplied.
        routes: of the machine.
    """

    def __init__(self, call: BoundCall, factor: float, routes: Routes) -> None:
        self.call, self.factor, self.routes = call, factor, routes

    def notes(self) -> tuple[str, ...]:
        """Sentences on how guards on the data went."""
        return ()

    @abstractmethod
    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """factor · logits − shift `(*batch, rows, cols)`, without mask, in an array that may be written to.

        Args:
            rows, cols: limits of the tile.
            room: buffers.
            shift: `(*batch, rows, 1)`; None: 0.
        """

    @abstractmethod
    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """As `logits`; and a function that adds what a gradient of the logits (of the plain ones, not
        multiplied by the factor) gives to query, key and the score's arrays.
        """


class Product(Pairs):
    """left @ rightᵀ"""

    def __init__(self, call: BoundCall, factor: float, routes: Routes) -> None:
        super().__init__(call, factor, routes)
        self._queries, self._keys = Slices(call.query), Slices(call.key)
        self._left = self._queries if factor == 1 else Slices(call.query * factor)

    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """One matrix product."""
        return moved(self.routes.product(self._left(rows), self._keys(cols), room, "logits"), 1.0, shift)

    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """dL += dS R, dR += dSᵀ L"""

        def back(gradient: Tensor, gradients: Gradients) -> None:
            add_product(gradients.queries(rows), gradient, self._keys(cols))
            add_product(gradients.keys(cols), gradient.mT, self._queries(rows))

        return self.logits(rows, cols, room, shift), back


class Shifted(Pairs):
    """Logits of the score within, plus an offset that does not depend on them; `inner` makes the former."""

    def __init__(
        self,
        call: BoundCall,
        factor: float,
        routes: Routes,
        inner: Callable[[BoundCall, float, Routes], Pairs],
    ) -> None:
        super().__init__(call, factor, routes)
        self._inner = inner(replace(call, score=call.score.score), factor, routes)

    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """The inner ones, with the offset added in place."""
        tile, score = self.call.tile.restrict(rows, cols), self.call.score.slice(slice(*rows), slice(*cols))
        offset = score.offset(tile, self.call.value)
        return self._inner.logits(rows, cols, room, shift).add_(offset, alpha=self.factor)

    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """The gradient passes on to the score within; the arrays of the offset get theirs by autograd."""
        import torch

        tile, cut = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = self.call.score.slice(*cut)
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in score.arrays()]
        with torch.enable_grad():
            offset = score.replace_arrays(leaves).offset(tile, self.call.value)
        logits, inner_back = self._inner.trace(rows, cols, room, shift)

        def back(gradient: Tensor, gradients: Gradients) -> None:
            if offset.requires_grad:
                targets = gradients.score.slice(*cut).arrays()
                add_traced(offset, gradient, leaves, targets)
            inner_back(gradient, replace(gradients, score=gradients.score.score))

        return logits.add_(offset.detach(), alpha=self.factor), back


class Bent(Pairs):
    """cap · tanh(logit / cap) of a product, with a cap that is a plain number."""

    def __init__(self, call: BoundCall, factor: float, routes: Routes) -> None:
        super().__init__(call, factor, routes)
        self._inner = Product(replace(call, score=call.score.score), 1.0 / call.score.cap, routes)

    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """In place on the inner logits."""
        bent = self.routes.tanh_(self._inner.logits(rows, cols, room))
        return moved(bent, self.call.score.cap * self.factor, shift)

    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """d(inner logit) = (1 − tanh²) dS"""
        import torch

        inner, inner_back = self._inner.trace(rows, cols, room)
        bent = self.routes.tanh_(inner)
        slope = torch.mul(bent, bent, out=room.take("slope", bent.shape, bent))

        def back(gradient: Tensor, gradients: Gradients) -> None:
            gradient.addcmul_(gradient, slope, value=-1)
            inner_back(gradient, replace(gradients, score=gradients.score.score))

        return moved(bent, self.call.score.cap * self.factor, shift), back


class Traced(Pairs):
    """The score's own function, differentiated by autograd."""

    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """The score's tile, copied: what it gives may be a view of something."""
        tile, cut = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = self.call.score.slice(*cut)
        return self._own(
            self._function(score)(side(self.call.query, rows), side(self.call.key, cols), tile),
            rows,
            cols,
            room,
            shift,
        )

    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """The tile's graph is kept until the way back is taken."""
        import torch

        tile, cut = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = self.call.score.slice(*cut)
        originals = [side(self.call.query, rows), side(self.call.key, cols), *score.arrays()]
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in originals]
        with torch.enable_grad():
            function = self._function(score.replace_arrays(leaves[2:]))
            traced = function(leaves[0], leaves[1], tile)

        def back(gradient: Tensor, gradients: Gradients) -> None:
            if traced.requires_grad:
                arrays = gradients.score.slice(*cut).arrays()
                targets = [gradients.queries(rows), gradients.keys(cols), *arrays]
                add_traced(traced, gradient, leaves, targets)

        return self._own(traced.detach(), rows, cols, room, shift), back

    def _function(self, score: Any) -> Callable[..., Tensor]:
        function: Callable[..., Tensor] = score.projected_logits if self.call.projected else score.logits
        return function

    def _own(self, logits: Tensor, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None) -> Tensor:
        import torch

        shape = (*self.call.tile.batch, rows[1] - rows[0], cols[1] - cols[0])
        own = room.take("logits", shape, self.call.value)
        if logits.dtype == own.dtype and logits.shape == own.shape:
            if shift is None:
                return torch.mul(logits, self.factor, out=own)
            return torch.add(-shift, logits, alpha=self.factor, out=own)
        return moved(own.copy_(logits), self.factor, shift)


def moved(logits: Tensor, factor: float, shift: Tensor | None) -> Tensor:
    """factor · logits − shift in place, in one pass.

    Example:
        >>> import torch
        >>> moved(torch.tensor([[1.0, 2.0]]), 3.0, torch.tensor([[1.0]]))
        tensor([[2., 5.]])
    """
    import torch

    if shift is None:
        return logits if factor == 1 else logits.mul_(factor)
    return logits.sub_(shift) if factor == 1 else torch.add(-shift, logits, alpha=factor, out=logits)


def add_traced(traced: Tensor, gradient: Tensor, leaves: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Add to each target the gradient of its leaf, from the gradient of what was traced."""
    import torch

    wanted = [x for x in leaves if x.requires_grad]
    gradient = gradient.sum_to_size(traced.shape).to(traced.dtype)
    found = iter(torch.autograd.grad(traced, wanted, gradient, allow_unused=True))
    for leaf, target in zip(leaves, targets, strict=True):
        more = next(found) if leaf.requires_grad else None
        if more is not None:
            target += more
