"""A gated product on a tile in PyTorch: S = σ(g_i + h_j) ⊙ (L Rᵀ); g and h are the sides' last columns.

Where their range allows it, the gate is a division: σ(g_i + h_j) = 1 / (1 + u_i v_j), u = e^−g, v = e^−h, and
1 + u vᵀ is a matrix product of width 2. Elsewhere the sigmoid is taken of every pair.

backward, with G the gate and W = dS ⊙ G:  d(L Rᵀ) = W        dg_i = Σ_j dS S (1 − G) = u_i Σ_j (S ⊙ W)_ij v_j
"""

from __future__ import annotations

from typing import Any

from qkv.core.equation import BoundCall
from qkv.core.typing import Tensor
from qkv.kernels.runtime.microbenchmarks import Routes, add_product
from qkv.kernels.runtime.workers import Workspace
from qkv.kernels.tiled.logits.base import Back, Gradients, Pairs, Slices, moved

__all__ = ["GatedProduct"]

Limits = tuple[int, int]

NARROW = 20.0
"""Half of the range of one side, at most: it is moved around 0, and the other side as far the other way."""
WIDE = 60.0
"""The other side is cut off here. Their sum is then beyond ±40, where σ is 0 or 1 to 4e-18; u v is at most
e^80, a float32."""
_FAR = 2.0**22
"""Beyond this, whole numbers are no longer exact beside others."""


class GatedProduct(Pairs):
    """A score whose `unit` is "gate"."""

    def __init__(self, call: BoundCall, factor: float, routes: Routes) -> None:
        super().__init__(call, factor, routes)
        # Without the column between its rows: matrix products want them beside each other.
        self._left = Slices(call.query[..., :-1].contiguous())
        self._scaled = self._left if factor == 1 else Slices(self._left.array * factor)
        self._right = Slices(call.key[..., :-1].contiguous())
        gates = call.query[..., -1:].contiguous(), call.key[..., -1:].contiguous()
        powers = exponentials(*gates)
        self._divides = powers is not None
        # Of each side: e^−g, or g as it is.
        self._queries, self._keys = (Slices(x) for x in (gates if powers is None else powers))
        if powers is not None:
            self._of_rows, self._of_cols = (Slices(_beside_one(x)) for x in powers)

    def notes(self) -> tuple[str, ...]:
        """How the guard on the range went."""
        how = "within exponentials: a division" if self._divides else "beyond exponentials: sigmoid"
        return (f"range of the gate {how} for each pair",)

    def logits(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> Tensor:
        """The product, times the gate."""
        product = self.routes.product(self._scaled(rows), self._right(cols), room, "logits")
        if self._divides:
            product.div_(self._divisor(rows, cols, room))
        else:
            product.mul_(self._sigmoid(rows, cols, room))
        return moved(product, 1.0, shift)

    def trace(self, rows: Limits, cols: Limits, room: Workspace, shift: Tensor | None = None) -> tuple[Tensor, Back]:
        """The gate is kept, and the logits, which its own argument's gradient needs."""
        import torch

        gated = self.routes.product(self._scaled(rows), self._right(cols), room, "gated")
        if self._divides:
            gate = self._divisor(rows, cols, room).reciprocal_()
        else:
            gate = self._sigmoid(rows, cols, room)
        gated.mul_(gate)
        logits = room.take("logits", tuple(gated.shape), gated)
        if shift is None:
            logits.copy_(gated)
        else:
            torch.sub(gated, shift, out=logits)

        def back(gradient: Tensor, gradients: Gradients) -> None:
            query, key = gradients.queries(rows), gradients.keys(cols)
            if self._divides:
                both = gated.mul_(gradient.mul_(gate))
                u, v = self._queries(rows), self._keys(cols)
                of_rows, of_cols = (both @ v).mul_(u), (both.mT @ u).mul_(v)
            else:
                both = gated.mul_(gradient)
                torch.addcmul(both, both, gate, value=-1, out=both)
                of_rows, of_cols = both.sum(dim=-1, keepdim=True), both.sum(dim=-2)[..., None]
                gradient.mul_(gate)
            # The logits in it are multiplied by the factor.
            query[..., -1:] += of_rows.sum_to_size(query[..., -1:].shape) / self.factor
            key[..., -1:] += of_cols.sum_to_size(key[..., -1:].shape) / self.factor
            add_product(query[..., :-1], gradient, self._right(cols))
            add_product(key[..., :-1], gradient.mT, self._left(rows))

        return logits, back

    def _divisor(self, rows: Limits, cols: Limits, room: Workspace) -> Any:
        """1 / G = 1 + u vᵀ"""
        return self.routes.product(self._of_rows(rows), self._of_cols(cols), room, "gate")

    def _sigmoid(self, rows: Limits, cols: Limits, room: Workspace) -> Any:
        import torch

        left, right = self._queries(rows), self._keys(cols).mT
        shape = (*self.call.tile.batch, left.shape[-2], right.shape[-1])
        return torch.add(left, right, out=room.take("gate", shape, left)).sigmoid_()


def exponentials(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
    """e^−left and e^−right, moved towards each other so that their products stay finite.

    None where both sides range too far, or are no numbers.

    Args:
        left: `(*batch, q, 1)`.
        right: `(*batch, k, 1)`.

    Example:
        >>> import torch
        >>> u, v = exponentials(torch.tensor([[1000.0], [999.0]]), torch.tensor([[-1000.0], [500.0]]))
        >>> (1 / (1 + u * v.mT)).round(decimals=4)
        tensor([[0.5000, 1.0000],
                [0.2689, 1.0000]])
    """
    import torch

    if not (left.numel() and right.numel()):
        return None
    middles, halves = [], []
    for side in (left, right):
        low, high = (float(x) for x in torch.aminmax(side))
        if not (low > -_FAR and high < _FAR):  # NaN too
            return None
        # A whole number, which a small number can be moved by and keep its digits.
        middle = float(round((low + high) / 2))
        middles.append(middle)
        halves.append(max(high - middle, middle - low))
    if not min(halves) <= NARROW:
        return None
    move = middles[1] if halves[1] <= halves[0] else -middles[0]
    return (left + move).clamp_(-WIDE, WIDE).neg_().exp_(), (right - move).clamp_(-WIDE, WIDE).neg_().exp_()


def _beside_one(column: Tensor) -> Tensor:
    """`(*batch, n, 2)`, with 1 beside it."""
    import torch

    return torch.cat([column, torch.ones_like(column)], dim=-1)
