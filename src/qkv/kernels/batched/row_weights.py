"""Weights of whole rows of scaled logits z in few operations, and their backward pass, for short sequences.

    softmax       w = e^z / Σ e^z                              dz = w (dw − Σ w dw)
    top-k         softmax of the k largest logits              the same
    sparse        w = max(0, z − τ)^p, p ≥ 1                   dz = p v (dw − Σ v dw / Σ v),  v = w^((p − 1) / p)
    sigmoid       w = σ(z + b)                                 dz = w (1 − w) dw

The threshold τ of short rows follows from the means m_j of the j largest logits. For p = 1 it is max_j (m_j − 1 / j).
For p = 2 it is the largest m_j − √(1 / j − u_j + m_j²) that does not exceed the j-th largest logit, where u_j is the
mean of the squares of the j largest. Other thresholds are found by Newton's method.

Source: Peters, Niculae, Martins (2019), https://arxiv.org/abs/1905.05702, section 3.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, cast

import torch

from qkv.core.typing import Float, PairTensor, Tensor
from qkv.kernels.runtime.sparse_weights import write_sparse_weights
from qkv.kernels.runtime.subnormals import LEAST_WEIGHT, divides_among_threads
from qkv.normalizers.base import Normalizer
from qkv.plan.time_model import FEW_KEYS

_REGISTER = 16
"""Elements of a vector register."""
_MANY_ROWS = 128
"""Number of short rows from which their transposition takes less time than it saves."""
_MANY_BYTES = 2**24
"""Size of an array from which page faults take more time than rows that overlap in registers."""
_MAX_SORTED = 2**19
"""Largest number of elements times keys of rows that are sorted. With 64 keys (AMD EPYC with AVX-512), sorting 128 rows
takes .4 to .6 of the time of Newton's method, and 2,048 rows 4 times (sparsemax) or 8 times (entmax)."""
_DIVIDED = 2**15
"""Number of elements from which PyTorch divides an operation among its threads."""
_LONG_ROW = 200
"""Length of rows from which the gradient takes less time in place."""


@dataclass(frozen=True)
class RowWeights(ABC):
    """Base class of functions that compute weights from whole rows of logits, and their gradient.

    The logits are multiplied by `scale` before. Logits of −inf get the weight 0. Rows without another logit, and rows
    with NaN or +inf, may get NaN.

    Attributes:
        normalizer: normalizer that defines the weights.
        scale: factor by which the normalizer multiplies the logits.
        is_softmax: whether the weights are the softmax of all scaled logits of a row.
    """

    normalizer: Normalizer
    scale: float = 1.0
    is_softmax: ClassVar[bool] = False

    @abstractmethod
    def weights(self, logits: PairTensor, owned: bool = False) -> PairTensor:
        """Return the weights of scaled logits, which may be overwritten if `owned`, without recording a graph."""

    def differentiable(self, logits: PairTensor) -> PairTensor:
        """Return the weights of logits without scale, computed such that autograd can differentiate them repeatedly."""
        return cast("Tensor", self.normalizer.weights(logits))

    @abstractmethod
    def logit_gradient(self, weights: PairTensor, gradient: PairTensor) -> PairTensor:
        """Return the gradient of the scaled logits, given that of the weights, which may be overwritten."""


def softmax_in_place(keys: int, size: int) -> bool:
    """Return whether PyTorch's softmax in place, where each row is read before it is written, takes less time.

    Another large array costs page faults. In place, the vector that ends a row overlaps the next row, unless the length
    is a multiple of the width of a register; reading it again so soon after it was written takes twice the time.

    Args:
        keys: length of the rows.
        size: size of all rows in bytes.
    """
    return keys % _REGISTER == 0 or (size > _MANY_BYTES and keys > _REGISTER)


def _prefers_in_place(rows: PairTensor) -> bool:
    return softmax_in_place(rows.shape[-1], rows.nbytes)


def _by_columns(rows: PairTensor) -> Float[Tensor, "*_ k n"] | None:
    """Return a view of the rows as columns if the softmax of its columns takes less time, otherwise None.

    PyTorch computes rows that are shorter than a register element by element, and columns in vectors along the queries:
    16,384 rows of 8 logits take 2.4 ms, and .2 ms as columns (AMD EPYC with AVX-512); 640 rows 100 µs, and 17 µs.
    """
    keys = rows.shape[-1]
    if keys >= _REGISTER:
        return None
    if rows.shape[-2] >= _REGISTER:
        return rows.mT
    return rows.reshape(-1, keys).mT if rows.numel() >= _MANY_ROWS * keys else None


@dataclass(frozen=True)
class _SoftmaxRows(RowWeights):
    is_softmax = True

    def weights(self, logits: PairTensor, owned: bool = False) -> PairTensor:
        columns = _by_columns(logits)
        if columns is not None:
            copied = columns.contiguous()
            if owned or copied.data_ptr() != logits.data_ptr():
                return torch._softmax(copied, -2, False, out=copied).mT.view(logits.shape)
            return torch._softmax(copied, -2, False).mT.view(logits.shape)
        if owned and logits.is_contiguous() and _prefers_in_place(logits):  # PyTorch's result is wrong otherwise
            weights = torch._softmax(logits, -1, False, out=logits)
        else:
            weights = torch._softmax(logits, -1, False)
        if weights.numel() >= _DIVIDED and divides_among_threads(weights):
            torch.nn.functional.threshold(weights, LEAST_WEIGHT, 0.0, inplace=True)
        return weights

    def differentiable(self, logits: PairTensor) -> PairTensor:
        return (logits * self.scale).softmax(-1)

    def logit_gradient(self, weights: PairTensor, gradient: PairTensor) -> PairTensor:
        columns = _by_columns(gradient)
        if columns is not None:
            of_weights = weights.reshape(-1, weights.shape[-1]).mT if columns.ndim == 2 else weights.mT
            found = torch._softmax_backward_data(columns, of_weights, -2, weights.dtype)
            return found.mT.view(gradient.shape)
        out = {"grad_input": gradient} if gradient.shape[-1] >= _LONG_ROW or _prefers_in_place(gradient) else {}
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype, **out)


@dataclass(frozen=True)
class _TopRows(_SoftmaxRows):
    count: int = 1
    is_softmax = False

    def weights(self, logits: PairTensor, owned: bool = False) -> PairTensor:
        """Return the softmax of the largest logits of each row; ties go to the lowest index."""
        count, keys = self.count, logits.shape[-1]
        ordered, places = logits.topk(min(count + 1, keys))
        largest, index = ordered[..., :count], places[..., :count]
        if count < keys:  # the index is unique unless the next logit is equal; weights of −inf are 0 at any index
            tied = largest[..., -1] == ordered[..., -1]
            if bool(tied.any()) and bool((tied & (ordered[..., -1] != -math.inf)).any()):
                largest, index = (x[..., :count] for x in logits.sort(dim=-1, descending=True, stable=True))
        weights = torch.zeros_like(logits, memory_format=torch.contiguous_format)
        return weights.scatter_(-1, index, super().weights(largest, owned=True))

    def differentiable(self, logits: PairTensor) -> PairTensor:
        return cast("Tensor", self.normalizer.weights(logits))


@dataclass(frozen=True)
class _SparseRows(RowWeights):
    power: float = 1

    def weights(self, logits: PairTensor, owned: bool = False) -> PairTensor:
        keys = logits.shape[-1]
        # The error of the closed form grows with the number of keys, and sorting many rows takes most of the time.
        if keys > FEW_KEYS or logits.numel() * keys > _MAX_SORTED or self.power not in (1, 2):
            out = torch.empty_like(logits, memory_format=torch.contiguous_format)
            return write_sparse_weights(logits, out, self.power, 1.0)
        inverse, averages = _averages(keys, logits.dtype, logits.device)
        ordered = logits.sort(dim=-1, descending=True).values
        largest = ordered[..., :1]
        # τ is at least −1. At −1 itself the averages of one key and of several would be equal but for rounding, and a
        # row with one key of weight 1 would get the largest, at which its weight is 1 − 2^−52.
        ordered = (ordered - largest).clamp_min_(-2.0 if self.power == 1 else -1.0)
        tau = ordered @ averages
        if self.power == 1:
            tau = tau.sub_(inverse).amax(-1, keepdim=True)
            return (logits - largest if not owned else logits.sub_(largest)).sub_(tau).relu_()
        variance = torch.addcmul(inverse, tau, tau).sub_(ordered.square() @ averages)
        tau = tau.sub_(variance.relu_().sqrt_())
        tau = tau.masked_fill_(tau > ordered, -1.0).amax(-1, keepdim=True)
        return (logits - largest if not owned else logits.sub_(largest)).sub_(tau).relu_().square_()

    def logit_gradient(self, weights: PairTensor, gradient: PairTensor) -> PairTensor:
        """Return p v (dw − Σ v dw / Σ v)."""
        if self.power in (1, 2):
            slope = weights.sign() if self.power == 1 else weights.sqrt()
        else:
            slope = weights.log2().mul_(1 - 1 / self.power).exp2_()
        total = slope.sum(-1, keepdim=True).clamp_(min=0.5)  # it is at least 1, or 0 for a row without keys
        mean = (slope * gradient).sum(-1, keepdim=True).div_(total)
        found = gradient.sub_(mean).mul_(slope)
        return found if self.power == 1 else found.mul_(self.power)


@lru_cache(maxsize=128)
def _averages(
    keys: int, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, " keys"], Float[Tensor, "keys keys"]]:
    """Return 1 / j for j from 1, and the matrix that maps a row to the means of its first j elements."""
    inverse = 1 / torch.arange(1, keys + 1, dtype=dtype, device=device)
    return inverse, inverse.repeat(keys, 1).triu_()


@dataclass(frozen=True)
class _SigmoidRows(RowWeights):
    def weights(self, logits: PairTensor, owned: bool = False) -> PairTensor:
        prepared = cast("Tensor", self.normalizer.prepare(logits))
        return prepared.sigmoid_() if owned else prepared.sigmoid()

    def logit_gradient(self, weights: PairTensor, gradient: PairTensor) -> PairTensor:
        """Return w (1 − w) dw."""
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
        return _SparseRows(normalizer, scale, normalizer.power)
    return _SigmoidRows(normalizer) if normalizer.is_sigmoid else None
