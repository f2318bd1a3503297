"""Inner products of linearly mapped queries and keys for all pairs of a batch, and their gradients.

z = f <W q, U k>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Tensor
from qkv.kernels.batched.pair_logits import Gradients, PairLogits, Tensors, finite_product, product, product_gradients
from qkv.scores.forms import MappedProduct

__all__ = ["MappedProducts", "map_gradient", "mapped"]


@dataclass(frozen=True)
class MappedProducts(PairLogits):
    """Inner products of W q and U k times `factor`.

    The tensors are queries, keys, W and U `(*#batch, hidden, width)`, of which W or U may be None for no map.
    """

    factor: float = 1.0
    merges = True
    rounds = True

    def operands(self, call: TorchCall) -> Tensors:
        """Return queries, keys, W and U."""
        form = cast("MappedProduct", call.score.form)
        return cast("Tensors", (call.query, call.key, form.query_map, form.key_map))

    def forward(
        self, tensors: Tensors, gradient: bool, bias: Float[Tensor, "*_ #q #k"] | None = None
    ) -> Tensors | None:
        """Return the scaled logits and both sides of the products, without a side that is given."""
        left, right = self._sides(tensors)
        logits = finite_product(left, right, self.factor * self.normalizer_scale, bias, gradient)
        if logits is None:
            return None
        return logits, *[x for x, w in zip((left, right), tensors[2:], strict=True) if w is not None]

    def gradients(
        self, d: Float[Tensor, "*batch q k"], tensors: Tensors, saved: Tensors, needs: Sequence[bool]
    ) -> Gradients:
        """Return the gradient of each tensor."""
        given, maps, computed = cast("list[Tensor]", tensors[:2]), tensors[2:], iter(cast("Sequence[Tensor]", saved))
        left, right = (x if w is None else next(computed) for x, w in zip(given, maps, strict=True))
        dtype, rounded = d.dtype, given[0].dtype
        left, right = left.to(rounded), right.to(rounded)
        wanted = needs[0] or needs[2], needs[1] or needs[3]
        sides = product_gradients(d, left, right, self.factor * self.normalizer_scale, wanted)
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

    def differentiable(self, tensors: Tensors) -> Float[Tensor, "*batch q k"]:
        """Return the logits."""
        left, right = self._sides(tensors)
        return left @ right.mT * self.factor

    def _sides(self, tensors: Tensors) -> tuple[Float[Tensor, "*_ q hidden"], Float[Tensor, "*_ k hidden"]]:
        query, key, *maps = tensors
        left, right = (
            x if w is None else mapped(x, w) for x, w in zip(cast("list[Tensor]", [query, key]), maps, strict=True)
        )
        return left, right


def mapped(x: Float[Tensor, "*#batch n width"], weight: Float[Tensor, "*_ hidden width"]) -> Float[Tensor, "*_"]:
    """Return W x for each row x."""
    return product(x, weight.mT)


def map_gradient(
    gradient: Float[Tensor, "batch n hidden"],
    x: Float[Tensor, "batch n width"],
    weight: Float[Tensor, "*_ hidden width"],
) -> Float[Tensor, "*_ hidden width"]:
    """Return the gradient of W, given that of W x."""
    if weight.ndim > 2:
        return product(gradient.mT, x)
    return gradient.flatten(0, -2).mT @ x.flatten(0, -2)
