"""Logits of all pairs of a batch from queries and keys in few operations, and their gradients.

unit            z = <q, k> / (‖q‖ ‖k‖ T)
square          z = −a ‖q − k‖²
distance        z = −a ‖q − k‖
tanh            z = Σ_h v_h tanh(a_h + b_h) with a = W q + c and b = U k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from qkv.core.distances import distance_gradients, pair_distances
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, PairTensor, Tensor
from qkv.kernels.batched.additive import tanh_sum_gradients, tanh_sums
from qkv.kernels.batched.pair_logits import (
    Bias,
    Gradients,
    PairLogits,
    Tensors,
    add_bias,
    biased_product,
    finite_product,
    has_finite_sum,
    product,
    product_gradients,
    scaled_product,
)
from qkv.kernels.runtime.isolated_autograd import project_call
from qkv.scores.forms import MappedProduct, Tanh, UnitProduct, lift_limits


@dataclass(frozen=True)
class MappedProducts(PairLogits):
    """Inner products of W q and U k times `factor`.

    The tensors are queries, keys, W and U `(*#batch, hidden, width)`, of which W or U may be None for no map.
    """

    factor: float = 1.0
    merges = True
    rounds = True

    def operands(self, call: TorchCall) -> Tensors:
        query, key, (query_map, key_map) = call.query, call.key, cast("MappedProduct", call.score.form).maps()
        if key_map is None and query.shape[-1] <= key.shape[-1] and query.numel() > key.numel():
            query_map, key_map = None, cast("Tensor", query_map).mT  # <W q, k> = <q, Wᵀ k>, of fewer rows
        return cast("Tensors", (query, key, query_map, key_map))

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        left, right = self._sides(tensors)
        logits = finite_product(left, right, self.factor * self.normalizer_scale, bias, gradient)
        if logits is None:
            return None
        return logits, *[x for x, w in zip((left, right), tensors[2:], strict=True) if w is not None]

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        given, maps, computed = cast("list[Tensor]", tensors[:2]), tensors[2:], iter(cast("Sequence[Tensor]", saved))
        left, right = (x if w is None else next(computed) for x, w in zip(given, maps, strict=True))
        dtype, rounded = d.dtype, given[0].dtype
        left, right = left.to(rounded), right.to(rounded)
        sides_needed = needs[0] or needs[2], needs[1] or needs[3]
        sides = product_gradients(d, left, right, self.factor * self.normalizer_scale, sides_needed)
        found: list[Tensor | None] = []
        found_maps: list[Tensor | None] = []
        for n, (x, w, side) in enumerate(zip(given, maps, sides, strict=True)):
            if w is None or side is None:
                found.append(side)
                found_maps.append(None)
                continue
            side = side.to(dtype)
            found.append(product(side, w) if needs[n] else None)
            found_maps.append(map_gradient(side, x.to(dtype), w) if needs[n + 2] else None)
        return *found, *found_maps

    def differentiable(self, tensors: Tensors) -> PairTensor:
        left, right = self._sides(tensors)
        return left @ right.mT * self.factor

    def _sides(self, tensors: Tensors) -> tuple[Float[Tensor, "*_ q hidden"], Float[Tensor, "*_ k hidden"]]:
        query, key, *maps = cast("list[Tensor]", tensors)
        return mapped(query, maps[0]), mapped(key, maps[1])


def mapped(x: Float[Tensor, "*#batch n width"], weight: Float[Tensor, "*_ hidden width"] | None) -> Float[Tensor, "*_"]:
    """Return W x for each row x, or x if there is no W."""
    if weight is None:
        return x
    # `linear` calls fewer operators than the matrix product.
    return torch.nn.functional.linear(x, weight) if weight.ndim == 2 else product(x, weight.mT)


def map_gradient(
    gradient: Float[Tensor, "batch n hidden"],
    x: Float[Tensor, "batch n width"],
    weight: Float[Tensor, "*_ hidden width"],
) -> Float[Tensor, "*_ hidden width"]:
    """Return the gradient of the map W of a score of projections, given that of W x."""
    if weight.ndim > 2:
        return product(gradient.mT, x)
    return gradient.flatten(0, -2).mT @ x.flatten(0, -2)


@dataclass(frozen=True)
class UnitProducts(PairLogits):
    """Cosine similarities divided by a temperature; the similarity with a row of zeros is 0.

    If `temperature` is None, a tensor of one element follows queries and keys as the third operand.
    """

    temperature: float | None = 1.0
    merges = True

    @property
    def direct(self) -> bool:
        return self.temperature is not None

    def operands(self, call: TorchCall) -> Tensors:
        if self.temperature is not None:
            return call.query, call.key
        return call.query, call.key, cast("Tensor", cast("UnitProduct", call.score.form).temperature).view(1, 1)

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        query, key = cast("tuple[Tensor, Tensor]", tensors[:2])
        (q, width), k = query.shape[-2:], key.shape[-2]
        if not gradient and q * k <= width * (q + k):
            logits = self._divide_products(query, key, self._number(tensors), bias)
            if logits is not None:
                return (logits,)
        both = torch.cat((query, key), -2)
        norms = torch.linalg.vector_norm(both, dim=-1, keepdim=True)
        low, high = torch.stack(torch.aminmax(norms)).tolist()
        if low == 0:
            norms = norms.masked_fill_(norms == 0, math.inf)  # the unit vector and its gradient are 0
            low = float(norms.amin())
        # Squares of smaller or larger elements underflow or overflow. NaN fails both comparisons.
        if not (low > torch.finfo(norms.dtype).tiny ** 0.375 and high < math.inf):
            return None
        units = both.div_(norms)
        temperature = self._number(tensors)
        if temperature == 0:
            return None
        logits = biased_product(units[..., :q, :], units[..., q:, :], self.normalizer_scale / temperature, bias)
        return logits, units, norms

    def _divide_products(
        self,
        query: Float[Tensor, "*batch q width"],
        key: Float[Tensor, "*batch k width"],
        temperature: float,
        bias: Bias,
    ) -> PairTensor | None:
        """Return <q, k> / (‖q‖ ‖k‖ T), for few keys faster than from unit vectors; None if a norm is 0 or extreme."""
        norms = [torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (query, key)]
        extremes = torch.stack([extreme for x in norms for extreme in torch.aminmax(x)]).tolist()
        info = torch.finfo(query.dtype)
        if temperature == 0 or not (min(extremes) > info.tiny**0.375 and max(extremes) < info.max**0.375):
            return None
        logits = scaled_product(query, key.mT, self.normalizer_scale / temperature)
        return add_bias(logits.div_(norms[0]).div_(norms[1].mT), bias)

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of query and key, (du − u <u, du>) / ‖x‖ for each row x with unit vector u.

        The gradient of the temperature is −Σ <u, du> / T over the queries.
        """
        units, norms = cast("tuple[Tensor, Tensor]", saved)
        q, temperature = d.shape[-2], self._number(tensors)
        left, right = units[..., :q, :], units[..., q:, :]
        sides = cast("tuple[Tensor, Tensor]", product_gradients(d, left, right, self.normalizer_scale / temperature))
        found = torch.cat(sides, -2)
        radial = (found * units).sum(-1, keepdim=True)
        found = found.addcmul_(units, radial, value=-1).div_(norms)
        if self.temperature is not None:
            return found[..., :q, :], found[..., q:, :]
        d_temperature = radial[..., :q, :].sum().div_(-temperature).view(1, 1) if needs[2] else None
        return found[..., :q, :], found[..., q:, :], d_temperature

    def differentiable(self, tensors: Tensors) -> PairTensor:
        units = []
        for x in cast("tuple[Tensor, Tensor]", tensors[:2]):
            square = (x * x).sum(-1, keepdim=True)
            units.append(x / torch.where(square == 0, math.inf, square).sqrt())
        return units[0] @ units[1].mT / (cast("Tensor", tensors[2]) if self.temperature is None else self.temperature)

    def _number(self, tensors: Tensors) -> float:
        return cast("Tensor", tensors[2]).item() if self.temperature is None else self.temperature


@dataclass(frozen=True)
class SquaredDistances(PairLogits):
    """Negative squared distances of queries and keys times `factor`, computed after the mean key is subtracted.

    If `shift_invariant`, the term of the query alone, which cancels in the weights, is omitted.
    """

    factor: float = 1.0
    shift_invariant: bool = True
    merges = True
    direct = True
    rounds = True

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        """Return the scaled logits, and queries and keys minus the mean key, or None if keys are too far from it."""
        query, key = cast("tuple[Tensor, Tensor]", tensors)
        center = key.mean(-2, keepdim=True)  # rounded: unrounded products would differ between vectors and remainders
        left, right = query - center, key - center
        lengths = (right * right).sum(-1, keepdim=True).mT
        for_keys, for_queries = lift_limits(str(key.dtype).removeprefix("torch."))
        if lengths.amax().item() * (2 * self.factor) > for_keys:
            return None
        if not self.shift_invariant:
            of_queries = (left * left).sum(-1, keepdim=True)
            if of_queries.amax().item() * (2 * self.factor) > for_queries:
                return None
            lengths = lengths + of_queries
        factor = self.factor * self.normalizer_scale
        if bias is None:
            logits = torch.baddbmm(lengths, left, right.mT, beta=-factor, alpha=2 * factor)
        else:
            logits = torch.sub(bias, lengths, alpha=factor)
            fits = logits.shape[-2] == left.shape[-2] and logits.shape[:-2] == left.shape[:-2]
            add_product = logits.baddbmm_ if fits else logits.baddbmm
            logits = add_product(left, right.mT, alpha=2 * factor)
        # A key that is not finite makes the center, and so every logit, NaN or infinite. If the weights of a row sum
        # to 1, they are then NaN, as they are for a query that is not finite.
        if gradient and not self.shift_invariant and not (has_finite_sum(left) and has_finite_sum(right)):
            return None
        return logits, left, right

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return 2 a Σ_j dz_ij (k_j − q_i) for the queries, and 2 a Σ_i dz_ij (q_i − k_j) for the keys."""
        left, right = cast("tuple[Tensor, Tensor]", saved)
        scale = 2 * self.factor * self.normalizer_scale
        half = cast("Tensor", tensors[0]).dtype
        # A sum of a row that is 0 but for rounding counts too: otherwise a key at q would have a share in its gradient.
        d_query = left * d.sum(-1, keepdim=True) if needs[0] else None
        d_key = right * d.sum(-2, keepdim=True).mT if needs[1] else None
        if self.shift_invariant and half != d.dtype:
            products = product_gradients(d, left.to(half), right.to(half), scale, needs)
            pairs = zip(products, (d_query, d_key), strict=True)
            return tuple([None if x is None or y is None else torch.sub(x, y, alpha=scale) for x, y in pairs])
        return (
            None if d_query is None else d_query.baddbmm_(d, right, beta=-scale, alpha=scale),
            None if d_key is None else d_key.baddbmm_(d.mT, left, beta=-scale, alpha=scale),
        )

    def differentiable(self, tensors: Tensors) -> PairTensor:
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

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        query, key = cast("tuple[Tensor, Tensor]", tensors)
        found, near = pair_distances(query, key)
        if gradient and near is None and not has_finite_sum(found):  # otherwise the lengths of all vectors are finite
            return None
        factor = self.factor * self.normalizer_scale
        if bias is not None:
            return torch.sub(bias, found, alpha=factor), found, near
        return found * -factor if gradient else found.mul_(-factor), found, near

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        (query, key), (found, near) = cast("tuple[Tensor, Tensor]", tensors), saved
        sides = distance_gradients(query, key, cast("Tensor", found), near, d)
        return tuple([x.mul_(-self.factor * self.normalizer_scale) for x in sides])

    def differentiable(self, tensors: Tensors) -> PairTensor:
        query, key = cast("tuple[Tensor, Tensor]", tensors)
        difference = query[..., :, None, :] - key[..., None, :, :]
        square = (difference * difference).sum(-1)
        zero = square == 0
        return torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt()) * -self.factor


@dataclass(frozen=True)
class TanhSums(PairLogits):
    """Additive logits. The tensors are q, k and v `(*#batch, 1, hidden)`, and W, U and b if `mapped`.

    W and U have the shapes `(*#batch, hidden, width)`, and b that of v; each may be None. If not `mapped`, q and k are
    projections.
    """

    mapped: bool = False
    merges = True

    def operands(self, call: TorchCall) -> Tensors:
        form = cast("Tanh", call.score.form)
        vector = cast("Tensor", form.vector)[..., None, :]
        if form.maps is None:
            sides = cast("TorchCall", project_call(call))
            return sides.query, sides.key, vector
        weight, key_weight, bias = cast("tuple[Tensor | None, Tensor | None, Tensor | None]", form.maps)
        return call.query, call.key, vector, weight, key_weight, None if bias is None else bias[..., None, :]

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        """Return the scaled logits, the projections, the center, and the reciprocals if they fit one step."""
        vector = cast("Tensor", tensors[2])
        found = tanh_sums(*self._project(tensors), vector.flatten(0, -2), gradient)
        if found is None:
            return None
        logits, *saved = found
        assert logits is not None
        logits = logits if self.normalizer_scale == 1 else logits.mul_(self.normalizer_scale)
        return add_bias(logits, bias), *saved

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of q, k and v, and of W, U and b if there are any."""
        query, key, vector, *maps = cast("list[Tensor]", tensors)
        d = d if self.normalizer_scale == 1 else d.mul_(self.normalizer_scale)
        left, right, d_vector = tanh_sum_gradients(vector.flatten(0, -2), saved, d, needs[2])
        d_vector = None if d_vector is None else d_vector.view(vector.shape)
        if not self.mapped:
            return left, right, d_vector
        return (
            None if not needs[0] else left if maps[0] is None else product(left, maps[0]),
            None if not needs[1] else right if maps[1] is None else product(right, maps[1]),
            d_vector,
            map_gradient(left, query, maps[0]) if needs[3] else None,
            map_gradient(right, key, maps[1]) if needs[4] else None,
            left.sum(-2, keepdim=True) if needs[5] else None,
        )

    def differentiable(self, tensors: Tensors) -> PairTensor:
        left, right = self._project(tensors)
        hidden = (left[..., :, None, :] + right[..., None, :, :]).tanh()
        return (hidden @ cast("Tensor", tensors[2])[..., None, :, :].mT)[..., 0]

    def _project(self, tensors: Tensors) -> tuple[Float[Tensor, "*_ q hidden"], Float[Tensor, "*_ k hidden"]]:
        query, key, _, *maps = cast("list[Tensor]", tensors)
        if not self.mapped:
            return query, key
        left = mapped(query, maps[0])
        return (left if maps[2] is None else left + maps[2]), mapped(key, maps[1])
