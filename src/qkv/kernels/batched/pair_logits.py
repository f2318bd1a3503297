"""Logits of all pairs of a batch from inner products in few operations, and their gradients.

    given           z from the score itself
    product         z = f <q, k> + offset
    soft cap        z = c tanh(f <q, k> / c)
    gated           z = <q, k> σ(l_i + r_j)

All logits are multiplied by the scale s of the normalizer, so that it needs no further pass over them.
`vector_logits.py` has the kinds of logits that are computed from queries and keys directly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

from qkv.core import arrays
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.closure_gradients import refuse_recorded_closures
from qkv.kernels.runtime.isolated_autograd import project_call, projects_nothing
from qkv.scores.base import PointwiseScore

if TYPE_CHECKING:
    import torch

__all__ = [
    "GatedProducts",
    "Gradients",
    "GivenLogits",
    "PairLogits",
    "Products",
    "Tensors",
    "has_finite_sum",
    "product",
    "scaled_product",
]

Tensors: TypeAlias = Sequence[Float[Tensor, "*_"] | None]
Gradients: TypeAlias = tuple[Float[Tensor, "*_"] | None, ...]


def product(x: Float[Tensor, "*#batch n m"], y: Float[Tensor, "*#batch m l"]) -> Float[Tensor, "*batch n l"]:
    """Return the matrix product, for three axes in half the time of the operator `@`."""
    import torch

    return torch.bmm(x, y) if x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0] else x @ y


def scaled_product(
    x: Float[Tensor, "*#batch n m"], y: Float[Tensor, "*#batch m l"], scale: float
) -> Float[Tensor, "*batch n l"]:
    """Return `scale` times the matrix product."""
    import torch

    if scale == 1:
        return product(x, y)
    if x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0]:
        return torch.baddbmm(_unused(x.dtype, x.device), x, y, beta=0, alpha=scale)
    return (x * scale) @ y


@lru_cache(maxsize=16)
def _unused(dtype: torch.dtype, device: torch.device) -> Float[Tensor, ""]:
    """Return the tensor to which `torch.baddbmm` adds nothing."""
    import torch

    return torch.zeros((), dtype=dtype, device=device)


def has_finite_sum(x: Float[Tensor, "*_"]) -> bool:
    """Return whether all elements are finite, as the sum shows unless it overflows."""
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


@dataclass(frozen=True)
class PairLogits(ABC):
    """Base class of functions that compute the logits of all pairs, times `normalizer_scale`, and their gradients.

    Attributes:
        normalizer_scale: s, by which the normalizer multiplies the logits.
        checks: whether `forward` returns None for all data that is not finite, if gradients are needed.
        merges: whether the batch axes of all tensors must be merged into one; None: they may be.
        owned: whether the logits may be changed in place.
    """

    normalizer_scale: float
    checks: ClassVar[bool] = True
    merges: ClassVar[bool | None] = None
    owned: ClassVar[bool] = True

    def operands(self, call: TorchCall) -> Tensors:
        """Return the tensors from which the logits of a call are computed; by default queries and keys."""
        return call.query, call.key

    @property
    def direct(self) -> bool:
        """Whether the operands are the queries and keys of the call."""
        return False

    @abstractmethod
    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits and the tensors that `gradients` needs, or None if the data is not supported.

        Args:
            tensors: the operands.
            gradient: whether gradients are needed, so that elements that are not finite must be detected.
        """

    @abstractmethod
    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradient of each tensor for which `needs` is True, before sums over broadcast axes.

        Args:
            d: gradient of the scaled logits, which may be overwritten.
            tensors: as in `forward`.
            saved: the tensors that `forward` returned after the logits.
            needs: whether the gradient of each tensor is needed.
        """

    @abstractmethod
    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits, not scaled, such that autograd can differentiate them repeatedly."""


@dataclass(frozen=True)
class GivenLogits(PairLogits):
    """Logits that a score computed, as the only tensor."""

    checks = False
    merges = False
    owned = False

    def operands(self, call: TorchCall) -> Tensors:
        """Return the logits that the score computes."""
        call = cast("TorchCall", project_call(call))
        found = call.score.projected_logits(call.query, call.key, call.tile)
        if projects_nothing(call.score):  # a score of the caller may refer to other tensors
            refuse_recorded_closures(cast("Tensor", found), call)
        logits = cast("Tensor", arrays.cast(found, call.value.dtype))
        shape = (call.tile.q_total, call.tile.k_total)
        return (logits if logits.shape[-2:] == shape else logits.expand(*logits.shape[:-2], *shape),)

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors:
        """Return the scaled logits."""
        (logits,) = cast("list[Tensor]", tensors)
        return (logits if self.normalizer_scale == 1 else logits * self.normalizer_scale,)

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return s d."""
        return (d if self.normalizer_scale == 1 else d.mul_(self.normalizer_scale),)

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        return cast("Tensor", tensors[0])


@dataclass(frozen=True)
class Products(PairLogits):
    """Inner products of two projections times `scale`, with an offset or a soft cap.

    The tensors are both projections, and the sum of the offsets if there are any. If not `projected`, the projections
    are the queries and keys.
    """

    scale: float = 1.0
    cap: float | None = None
    projected: bool = True
    has_offset: bool = False

    @property
    def direct(self) -> bool:
        """Whether the operands are the queries and keys of the call."""
        return not (self.projected or self.has_offset)

    def operands(self, call: TorchCall) -> Tensors:
        """Return the projections, and the sum of the offsets that scores add to their products if there are any."""
        score, offsets = call.score, []
        while self.has_offset and score.adds_offset and not score.is_inner_product:
            assert isinstance(score, PointwiseScore)
            offsets.append(cast("Tensor", score.offset(call.tile, call.value)))
            score = score.score
        sides = project_call(call) if self.projected else call
        total = [reduce(add, offsets)] if offsets else []
        return cast("Tensor", sides.query), cast("Tensor", sides.key), *total

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits, and the tanh if there is a cap."""
        left, right, *offsets = cast("list[Tensor]", tensors)
        if self.cap is not None:
            tanh = scaled_product(left, right.mT, self.scale / self.cap)
            # A logit of −inf excludes its pair, but its tanh would be −1.
            if not has_finite_sum(tanh):
                return None
            tanh = tanh.tanh_()
            return tanh * (self.cap * self.normalizer_scale), tanh
        logits = scaled_product(left, right.mT, self.scale * self.normalizer_scale)
        if gradient and not has_finite_sum(logits):
            return None
        for offset in offsets:
            offset = offset if self.normalizer_scale == 1 else offset * self.normalizer_scale
            # A product may have fewer batch axes than the offset.
            fits = offset.ndim <= 2 or offset.shape[:-2] == logits.shape[:-2]
            logits = logits.add_(offset) if fits else logits + offset
        return (logits,)

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradients of both projections and of the offset."""
        import torch

        left, right = cast("list[Tensor]", tensors)[:2]
        d_offset = [None if not need else d * self.normalizer_scale for need in needs[2:]]
        if saved:
            d = torch.ops.aten.tanh_backward.grad_input(d, cast("Tensor", saved[0]), grad_input=d)
        scale = self.scale * self.normalizer_scale
        d = d if scale == 1 else d.mul_(scale)
        return product(d, right) if needs[0] else None, product(d.mT, left) if needs[1] else None, *d_offset

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        left, right, *offset = cast("list[Tensor]", tensors)
        logits = sum(offset, left @ right.mT * self.scale)
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


@dataclass(frozen=True)
class GatedProducts(PairLogits):
    """Inner products times a gate: the last columns of both projections belong to the gate."""

    def operands(self, call: TorchCall) -> Tensors:
        """Return the projections."""
        sides = project_call(call)
        return cast("Tensor", sides.query), cast("Tensor", sides.key)

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits, the products and the gate."""
        left, right = cast("tuple[Tensor, Tensor]", tensors)
        products = scaled_product(left[..., :-1], right[..., :-1].mT, self.normalizer_scale)
        gate = left[..., -1:] + right[..., -1:].mT
        if gradient and not (has_finite_sum(products) and has_finite_sum(gate)):
            return None
        gate.sigmoid_()
        return products * gate, products, gate

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradients of both projections."""
        import torch

        (left, right), (products, gate) = cast("tuple[Tensor, Tensor]", tensors), cast("tuple[Tensor, Tensor]", saved)
        d = d.mul_(gate)
        # The gradient of the gate's argument: dz ∘ S ∘ G (1 − G).
        d_gate = torch.addcmul(products, products, gate, value=-1).mul_(d)
        d = d if self.normalizer_scale == 1 else d.mul_(self.normalizer_scale)
        return (
            torch.cat([product(d, right[..., :-1]), d_gate.sum(-1, keepdim=True)], -1),
            torch.cat([product(d.mT, left[..., :-1]), d_gate.sum(-2)[..., None]], -1),
        )

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        left, right = cast("tuple[Tensor, Tensor]", tensors)
        gate = (left[..., -1:] + right[..., -1:].mT).sigmoid()
        return gate * (left[..., :-1] @ right[..., :-1].mT)
