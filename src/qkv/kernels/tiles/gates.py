"""A gated product on a tile in PyTorch: S = σ(g_i + h_j) ⊙ (L Rᵀ); g and h are the sides' last columns.

backward, with G the gate:  d(L Rᵀ) = dS ⊙ G        d(g_i + h_j) = dS ⊙ S ⊙ (1 − G)
"""

from __future__ import annotations

from typing import Any

from qkv.core.arrays import Array
from qkv.core.equation import Ready
from qkv.kernels.tiles.pairs import Back, Gradients, Pairs, Slices
from qkv.kernels.tiles.routes import Routes, add_product
from qkv.kernels.tiles.workers import Room

__all__ = ["GatedProduct"]

Limits = tuple[int, int]


class GatedProduct(Pairs):
    """A score whose `unit` is "gate"."""

    def __init__(self, ready: Ready, factor: float, routes: Routes) -> None:
        super().__init__(ready, factor, routes)
        # Without the column between its rows: matrix products want them beside each other.
        self._left = Slices(ready.query[..., :-1].contiguous())
        self._scaled = self._left if factor == 1 else Slices(self._left.array * factor)
        self._right = Slices(ready.key[..., :-1].contiguous())
        self._gates = Slices(ready.query[..., -1:].contiguous())
        self._turned = ready.key[..., -1].contiguous()

    def logits(self, rows: Limits, cols: Limits, room: Room) -> Array:
        """The product, times the gate."""
        logits, gate = self._tile(rows, cols, room)
        return logits.mul_(gate)

    def trace(self, rows: Limits, cols: Limits, room: Room) -> tuple[Array, Back]:
        """The gate is kept, and what its own argument gets of the gradient."""
        import torch

        logits, gate = self._tile(rows, cols, room)
        logits.mul_(gate)
        slope = torch.addcmul(logits, logits, gate, value=-1, out=room.take("slope", logits.shape, logits))

        def back(gradient: Array, gradients: Gradients) -> None:
            query, key = gradients.queries(rows), gradients.keys(cols)
            slope.mul_(gradient)
            of_rows, of_keys = slope.sum(dim=-1, keepdim=True), slope.sum(dim=-2)[..., None]
            # The logits in it are multiplied by the factor.
            query[..., -1:] += of_rows.sum_to_size(query[..., -1:].shape) / self.factor
            key[..., -1:] += of_keys.sum_to_size(key[..., -1:].shape) / self.factor
            gradient.mul_(gate)
            add_product(query[..., :-1], gradient, self._right(cols))
            add_product(key[..., :-1], gradient.mT, self._left(rows))

        return logits, back

    def _tile(self, rows: Limits, cols: Limits, room: Room) -> tuple[Array, Any]:
        import torch

        product = self.routes.product(self._scaled(rows), self._right(cols), room, "logits")
        gate = torch.add(
            self._gates(rows),
            self._turned[..., None, slice(*cols)],
            out=room.take("gate", product.shape, product),
        )
        return product, gate.sigmoid_()
