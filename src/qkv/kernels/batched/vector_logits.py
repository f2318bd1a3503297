"""Logits of all pairs of a batch from queries and keys in few operations, and their gradients.

unit            z = f <q, k> / (‖q‖ ‖k‖)
square          z = −a ‖q − k‖²
distance        z = −a ‖q − k‖
tanh            z = Σ_h v_h tanh(a_h + b_h) with a = W q + c and b = U k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from qkv.core.distances import distance_gradients, pair_distances
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.batched.additive import tanh_sum_gradients, tanh_sums
from qkv.kernels.batched.pair_logits import (
    Gradients,
    PairLogits,
    Tensors,
    has_finite_sum,
    product,
    scaled_product,
)
from qkv.kernels.runtime.isolated_autograd import project_call

__all__ = ["Distances", "SquaredDistances", "TanhSums", "UnitProducts"]


@dataclass(frozen=True)
class UnitProducts(PairLogits):
    """Cosine similarities times `scale`; the similarity with a row of zeros is 0."""

    scale: float = 1.0
    merges = True
    direct = True

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits, the unit vectors of queries and keys in one tensor, and their norms."""
        import torch

        query, key = cast("tuple[Tensor, Tensor]", tensors)
        both = torch.cat((query, key), -2)
        norms = torch.linalg.vector_norm(both, dim=-1, keepdim=True)
        low, high = (float(x) for x in torch.aminmax(norms))
        if low == 0:
            norms = norms.masked_fill_(norms == 0, math.inf)  # the unit vector and its gradient are 0
            low = float(norms.amin())
        # Squares of smaller or larger elements underflow or overflow. NaN fails both comparisons.
        if not (low > torch.finfo(norms.dtype).tiny ** 0.375 and high < math.inf):
            return None
        units = both.div_(norms)
        q = query.shape[-2]
        return scaled_product(units[..., :q, :], units[..., q:, :].mT, self.scale * self.normalizer_scale), units, norms

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradients of query and key, (du − u <u, du>) / ‖x‖ for each row x with unit vector u."""
        import torch

        units, norms = cast("tuple[Tensor, Tensor]", saved)
        q, scale = d.shape[-2], self.scale * self.normalizer_scale
        left, right = units[..., :q, :], units[..., q:, :]
        found = torch.cat((scaled_product(d, right, scale), scaled_product(d.mT, left, scale)), -2)
        found = found.addcmul_(units, (found * units).sum(-1, keepdim=True), value=-1).div_(norms)
        return found[..., :q, :], found[..., q:, :]

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        import torch

        units = []
        for x in cast("tuple[Tensor, Tensor]", tensors):
            square = (x * x).sum(-1, keepdim=True)
            units.append(x / torch.where(square == 0, math.inf, square).sqrt())
        return units[0] @ units[1].mT * self.scale


@dataclass(frozen=True)
class SquaredDistances(PairLogits):
    """Negative squared distances of queries and keys times `factor`, computed after the mean key is subtracted.

    If `shift_invariant`, the term of the query alone, which cancels in the weights, is omitted.
    """

    factor: float = 1.0
    shift_invariant: bool = True
    merges = True
    direct = True

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits, and queries and keys minus the mean key."""
        import torch

        query, key = cast("tuple[Tensor, Tensor]", tensors)
        total, share = key.sum(-2, keepdim=True), 1 / key.shape[-2]
        left, right = torch.sub(query, total, alpha=share), torch.sub(key, total, alpha=share)
        lengths = (right * right).sum(-1, keepdim=True).mT
        if not self.shift_invariant:
            lengths = lengths + (left * left).sum(-1, keepdim=True)
        factor = self.factor * self.normalizer_scale
        logits = torch.baddbmm(lengths, left, right.mT, beta=-factor, alpha=2 * factor)
        # A key that is not finite makes the center, and so every logit, NaN or infinite. If the weights of a row sum
        # to 1, they are then NaN, as they are for a query that is not finite.
        if gradient and not self.shift_invariant and not has_finite_sum(logits):
            return None
        return logits, left, right

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return 2 a Σ_j dz_ij (k_j − q_i) for the queries, and 2 a Σ_i dz_ij (q_i − k_j) for the keys."""
        import torch

        left, right = cast("tuple[Tensor, Tensor]", saved)
        scale = 2 * self.factor * self.normalizer_scale
        if self.shift_invariant:  # the gradients of each row sum to 0
            d_query = scaled_product(d, right, scale) if needs[0] else None
        else:
            d_query = torch.baddbmm(left * d.sum(-1, keepdim=True), d, right, beta=-scale, alpha=scale)
        if not needs[1]:
            return d_query, None
        return d_query, torch.baddbmm(right * d.sum(-2, keepdim=True).mT, d.mT, left, beta=-scale, alpha=scale)

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        query, key = cast("tuple[Tensor, Tensor]", tensors)
        center = key.detach().mean(-2, keepdim=True)
        left, right = query - center, key - center
        lengths = (left * left).sum(-1, keepdim=True) + (right * right).sum(-1)[..., None, :]
        return (2 * left @ right.mT - lengths) * self.factor


@dataclass(frozen=True)
class Distances(PairLogits):
    """Negative distances of queries and keys times `factor`."""

    factor: float = 1.0
    merges = True
    direct = True

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits, the distances, and the indices of near pairs or None."""
        query, key = cast("tuple[Tensor, Tensor]", tensors)
        found, near = pair_distances(query, key)
        if gradient and not has_finite_sum(found):
            return None
        return found * (-self.factor * self.normalizer_scale), found, near

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradients of query and key."""
        (query, key), (found, near) = cast("tuple[Tensor, Tensor]", tensors), saved
        d = d.mul_(-self.factor * self.normalizer_scale)
        return distance_gradients(query, key, cast("Tensor", found), near, d)

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        import torch

        query, key = cast("tuple[Tensor, Tensor]", tensors)
        difference = query[..., :, None, :] - key[..., None, :, :]
        square = (difference * difference).sum(-1)
        zero = square == 0
        return torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt()) * -self.factor


@dataclass(frozen=True)
class TanhSums(PairLogits):
    """Additive logits. The tensors are q, k and v `(*#batch, 1, hidden)`, and W, U and b if `mapped`.

    W and U have the shapes `(*#batch, hidden, width)`, and b that of v or it is None. Without them, q and k are
    projections.
    """

    mapped: bool = False
    merges = True

    def operands(self, call: TorchCall) -> Tensors:
        """Return q, k and v, and W, U and b if there are any."""
        score, vector = call.score, cast("Tensor", call.score.tanh_vector)[..., None, :]
        if score.linear_maps is None:
            sides = cast("TorchCall", project_call(call))
            return sides.query, sides.key, vector
        weight, key_weight, bias = cast("tuple[Tensor, Tensor, Tensor | None]", score.linear_maps)
        return call.query, call.key, vector, weight, key_weight, None if bias is None else bias[..., None, :]

    def forward(self, tensors: Tensors, gradient: bool) -> Tensors | None:
        """Return the scaled logits, the projections, the center, and the reciprocals if they fit one step."""
        vector = cast("Tensor", tensors[2])
        found = tanh_sums(*self._project(tensors), vector.flatten(0, -2))
        if found is None:
            return None
        logits, *saved = found
        assert logits is not None
        return (logits if self.normalizer_scale == 1 else logits.mul_(self.normalizer_scale)), *saved

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradients of q, k and v, and of W, U and b if there are any."""
        query, key, vector, *maps = cast("list[Tensor]", tensors)
        d = d if self.normalizer_scale == 1 else d.mul_(self.normalizer_scale)
        left, right, d_vector = tanh_sum_gradients(vector.flatten(0, -2), saved, d, needs[2])
        d_vector = None if d_vector is None else d_vector.view(vector.shape)
        if not self.mapped:
            return left, right, d_vector
        return (
            product(left, maps[0]) if needs[0] else None,
            product(right, maps[1]) if needs[1] else None,
            d_vector,
            _weight_gradient(left, query, maps[0]) if needs[3] else None,
            _weight_gradient(right, key, maps[1]) if needs[4] else None,
            left.sum(-2, keepdim=True) if needs[5] else None,
        )

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        left, right = self._project(tensors)
        hidden = (left[..., :, None, :] + right[..., None, :, :]).tanh()
        return (hidden @ cast("Tensor", tensors[2])[..., None, :, :].mT)[..., 0]

    def _project(self, tensors: Tensors) -> tuple[Float[Tensor, "*_ q hidden"], Float[Tensor, "*_ k hidden"]]:
        query, key, _, *maps = cast("list[Tensor]", tensors)
        if not self.mapped:
            return query, key
        left, right = product(query, maps[0].mT), product(key, maps[1].mT)
        return (left if maps[2] is None else left + maps[2]), right


def _weight_gradient(
    gradient: Float[Tensor, "batch n hidden"],
    x: Float[Tensor, "batch n width"],
    weight: Float[Tensor, "*_ hidden width"],
) -> Float[Tensor, "*_ hidden width"]:
    if weight.ndim > 2:
        return product(gradient.mT, x)
    return gradient.flatten(0, -2).mT @ x.flatten(0, -2)
