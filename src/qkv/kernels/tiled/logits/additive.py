"""An additive score on a tile in PyTorch: Σ_h v_h tanh(left_ih + right_jh), by `units.py`."""

from __future__ import annotations

from functools import cached_property

from qkv.core.typing import Tensor
from qkv.kernels.runtime.workers import Workspace
from qkv.kernels.tiled.logits import hidden_units as units
from qkv.kernels.tiled.logits.base import Back, Gradients, Pairs, moved
from qkv.kernels.tiled.logits.hidden_units import Units

__all__ = ["UnitSum"]

Limits = tuple[int, int]


class UnitSum(Pairs):
    """A score whose `unit` is "tanh", of one batch element."""

    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """By exponentials or tanh, as the range of each hidden unit allows."""
        return moved(self._logits(self._forward, rows, cols, room), self.factor, shift)

    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """The tile again, from what both directions were prepared for."""

        def back(gradient: Tensor, gradients: Gradients) -> None:
            to = (gradients.query, gradients.key, gradients.score.tanh_vector)
            units.gradient(self._backward, rows, cols, gradient, to, room)

        return moved(self._logits(self._backward, rows, cols, room), self.factor, shift), back

    def notes(self) -> tuple[str, ...]:
        """How the guard on the range went."""
        return (self._forward.says,)

    def _logits(self, prepared: Units, rows: Limits, cols: Limits, room: Workspace) -> Tensor:
        shape = (rows[1] - rows[0], cols[1] - cols[0])
        return units.logits(prepared, rows, cols, room.take("logits", shape, self.call.value), room)

    @cached_property
    def _forward(self) -> Units:
        return self._prepared(train=False)

    @cached_property
    def _backward(self) -> Units:
        return self._prepared(train=True)

    def _prepared(self, train: bool) -> Units:
        return units.prepare(self.call.query, self.call.key, self.call.score.tanh_vector, train)
