"""Logits of a tile for gated scores, inner products that are multiplied by a sigmoid gate.

S = σ(g_i + h_j) ⊙ (L Rᵀ), where g and h are the last columns of the projected queries and keys, and L and R are the
other columns.

If the gates are of moderate range, the sigmoid is computed by a division: σ(g_i + h_j) = 1 / (1 + u_i v_j) with
u = e^−g and v = e^−h, where 1 + u vᵀ is a matrix product of width 2. Otherwise the sigmoid of every pair is evaluated.

backward, with G the gate and W = dS ⊙ G:  d(L Rᵀ) = W        dg_i = Σ_j dS S (1 − G) = u_i Σ_j (S ⊙ W)_ij v_j
"""

from __future__ import annotations

import torch

from qkv.core.equation import TorchCall
from qkv.core.typing import Float, PairTensor, Tensor
from qkv.kernels.runtime.faster_ops import FasterOps, add_matmul_
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import (
    Gradients,
    RowSlices,
    Shift,
    TileLogits,
    TileTensor,
    Traced,
    center_sides,
    scale_and_shift_,
)

_NARROW = 20.0
"""Largest half range of the narrower of g and h, after it was centered at 0 and the other shifted in return."""
_CLAMP = 60.0
"""Largest magnitude of the wider of g and h, to which it is clamped. A clamped sum is beyond ±40, where σ is 0 or 1 to
within 4e-18, and u v is at most e^80, which does not overflow float32."""
_EXACT_INTEGERS = 2.0**22
"""Largest magnitude at which shifting by an integer preserves precision in float32."""


class GatedLogits(TileLogits):
    """Logits and gradients of tiles for a score of the form `Gated`."""

    def __init__(self, call: TorchCall, factor: float, ops: FasterOps) -> None:
        super().__init__(call, factor, ops)
        # Copy without the last column, because matrix products need contiguous rows.
        self._left = RowSlices(call.query[..., :-1].contiguous())
        self._scaled_left = self._left if factor == 1 else RowSlices(self._left.array * factor)
        self._right = RowSlices(call.key[..., :-1].contiguous())
        gates = call.query[..., -1:].contiguous(), call.key[..., -1:].contiguous()
        powers = bounded_exponentials(*gates)
        self._divides = powers is not None
        # u and v if the gate is computed by a division, otherwise g and h.
        self._query_gates, self._key_gates = (RowSlices(x) for x in (gates if powers is None else powers))
        if powers is not None:
            pad = torch.nn.functional.pad
            self._query_factors, self._key_factors = (RowSlices(pad(x, (0, 1), value=1.0)) for x in powers)

    def guard_notes(self) -> tuple[str, ...]:
        if self._divides:
            return ("gates of moderate range: exponentials and a division for each pair",)
        return ("gates of wide range: one sigmoid for each pair",)

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        product = self.ops.matmul_nt(self._scaled_left(rows), self._right(cols), workspace, "logits")
        if self._divides:
            product.div_(self._inverse_gate(rows, cols, workspace))
        else:
            product.mul_(self._sigmoid(rows, cols, workspace))
        return scale_and_shift_(product, 1.0, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        # The function holds the gate and the unshifted logits of the tile.
        gated = self.ops.matmul_nt(self._scaled_left(rows), self._right(cols), workspace, "gated")
        if self._divides:
            gate = self._inverse_gate(rows, cols, workspace).reciprocal_()
        else:
            gate = self._sigmoid(rows, cols, workspace)
        gated.mul_(gate)
        logits = workspace.take("logits", tuple(gated.shape), gated)
        if shift is None:
            logits.copy_(gated)
        else:
            torch.sub(gated, shift, out=logits)

        def backward(gradient: TileTensor, gradients: Gradients) -> None:
            d_query, d_key = gradients.queries(rows), gradients.keys(cols)
            if self._divides:
                product = gated.mul_(gradient.mul_(gate))
                u, v = self._query_gates(rows), self._key_gates(cols)
                d_query_gate, d_key_gate = (product @ v).mul_(u), (product.mT @ u).mul_(v)
            else:
                product = gated.mul_(gradient)
                torch.addcmul(product, product, gate, value=-1, out=product)
                d_query_gate, d_key_gate = product.sum(dim=-1, keepdim=True), product.sum(dim=-2)[..., None]
                gradient.mul_(gate)
            # Divide by the factor, which the logits in these sums include.
            d_query[..., -1:] += d_query_gate.sum_to_size(d_query[..., -1:].shape) / self.factor
            d_key[..., -1:] += d_key_gate.sum_to_size(d_key[..., -1:].shape) / self.factor
            add_matmul_(d_query[..., :-1], gradient, self._right(cols))
            add_matmul_(d_key[..., :-1], gradient.mT, self._left(rows))

        return logits, backward

    def _inverse_gate(self, rows: Limits, cols: Limits, workspace: Workspace) -> PairTensor:
        """Return the reciprocal of the gate of a tile, 1 / G = 1 + u vᵀ."""
        return self.ops.matmul_nt(self._query_factors(rows), self._key_factors(cols), workspace, "gate")

    def _sigmoid(self, rows: Limits, cols: Limits, workspace: Workspace) -> PairTensor:
        left, right = self._query_gates(rows), self._key_gates(cols).mT
        shape = (*self.call.tile.batch, left.shape[-2], right.shape[-1])
        return torch.add(left, right, out=workspace.take("gate", shape, left)).sigmoid_()


def bounded_exponentials(
    left: Float[Tensor, "*#batch q 1"], right: Float[Tensor, "*#batch k 1"]
) -> tuple[Float[Tensor, "*#batch q 1"], Float[Tensor, "*#batch k 1"]] | None:
    """Return arrays u and v with finite products u_i v_j = e^−(left_i + right_j), or None if they may overflow.

    Where |left_i + right_j| > 40, the product may differ, but the sigmoid 1 / (1 + u_i v_j) is 0 or 1 to within 4e-18.

    Returns:
        Both arrays. None if both sides exceed the supported range, or if one contains NaN.

    Example:
        >>> import torch
        >>> u, v = bounded_exponentials(torch.tensor([[1000.0], [999.0]]), torch.tensor([[-1000.0], [500.0]]))
        >>> (1 / (1 + u * v.mT)).round(decimals=4)
        tensor([[0.5000, 1.0000],
                [0.2689, 1.0000]])
    """
    if not (left.numel() and right.numel()):
        return None
    shift, half_range = center_sides(left.reshape(-1, 1), right.reshape(-1, 1))
    exact = all(float(x.abs().amax()) < _EXACT_INTEGERS for x in (left, right))  # False for NaN
    if not (exact and float(half_range) <= _NARROW):
        return None
    return (left + shift).clamp_(-_CLAMP, _CLAMP).neg_().exp_(), (right - shift).clamp_(-_CLAMP, _CLAMP).neg_().exp_()
