"""Logits of all pairs of a batch from inner products in few operations, and their gradients.

    given           z from the score itself
    product         z = f <q, k> + offset
    soft cap        z = c tanh(f <q, k> / c)

All logits are multiplied by the scale s of the normalizer, so that it needs no further pass over them.
`vector_logits.py` and `gated_logits.py` have the logits that are computed from queries and keys directly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import ClassVar, TypeAlias, cast

import torch

from qkv.core import arrays
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, PairTensor, Tensor
from qkv.kernels.batched.mask_bias import row_major
from qkv.kernels.runtime.closure_gradients import refuse_recorded_closures
from qkv.kernels.runtime.faster_ops import has_fast_tanh
from qkv.kernels.runtime.isolated_autograd import project_call, projects_nothing
from qkv.scores.forms import Offset
from qkv.scores.wrapper import PointwiseScore

_MANY = 1 << 13
"""Number of elements from which four operators take less time than `tanh_`."""


Tensors: TypeAlias = Sequence[Float[Tensor, "*_"] | None]
Gradients: TypeAlias = tuple[Float[Tensor, "*_"] | None, ...]
Bias: TypeAlias = Float[Tensor, "*_ #q #k"] | None
"""0 or −inf for each pair, or offsets; None stands for 0."""


def product(x: Float[Tensor, "*#batch n m"], y: Float[Tensor, "*#batch m l"]) -> Float[Tensor, "*batch n l"]:
    """Return the matrix product, for three axes in half the time of the operator `@`."""
    return torch.bmm(x, y) if x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0] else x @ y


def scaled_product(
    x: Float[Tensor, "*#batch n m"], y: Float[Tensor, "*#batch m l"], scale: float
) -> Float[Tensor, "*batch n l"]:
    """Return `scale` times the matrix product."""
    if scale == 1:
        return product(x, y)
    if x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0]:
        return torch.baddbmm(_constant(0.0, x.dtype, x.device), x, y, beta=0, alpha=scale)
    return (x * scale) @ y if x.numel() <= y.numel() else x @ (y * scale)


def biased_product(
    left: Float[Tensor, "*#batch q width"], right: Float[Tensor, "*#batch k width"], scale: float, bias: Bias
) -> PairTensor:
    """Return `scale` times all inner products plus `bias`, where None stands for 0."""
    if bias is not None and bias.ndim <= 3 and left.ndim == right.ndim == 3 and left.shape[0] == right.shape[0]:
        return torch.baddbmm(bias, left, right.mT, alpha=scale)
    return add_bias(scaled_product(left, right.mT, scale), bias)


def add_bias(logits: Float[Tensor, "*#batch q k"], bias: Bias) -> PairTensor:
    """Return logits, which may have fewer batch axes than the bias and are overwritten, plus `bias`; None is 0."""
    if bias is None:
        return logits
    return logits.add_(bias) if bias.ndim <= 2 or bias.shape[:-2] == logits.shape[:-2] else logits + bias


def finite_product(
    left: Float[Tensor, "*#batch q width"],
    right: Float[Tensor, "*#batch k width"],
    scale: float,
    bias: Bias,
    checked: bool = True,
) -> PairTensor | None:
    """Return the result of `biased_product`, or None if `checked` and `left` or `right` is not finite."""
    q, k = left.shape[-2], right.shape[-2]
    if not checked:
        return biased_product(left, right, scale, bias)
    if q * k > left.shape[-1] * (q + k):
        return biased_product(left, right, scale, bias) if has_finite_sum(left) and has_finite_sum(right) else None
    # The sum of few products takes less time than the sums of both sides.
    logits = scaled_product(left, right.mT, scale)
    return add_bias(logits, bias) if has_finite_sum(logits) else None


def product_gradients(
    d: PairTensor,
    left: Float[Tensor, "*#batch q width"],
    right: Float[Tensor, "*#batch k width"],
    scale: float,
    needs: Sequence[bool] = (True, True),
) -> tuple[Float[Tensor, "*batch q width"] | None, Float[Tensor, "*batch k width"] | None]:
    """Return the gradients of both sides of `scale` times their inner products, given the gradient of the latter."""
    d = d.to(left.dtype)
    d_left = scaled_product(d, right, scale) if needs[0] else None
    return d_left, scaled_product(d.mT, left, scale) if needs[1] else None


def is_shared(x: Float[Tensor, "*_ k width"], d: PairTensor, left: Float[Tensor, "*_ q width"]) -> bool:
    """Return whether all batch elements of `d` and `left` share `x`, so that its gradient is one matrix product."""
    one = x.numel() == x.shape[-1] * x.shape[-2] and math.prod(d.shape[:-2]) > 1
    return one and d.shape[:-1] == left.shape[:-1]


def shared_gradient(
    d: PairTensor, left: Float[Tensor, "*batch q width"], like: Float[Tensor, "*_ k width"]
) -> Float[Tensor, "*_ k width"]:
    """Return the sum of dᵀ left over all batch elements, in the shape of `like`."""
    return (d.flatten(0, -2).mT @ left.flatten(0, -2)).view(like.shape)


@lru_cache(maxsize=16)
def _constant(number: float, dtype: torch.dtype, device: torch.device) -> Float[Tensor, ""]:
    return torch.tensor(number, dtype=dtype, device=device)


def half_tanh_(x: Float[Tensor, "*_"]) -> Float[Tensor, "*_"]:
    """Replace x by tanh(x / 2) = 1 / (1 + 2 / (e^x − 1)), for many elements where `tanh_` takes longer."""
    if x.numel() < _MANY:
        return x.mul_(0.5).tanh_()
    x = x.expm1_().reciprocal_()
    return torch.add(_constant(1.0, x.dtype, x.device), x, alpha=2, out=x).reciprocal_()


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
        given: whether the only tensor is the logits.
        rounds: whether the first two tensors that `gradients` gets may have a narrower dtype than the others.
    """

    normalizer_scale: float
    checks: ClassVar[bool] = True
    rounds: ClassVar[bool] = False
    given: ClassVar[bool] = False
    merges: ClassVar[bool | None] = None

    def operands(self, call: TorchCall) -> Tensors:
        """Return the tensors from which the logits of a call are computed; by default queries and keys."""
        return call.query, call.key

    @property
    def direct(self) -> bool:
        """Whether the operands are the queries and keys of the call."""
        return False

    @abstractmethod
    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        """Return the scaled logits and the tensors that `gradients` needs, or None if the data is not supported.

        Args:
            tensors: the operands.
            gradient: whether gradients are needed, so that elements that are not finite must be detected.
            bias: 0 or −inf, to add to the scaled logits; the result must then be a new tensor. None: 0.
        """

    @abstractmethod
    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradient of each tensor for which `needs` is True, before sums over broadcast axes.

        Args:
            d: gradient of the scaled logits, which may be overwritten.
            tensors: as in `forward`.
            saved: the tensors that `forward` returned after the logits.
            needs: whether the gradient of each tensor is needed.
        """

    @abstractmethod
    def differentiable(self, tensors: Tensors) -> PairTensor:
        """Return the logits, not scaled, such that autograd can differentiate them repeatedly."""


@dataclass(frozen=True)
class GivenLogits(PairLogits):
    """Logits that a score computed, as the only tensor."""

    checks = False
    given = True
    merges = False

    def operands(self, call: TorchCall) -> Tensors:
        unchanged = projects_nothing(call.score)
        sides = call if unchanged else cast("TorchCall", project_call(call))
        found = call.score.projected_logits(sides.query, sides.key, call.tile)
        if unchanged:  # a score of the caller may refer to other tensors
            refuse_recorded_closures(cast("Tensor", found), call)
        logits = cast("Tensor", arrays.cast(found, call.value.dtype))
        shape = (call.tile.q_total, call.tile.k_total)
        return (logits if logits.shape[-2:] == shape else logits.expand(*logits.shape[:-2], *shape),)

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors:
        (logits,) = cast("list[Tensor]", tensors)
        if bias is not None:
            return (torch.add(bias, logits, alpha=self.normalizer_scale),)
        return (logits if self.normalizer_scale == 1 else logits * self.normalizer_scale,)

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        return (d if self.normalizer_scale == 1 else d.mul_(self.normalizer_scale),)

    def differentiable(self, tensors: Tensors) -> PairTensor:
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
    rounds = True

    @property
    def direct(self) -> bool:
        return not (self.projected or self.has_offset)

    def operands(self, call: TorchCall) -> Tensors:
        score, offsets = call.score, []
        while self.has_offset and isinstance(score.form, Offset):
            assert isinstance(score, PointwiseScore)
            offsets.append(cast("Tensor", score.offset(call.tile, call.value)))
            score = score.score
        sides = project_call(call) if self.projected else call
        total = [row_major(reduce(add, offsets))] if offsets else []
        return cast("Tensor", sides.query), cast("Tensor", sides.key), *total

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        left, right, *offsets = cast("list[Tensor]", tensors)
        if self.cap is not None:
            fast = has_fast_tanh(left)
            tanh = scaled_product(left, right.mT, (1 if fast else 2) * self.scale / self.cap)
            # A logit of −inf excludes its pair, but its tanh would be −1.
            if not has_finite_sum(tanh):
                return None
            tanh, scale = tanh.tanh_() if fast else half_tanh_(tanh), self.cap * self.normalizer_scale
            if bias is not None:
                return torch.add(bias, tanh, alpha=scale), tanh
            return tanh * scale if gradient else tanh.mul_(scale), tanh
        for offset in offsets:
            if bias is None:
                bias = offset if self.normalizer_scale == 1 else offset * self.normalizer_scale
            else:
                bias = torch.add(bias, offset, alpha=self.normalizer_scale)
        logits = finite_product(left, right, self.scale * self.normalizer_scale, bias, gradient)
        return None if logits is None else (logits,)

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        left, right = cast("list[Tensor]", tensors)[:2]
        scale = self.normalizer_scale
        d_offset = [None if not need else d if scale == 1 else d * scale for need in needs[2:]]
        if saved:
            d = torch.ops.aten.tanh_backward.grad_input(d, cast("Tensor", saved[0]), grad_input=d)
        if needs[1] and is_shared(right, d, left):
            d_left = product_gradients(d, left, right, scale * self.scale, (needs[0], False))[0]
            d_right = shared_gradient(d.to(left.dtype), left, right).mul_(scale * self.scale)
            return d_left, d_right, *d_offset
        return *product_gradients(d, left, right, scale * self.scale, needs), *d_offset

    def differentiable(self, tensors: Tensors) -> PairTensor:
        left, right, *offset = cast("list[Tensor]", tensors)
        logits = sum(offset, left @ right.mT * self.scale)
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap
