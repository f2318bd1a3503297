"""Logits of gated scores for all pairs of a batch, and their gradients.

pair gate           z = <q, k> σ(l_i + r_j)              l_i = <w, q_i> + b
separate gates      z = <q, k> σ(l_i) σ(r_j)             r_j = <u, k_j> + c
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from qkv.core.arrays import is_array
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, PairTensor, RowTensor, Tensor
from qkv.kernels.batched.pair_logits import (
    Bias,
    Gradients,
    PairLogits,
    Tensors,
    finite_product,
    has_finite_sum,
    product,
    product_gradients,
    scaled_product,
)
from qkv.kernels.runtime.isolated_autograd import project_call
from qkv.scores.forms import Gated, GatedSides


@dataclass(frozen=True)
class GatedProducts(PairLogits):
    """Inner products times a gate: the last columns of both projections belong to the gate."""

    def operands(self, call: TorchCall) -> Tensors:
        sides = project_call(call)
        return cast("Tensor", sides.query), cast("Tensor", sides.key)

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        left, right = cast("tuple[Tensor, Tensor]", tensors)
        if gradient and not (has_finite_sum(left) and has_finite_sum(right)):
            return None
        vectors, terms = (left[..., :-1], right[..., :-1]), (left[..., -1:], right[..., -1:])
        return _forward(*vectors, *terms, self.normalizer_scale, gradient, bias)

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        left, right = cast("tuple[Tensor, Tensor]", tensors)
        sides, terms = _gradients(d, left[..., :-1], right[..., :-1], saved, self.normalizer_scale)
        return torch.cat([sides[0], terms[0]], -1), torch.cat([sides[1], terms[1]], -1)

    def differentiable(self, tensors: Tensors) -> PairTensor:
        left, right = cast("tuple[Tensor, Tensor]", tensors)
        gate = (left[..., -1:] + right[..., -1:].mT).sigmoid()
        return gate * (left[..., :-1] @ right[..., :-1].mT)


def _forward(
    left: Float[Tensor, "*#batch q width"],
    right: Float[Tensor, "*#batch k width"],
    left_term: Float[Tensor, "*#batch q 1"],
    right_term: Float[Tensor, "*#batch k 1"],
    scale: float,
    gradient: bool,
    bias: Bias,
) -> Tensors:
    """Return `scale` times the gated products plus `bias`, `scale` times the products, and the gate."""
    products = scaled_product(left, right.mT, scale)
    gate = (left_term + right_term.mT).sigmoid_()
    if bias is not None:
        return torch.addcmul(bias, products, gate), products, gate
    return products * gate if gradient else products.mul_(gate), products, gate


def _gradients(
    d: PairTensor,
    left: Float[Tensor, "*#batch q width"],
    right: Float[Tensor, "*#batch k width"],
    saved: Tensors,
    scale: float,
) -> tuple[
    tuple[Float[Tensor, "*batch q width"], Float[Tensor, "*batch k width"]],
    tuple[RowTensor, Float[Tensor, "*batch k 1"]],
]:
    """Return the gradients of both sides of the products and of both terms of the gate, overwriting `d`."""
    products, gate = cast("tuple[Tensor, Tensor]", saved)
    d_term = torch.mul(d, products)
    d_term = torch.ops.aten.sigmoid_backward.grad_input(d_term, gate, grad_input=d_term)
    sides = cast("tuple[Tensor, Tensor]", product_gradients(d.mul_(gate), left, right, scale))
    return sides, (d_term.sum(-1, keepdim=True), d_term.sum(-2).unsqueeze(-1))


@dataclass(frozen=True)
class PairGates(PairLogits):
    """Inner products of queries and keys times a gate of the pair.

    The tensors are queries, keys, w and u `(*#batch, 1, width)`, and those of b and c that are tensors
    `(*#batch, 1, 1)`.

    Attributes:
        numbers: b and c, None for a tensor.
    """

    numbers: tuple[float | None, float | None] = (0.0, 0.0)
    merges = True

    def operands(self, call: TorchCall) -> Tensors:
        weight, key_weight, *biases = cast("list[Tensor]", cast("Gated | GatedSides", call.score.form).gates)
        tensors = cast("list[Tensor]", [b[..., None, None] for b in biases if is_array(b)])
        return call.query, call.key, weight[..., None, :], key_weight[..., None, :], *tensors

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        query, key = cast("tuple[Tensor, Tensor]", tensors[:2])
        terms = self._terms(tensors)
        if gradient and not all([has_finite_sum(x) for x in (query, key, *terms)]):  # noqa: C419
            return None
        return _forward(query, key, *terms, self.normalizer_scale, gradient, bias)

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        query, key = cast("tuple[Tensor, Tensor]", tensors[:2])
        sides, terms = _gradients(d, query, key, saved, self.normalizer_scale)
        return self._gradients(tensors, sides, terms, needs)

    def differentiable(self, tensors: Tensors) -> PairTensor:
        query, key = cast("tuple[Tensor, Tensor]", tensors[:2])
        left, right = self._terms(tensors)
        return (left + right.mT).sigmoid() * (query @ key.mT)

    def _terms(self, tensors: Tensors) -> tuple[RowTensor, Float[Tensor, "*batch k 1"]]:
        """Return the terms of the queries and of the keys in the gate, l and r."""
        query, key, weight, key_weight, *biases = cast("list[Tensor]", tensors)
        remaining, terms = iter(biases), []
        for x, w, number in zip((query, key), (weight, key_weight), self.numbers, strict=True):
            term = (x @ w[0]).unsqueeze(-1) if w.ndim == 2 else product(x, w.mT)
            terms.append(term + next(remaining) if number is None else term if number == 0 else term + number)
        return terms[0], terms[1]

    def _gradients(
        self,
        tensors: Tensors,
        sides: tuple[Float[Tensor, "*batch q width"], Float[Tensor, "*batch k width"]],
        terms: tuple[RowTensor, Float[Tensor, "*batch k 1"]],
        needs: Sequence[bool],
    ) -> Gradients:
        """Return the gradient of each tensor, given those of l and r and the other terms of queries and keys."""
        found: list[Tensor | None] = []
        weights: list[Tensor | None] = []
        biases: list[Tensor] = []
        given = cast("list[Tensor]", tensors)
        for n, (side, term) in enumerate(zip(sides, terms, strict=True)):
            x, w = given[n], given[n + 2]
            found.append(side.addcmul_(term, w) if needs[n] else None)
            if not needs[n + 2]:
                weights.append(None)
            elif w.ndim == 2:
                weights.append(term.reshape(1, -1) @ x.flatten(0, -2))
            else:
                weights.append(product(term.mT, x))
            if self.numbers[n] is None:
                biases.append(term.sum(-2, keepdim=True))
        return *found, *weights, *biases


@dataclass(frozen=True)
class SeparateGates(PairGates):
    """Inner products of queries and keys, each times its own gate. The tensors are those of `PairGates`."""

    def forward(self, tensors: Tensors, gradient: bool, bias: Bias = None) -> Tensors | None:
        query, key = cast("tuple[Tensor, Tensor]", tensors[:2])
        gate, key_gate = (x.sigmoid_() for x in self._terms(tensors))
        left, right = query * gate, key * key_gate
        logits = finite_product(left, right, self.normalizer_scale, bias, gradient)
        return None if logits is None else (logits, gate, key_gate, left, right)

    def gradients(self, d: PairTensor, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Gradients:
        gate, key_gate, left, right = cast("Sequence[Tensor]", saved)
        sides = cast("tuple[Tensor, Tensor]", product_gradients(d, left, right, self.normalizer_scale))
        # The gradient of l is Σ_w d_left q g (1 − g), with the gated vector q g.
        terms = [
            torch.addcmul(dot, dot, g, value=-1)
            for dot, g in (
                ((sides[0] * left).sum(-1, keepdim=True), gate),
                ((sides[1] * right).sum(-1, keepdim=True), key_gate),
            )
        ]
        sides = sides[0].mul_(gate), sides[1].mul_(key_gate)
        return self._gradients(tensors, sides, (terms[0], terms[1]), needs)

    def differentiable(self, tensors: Tensors) -> PairTensor:
        query, key = cast("tuple[Tensor, Tensor]", tensors[:2])
        left, right = self._terms(tensors)
        return (query * left.sigmoid()) @ (key * right.sigmoid()).mT
