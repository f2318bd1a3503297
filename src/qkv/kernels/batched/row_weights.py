"""Weights of whole rows of logits in few operations, and their backward pass, for the normalizers of short sequences.

    softmax       w = e^(s z) / Σ e^(s z)                        dz = s w (dw − Σ w dw)
    top-k         softmax of the k largest logits                the same
    sparse        w = max(0, s z − τ)^p, p = 1 or 2              dz = p s v (dw − Σ v dw / Σ v),  v = w^((p − 1) / p)
    sigmoid       w = σ(z + b)                                   dz = w (1 − w) dw

The threshold τ of short rows follows from the sums S_j of the j largest y = s z. For p = 1 it is max_j (S_j − 1) / j.
For p = 2 it is m_j − √((1 − Q_j) / j) at the largest j for which it does not exceed y_j, where m_j is the mean of the j
largest and Q_j the sum of their squared differences from it.

Source: Peters, Niculae, Martins (2019), https://arxiv.org/abs/1905.05702, section 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.thresholds import sparse_logit_gradient, write_sparse_weights
from qkv.normalizers.base import Normalizer

__all__ = ["RowWeights", "row_weights"]

_CLOSED_FORM_KEYS = 64
"""Largest number of keys for which τ is computed by sorting; its error grows with the number of keys."""


@dataclass(frozen=True)
class RowWeights(ABC):
    """Base class of functions that compute weights from whole rows of logits, and their gradient.

    Logits of −inf get the weight 0. Rows without another logit, and rows with NaN or +inf, may get NaN.

    Attributes:
        normalizer: normalizer that defines the weights.
    """

    normalizer: Normalizer

    @abstractmethod
    def weights(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the weights, without recording a graph."""

    def differentiable(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the weights, computed such that autograd can differentiate them repeatedly."""
        return cast("Tensor", self.normalizer.weights(logits))

    @abstractmethod
    def logit_gradient(
        self, weights: Float[Tensor, "*batch q k"], gradient: Float[Tensor, "*batch q k"]
    ) -> Float[Tensor, "*batch q k"]:
        """Return the gradient of the logits, given that of the weights, which may be overwritten."""


@dataclass(frozen=True)
class _SoftmaxRows(RowWeights):
    scale: float

    def weights(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the softmax of each row."""
        return (logits if self.scale == 1 else logits * self.scale).softmax(-1)

    def differentiable(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the softmax of each row, which autograd can differentiate repeatedly."""
        return self.weights(logits)

    def logit_gradient(
        self, weights: Float[Tensor, "*batch q k"], gradient: Float[Tensor, "*batch q k"]
    ) -> Float[Tensor, "*batch q k"]:
        """Return s w (dw − Σ w dw)."""
        import torch

        # In place: each row is read completely before it is written.
        found: Tensor = torch._softmax_backward_data(gradient, weights, -1, weights.dtype, grad_input=gradient)
        return found if self.scale == 1 else found.mul_(self.scale)


@dataclass(frozen=True)
class _TopRows(_SoftmaxRows):
    count: int

    def weights(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the softmax of the largest logits of each row; ties go to the lowest index."""
        import torch

        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        largest = ordered.narrow(-1, 0, self.count)
        kept = (largest if self.scale == 1 else largest * self.scale).softmax(-1)
        return torch.zeros_like(logits).scatter_(-1, index.narrow(-1, 0, self.count), kept)

    def differentiable(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the weights of the normalizer itself, which autograd can differentiate repeatedly."""
        return cast("Tensor", self.normalizer.weights(logits))


@dataclass(frozen=True)
class _SparseRows(RowWeights):
    power: int
    scale: float

    def weights(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the sparsemax or entmax weights of each row."""
        import torch

        keys = logits.shape[-1]
        if keys > _CLOSED_FORM_KEYS:
            out = torch.empty_like(logits, memory_format=torch.contiguous_format)
            return write_sparse_weights(logits, out, self.power, self.scale)
        y = logits - logits.amax(-1, keepdim=True)
        if self.scale != 1:
            y.mul_(self.scale)
        y.clamp_(min=-1.0)  # τ is at least −1
        ordered = y.sort(dim=-1, descending=True).values
        count = torch.arange(1, keys + 1, dtype=y.dtype, device=y.device)
        if self.power == 1:
            tau = ((ordered.cumsum(-1) - 1) / count).amax(-1, keepdim=True)
            return y.sub_(tau).clamp_(min=0)
        mean, squares = ordered.cumsum(-1).div_(count), ordered.square().cumsum(-1)
        # (1 − Q) / j with Q = Σ y² − j m²
        variance = squares.neg_().add_(1).div_(count).addcmul_(mean, mean)
        tau = mean.sub_(variance.clamp_(min=0).sqrt_())
        last = (tau[..., 1:] <= ordered[..., 1:]).sum(-1, keepdim=True)  # the first key is always in the support
        return y.sub_(tau.gather(-1, last)).clamp_(min=0).square_()

    def logit_gradient(
        self, weights: Float[Tensor, "*batch q k"], gradient: Float[Tensor, "*batch q k"]
    ) -> Float[Tensor, "*batch q k"]:
        """Return p s v (dw − Σ v dw / Σ v)."""
        return sparse_logit_gradient(weights, gradient, self.power, self.scale)


@dataclass(frozen=True)
class _SigmoidRows(RowWeights):
    def weights(self, logits: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k"]:
        """Return the sigmoid of each logit plus the bias."""
        return cast("Tensor", self.normalizer.prepare(logits)).sigmoid()

    def logit_gradient(
        self, weights: Float[Tensor, "*batch q k"], gradient: Float[Tensor, "*batch q k"]
    ) -> Float[Tensor, "*batch q k"]:
        """Return w (1 − w) dw."""
        import torch

        found: Tensor = torch.ops.aten.sigmoid_backward.grad_input(gradient, weights, grad_input=gradient)
        return found


def row_weights(normalizer: Normalizer, keys: int) -> RowWeights | None:
    """Return the functions for a normalizer without arrays and rows of `keys` logits, or None if there are none."""
    if normalizer.arrays() or normalizer.stochastic:
        return None
    scale, inner = normalizer.scale, normalizer.inner
    if normalizer.log_sum_exp and normalizer.shift_invariant and scale is not None:
        return _SoftmaxRows(normalizer, scale)
    if normalizer.top_k is not None and inner is not None:
        rows = row_weights(inner, keys)
        if isinstance(rows, _SoftmaxRows):
            return _TopRows(normalizer, rows.scale, min(normalizer.top_k, keys))
    if normalizer.power is not None and scale is not None:
        return _SparseRows(normalizer, normalizer.power, scale)
    return _SigmoidRows(normalizer) if normalizer.is_sigmoid else None
