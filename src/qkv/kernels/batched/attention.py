"""Output of short calls from all pairs at once, as one autograd node, with the weights and logits for readouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from qkv.core.arrays import is_array
from qkv.core.autograd_function import autograd_function
from qkv.core.axes import Axes
from qkv.core.equation import TorchCall
from qkv.core.random import dropout_rate
from qkv.core.typing import Array, Bool, Float, OutputTensor, PairTensor, Shaped, Tensor
from qkv.kernels.batched.gated_logits import GatedProducts, PairGates, SeparateGates
from qkv.kernels.batched.mask_bias import mask_bias
from qkv.kernels.batched.pair_logits import (
    Bias,
    GivenLogits,
    PairLogits,
    Products,
    Tensors,
    has_finite_sum,
    is_shared,
    product,
    shared_gradient,
)
from qkv.kernels.batched.row_weights import RowWeights, row_weights
from qkv.kernels.batched.vector_logits import Distances, MappedProducts, SquaredDistances, TanhSums, UnitProducts
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.gradients import gradients_of
from qkv.kernels.runtime.subnormals import FlushedSubnormals
from qkv.kernels.runtime.workspace import raise_malloc_threshold
from qkv.scores.forms import (
    Capped,
    Distance,
    Gated,
    GatedSides,
    MappedProduct,
    Offset,
    Product,
    ScaledProduct,
    SquaredDistance,
    Tanh,
    UnitProduct,
)

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        attention: BatchedAttention
        given: int


Outputs: TypeAlias = tuple[Float[Tensor, "*batch q _"], ...]
"""The output, and the weights and the logits if readouts need them."""


_MIN_WIDTH = 32
"""Width of queries, keys and values from which products in bfloat16 take less time, with conversions."""
_MIN_PRODUCTS = 1 << 21
"""Number of pairs of a batch element times width from which they do."""


# Not frozen: a frozen class takes three times as long to construct.
@dataclass(slots=True)
class BatchedAttention:
    """Function of the value, and of the tensors from which `pairs` computes the logits, that returns the output.

    Attributes:
        pairs: function that computes the logits of all pairs.
        rows: function of the logits that returns the weights.
        batch: batch axes of the call.
        equal: whether query, key and value have all batch axes of the call.
        bias: 0, or −inf for pairs to which the mask gives no weight, `(*#batch, q, k)`; None: no mask.
        empty: queries whose output is 0, `(*#batch, q, 1)`, because they have no key; None: no query.
        dropout_factor: M, the weights that dropout keeps divided by their probability `(*batch, q, k)`; None: all.
        half: dtype of the output, and of the matrix products whose result is rounded to it or is a factor of another
            such product; None: that of the tensors.
        observed: whether weights and logits are returned with the output, for readouts.
        merged: whether all batch axes are merged into one, for which matrix products take less time.
        flat: whether merging the axes of all tensors is a call of `flatten`.
    """

    pairs: PairLogits
    rows: RowWeights
    batch: tuple[int, ...]
    equal: bool
    bias: Bias = None
    empty: Bool[Tensor, "*_ #q 1"] | None = None
    dropout_factor: Float[Tensor, "*_ q k"] | None = None
    half: torch.dtype | None = None
    observed: bool = False
    merged: bool = False
    flat: bool = False

    def __post_init__(self) -> None:
        merges, axes = self.pairs.merges, len(self.batch)
        self.merged = axes != 1 or not self.equal if merges else merges is None and self.equal and axes > 1
        self.flat = self.merged and self.equal and axes > 1 and self.pairs.direct

    def __call__(self, *tensors: Float[Tensor, "*_"] | None) -> Outputs | None:
        """Return the output for the value and the tensors of `pairs`, or None if data is not finite or out of range.

        It is the output of an autograd node if a tensor requires a gradient. If `observed`, the weights and the logits
        follow, with all batch axes.
        """
        if torch.is_grad_enabled():
            for x in tensors:  # `any` with a generator takes twice as long
                if x is not None and x.requires_grad:
                    found = autograd_function(_forward, _backward)(self, *tensors)
                    return found if isinstance(found, tuple) or found is None else (found,)
        with FlushedSubnormals():
            found = self.forward(tensors, False)
        return None if found is None else found[0]

    @property
    def recordable(self) -> bool:
        """Whether `recorded` computes the same as a call."""
        return self.pairs.given and self.rows.is_softmax and not self.observed

    def recorded(
        self, value: Float[Tensor, "*#batch k value_width"], given: list[Float[Tensor, "*_ #q #k"]]
    ) -> OutputTensor | None:
        """Return the same as a call, as autograd nodes of PyTorch, and remove the logits from the list `given`.

        Autograd differentiates these nodes under the autocast setting of the code that calls `backward()`.
        """
        logits, scale, bias = given.pop(), self.rows.scale, self.bias
        if bias is not None:
            logits = torch.add(bias, logits, alpha=scale)
        elif scale != 1:
            logits = logits * scale
        if self.empty is not None:
            logits = logits.masked_fill(self.empty, 0)
        logits = logits.softmax(-1)  # the logits are released, unless they are kept for their own gradient
        output = self._rounded_product(logits if self.dropout_factor is None else logits * self.dropout_factor, value)
        if self.empty is not None:
            output = output.masked_fill(self.empty, 0)
        if not has_finite_sum(output.detach()):
            return None
        return output if output.shape[:-2] == self.batch else output.expand(*self.batch, *output.shape[-2:])

    def forward(self, given: Tensors, gradient: bool) -> tuple[Outputs, list[Tensor | None]] | None:
        """Return the result of a call and the tensors that `backward` needs, without recording a graph, or None."""
        if self.flat:
            tensors: list[Tensor | None] = [cast("Tensor", x).flatten(0, -3) for x in given]
        elif self.merged:
            tensors = [None if x is None else self._merge(x, n < 3) for n, x in enumerate(given)]
        else:
            tensors = list(given)
        found = self.pairs.forward(tensors[1:], gradient, None if self.bias is None else self._merge(self.bias))
        if found is None:
            return None
        logits, *saved = cast("Sequence[Tensor]", found)
        if self.empty is not None:
            # The score itself may give −inf to all pairs of an empty query; its weights must be finite for gradients.
            # All weight goes to the first key, because equal logits would be ties, which take top-k longer.
            empty = self._merge(self.empty)
            logits.masked_fill_(empty, -math.inf)[..., :1].masked_fill_(empty, 0)
        weights = self.rows.weights(logits, owned=not self.observed and logits is not tensors[1])
        dropped = weights if self.dropout_factor is None else weights * self._merge(self.dropout_factor)
        output = self._rounded_product(dropped, cast("Tensor", tensors[0]))
        if self.empty is not None:
            output.masked_fill_(self._merge(self.empty), 0)
        # A value that is not finite, a logit of +inf, or a row of which all logits are −inf show in the output.
        if not has_finite_sum(output):
            return None
        return (self._with_batch(output), *self._observations(weights, logits)), [*tensors, weights, *saved]

    def _observations(
        self, weights: Float[Tensor, "*_ q k"], logits: Float[Tensor, "*_ q k"]
    ) -> tuple[PairTensor, ...]:
        """Return the weights and the logits without scale, with all batch axes, if `observed`."""
        if not self.observed:
            return ()
        logits = logits if self.rows.scale == 1 else logits / self.rows.scale
        if self.empty is not None:
            empty = self._merge(self.empty)
            weights, logits = weights.masked_fill(empty, 0), logits.masked_fill(empty, -math.inf)
        return self._with_batch(weights), self._with_batch(logits)

    def _with_batch(self, x: Float[Tensor, "*_ q n"]) -> Float[Tensor, "*batch q n"]:
        """Return a tensor with the batch axes of the call, from one with those of a product after `_merge`."""
        if x.shape[:-2] == self.batch:
            return x
        shape = (*self.batch, *x.shape[-2:])
        return x.view(shape) if self.merged else x.expand(shape)

    def backward(
        self,
        gradient: OutputTensor,
        given: Tensors,
        found: Sequence[Tensor],
        needs: Sequence[bool],
        of_readouts: Tensors = (None, None),
    ) -> Sequence[Float[Tensor, "*_"] | None]:
        """Return the gradients of the tensors `given` to `forward`, where `found` are the tensors it returned.

        `of_readouts` are the gradients of weights and logits that readouts add.
        """
        count = len(given)
        value, weights = found[0], found[count]
        if self.merged:
            gradient = self._merge(gradient, True)
        if self.empty is not None:
            gradient = gradient.masked_fill(self._merge(self.empty), 0)
        dropout_factor = None if self.dropout_factor is None else self._merge(self.dropout_factor)
        d_value = None
        if needs[0]:
            given_weights = weights if dropout_factor is None else weights * dropout_factor
            if is_shared(value, given_weights, gradient):
                half = gradient.dtype if self.half is None else self.half
                d_value = shared_gradient(given_weights.to(half), gradient.to(half), value)
            else:
                d_value = self._rounded_product(given_weights.mT, gradient)
        gradients: Sequence[Tensor | None] = [None] * (count - 1)
        if any(needs[1:]):
            d_weights = self._rounded_product(gradient, value.mT).to(weights.dtype)
            d_weights = d_weights if dropout_factor is None else d_weights.mul_(dropout_factor)
            of_weights, of_logits = (self._of_readout(x) for x in of_readouts)
            d_weights = _sum_to(d_weights if of_weights is None else d_weights.add_(of_weights), weights)
            d = self.rows.logit_gradient(weights, d_weights)
            if of_logits is not None:
                d = torch.add(d, _sum_to(of_logits, weights), alpha=1 / self.rows.scale)
            operands = found[1:count]
            if self.half is not None and self.pairs.rounds:
                operands = [*[x.to(self.half) for x in operands[:2]], *operands[2:]]
            gradients = self.pairs.gradients(d, operands, found[count + 1 :], needs[1:])
        if self.flat:
            pairs = zip((d_value, *gradients), given, strict=True)
            return [None if g is None else g.view_as(cast("Tensor", x)) for g, x in pairs]
        return [self._split(g, x) for g, x in zip((d_value, *gradients), given, strict=True)]

    def _of_readout(self, gradient: PairTensor | None) -> Float[Tensor, "*_ q k"] | None:
        """Return the gradient of weights or logits after `_merge`, which is 0 for queries without keys."""
        if gradient is None or not self.merged:
            merged = gradient
        else:
            merged = self._merge(gradient, True)
        return merged if merged is None or self.empty is None else merged.masked_fill(self._merge(self.empty), 0)

    def differentiable(self, given: Tensors) -> Outputs:
        """Return the result of a call for tensors given to `forward`, which autograd can differentiate repeatedly."""
        logits = self.pairs.differentiable(given[1:])
        if self.bias is not None:
            logits = logits.masked_fill(self.bias != 0, -math.inf)
        if self.empty is not None:
            logits = logits.masked_fill(self.empty, 0)
        weights = self.rows.differentiable(logits)
        output = (weights if self.dropout_factor is None else weights * self.dropout_factor) @ cast("Tensor", given[0])
        output = output if self.empty is None else output.masked_fill(self.empty, 0)
        results = [output, weights, logits] if self.observed else [output]
        if self.observed and self.empty is not None:
            results[1:] = weights.masked_fill(self.empty, 0), logits.masked_fill(self.empty, -math.inf)
        return tuple([x.expand(*self.batch, *x.shape[-2:]) for x in results])

    def _rounded_product(
        self, x: Float[Tensor, "*#batch n m"], y: Float[Tensor, "*#batch m l"]
    ) -> Float[Tensor, "*batch n l"]:
        """Return the matrix product, of factors rounded to `half` if it is not None."""
        return product(x, y) if self.half is None else product(x.to(self.half), y.to(self.half))

    def _merge(self, x: Shaped[Tensor, "*_ n m"], side: bool = False) -> Shaped[Tensor, "*_ n m"]:
        """Return a tensor with one batch axis if `merged`, or one without batch axes unchanged if it is no `side`.

        Sides are query, key, value and output, which always get a batch axis.
        """
        if not self.merged or (x.ndim == 2 and not side):
            return x
        if x.shape[:-2] != self.batch:
            x = x.expand(*self.batch, *x.shape[-2:])
        return x if x.ndim == 3 else x.flatten(0, -3) if x.ndim > 3 else x[None]

    def _split(self, gradient: Float[Tensor, "*_"] | None, x: Float[Tensor, "*_"] | None) -> Float[Tensor, "*_"] | None:
        """Return the gradient of a tensor, given that of the tensor after `_merge` and after broadcasting."""
        if gradient is None or x is None or gradient.is_same_size(x):
            return gradient
        if self.merged and gradient.numel() == x.numel():
            return gradient.view_as(x)
        if self.merged and gradient.ndim == 3:
            gradient = gradient.reshape(*self.batch, *gradient.shape[-2:])
        return _sum_to(gradient, x)


def _sum_to(x: Float[Tensor, "*_"], like: Float[Tensor, "*_"]) -> Float[Tensor, "*_"]:
    """Return the sum of `x` over the axes along which an array of the shape of `like` was broadcast."""
    return x if x.is_same_size(like) else x.sum_to_size(like.shape)


def _forward(
    ctx: _Context, attention: BatchedAttention, *tensors: Float[Tensor, "*_"] | None
) -> OutputTensor | Outputs | None:
    with FlushedSubnormals():
        result = attention.forward(tensors, True)
    if result is None:
        return None
    outputs, found = result
    ctx.attention, ctx.given = attention, len(tensors)
    ctx.save_for_backward(*tensors, *found)
    if len(outputs) == 1:  # a tuple of one takes longer
        return outputs[0]
    ctx.set_materialize_grads(False)
    return outputs


def _backward(
    ctx: _Context, gradient: OutputTensor | None, *of_readouts: PairTensor | None
) -> tuple[Float[Tensor, "*_"] | None, ...]:
    attention, saved = ctx.attention, ctx.saved_tensors  # every access unpacks all tensors
    given, found = saved[: ctx.given], saved[ctx.given :]
    value, weights = found[0], found[ctx.given]
    if gradient is None:  # readouts alone are differentiated
        gradient = value.new_zeros((*attention.batch, weights.shape[-2], value.shape[-1]))
    if torch.is_autocast_enabled(gradient.device.type):
        with no_autocast(gradient):
            return _backward(ctx, gradient, *of_readouts)
    if not torch.is_grad_enabled():
        needs = ctx.needs_input_grad[1:]
        with FlushedSubnormals():
            return (None, *attention.backward(gradient, given, found, needs, of_readouts or (None, None)))
    sides = [None if x is None else x.view_as(x) for x in given]
    outputs = attention.differentiable(sides)
    pairs = [(x.to(g.dtype), g) for x, g in zip(outputs, (gradient, *of_readouts), strict=True) if g is not None]
    targets, gradients = [x for x, _ in pairs], [g for _, g in pairs]
    again = iter(gradients_of(targets, gradients, [x for x in sides if x is not None], create_graph=True))
    return (None, *[None if x is None else next(again) for x in sides])


def all_finite(*tensors: Float[Tensor, "*_"]) -> bool:
    """Return whether all elements of all tensors are finite."""
    return all([has_finite_sum(x.detach()) for x in tensors])  # noqa: C419 -- half the time of a generator


def attention_of(call: TorchCall, observed: bool, with_mask: bool = True) -> BatchedAttention:
    """Return the function that computes the output of a call."""
    raise_malloc_threshold()
    rows = row_weights(call.normalizer, call.tile.k_total)
    assert rows is not None  # `BatchedKernel.limits` refuses other normalizers
    pairs = pair_logits_of(call, rows.scale, observed)
    equal = all(x.shape[:-2] == call.batch for x in (call.query, call.key, call.value))
    dropout_factor: Tensor | None = None
    if call.dropout:
        shape = (*call.batch, call.tile.q_total, call.tile.k_total)
        found = call.tile.dropout_mask(call.value.new_empty(()).expand(shape), call.dropout)
        dropout_factor = cast("Tensor", found).to(call.value.dtype).mul_(1 / (1 - dropout_rate(call.dropout)))
    bias, empty = mask_bias(call) if with_mask else (None, None)
    return BatchedAttention(pairs, rows, call.batch, equal, bias, empty, dropout_factor, half_of(call), observed)


def pair_logits_of(call: TorchCall, normalizer_scale: float, observed: bool = False) -> PairLogits:
    """Return the function that computes the logits of a call, multiplied by `normalizer_scale`.

    Terms that cancel in the weights are omitted unless `observed`.
    """
    form, scale = call.score.form, normalizer_scale
    # Broadcast batch axes are copied, so that the work on queries and keys would be repeated.
    equal = all(x.shape[:-2] == call.batch for x in (call.query, call.key, call.value))
    match form:
        case Tanh(vector) if vector.shape[-1]:
            return TanhSums(scale, mapped=form.maps is not None)
        case Distance(slope) if equal and slope is not None:
            return Distances(scale, slope)
        case UnitProduct(temperature) if equal and temperature is not None:
            return UnitProducts(scale, None if is_array(temperature) else float(temperature))
        case Gated((_, _, b, c)) if equal:
            return PairGates(scale, (_number(b), _number(c)))
        case Gated():
            return GatedProducts(scale)
        case GatedSides((_, _, b, c)) if equal:
            return SeparateGates(scale, (_number(b), _number(c)))
        case MappedProduct() if equal:
            return MappedProducts(scale, form.factor)
        case SquaredDistance(factor) if equal and factor is not None and not call.score.arrays():
            return SquaredDistances(scale, factor, call.normalizer.shift_invariant and not observed)
    cap, offset = None, False
    if isinstance(form, Capped) and isinstance(form.cap, (int, float)):
        cap = form.cap
        form = form.inner.form
    while isinstance(form, Offset):
        form, offset = form.inner.form, True
    if not isinstance(form, Product) or (cap is not None and offset):  # −inf in an offset excludes a pair
        return GivenLogits(scale)
    if isinstance(form, ScaledProduct):  # its projections are the queries and keys themselves
        return Products(scale, form.factor(call.query.shape[-1]), cap, False, offset)
    return Products(scale, 1.0, cap, True, offset)


def _number(x: Array | float) -> float | None:
    """Return a number, or None if `x` is an array."""
    return None if is_array(x) else float(x)


def half_of(call: TorchCall) -> torch.dtype | None:
    """Return the dtype of the output if products in it take less time than in single precision, otherwise None."""
    if call.out_dtype != torch.bfloat16 or not call.value.is_cpu:
        return None
    axes = Axes.of(call.query.shape, call.key.shape, call.value.shape)
    return torch.bfloat16 if suits_half(axes) and _bfloat16_is_faster() else None


def suits_half(axes: Axes) -> bool:
    """Return whether the products of a call are large enough to gain from half precision."""
    width = min(axes.query_width, axes.key_width, axes.value_width)
    return width >= _MIN_WIDTH and axes.q * axes.k * width >= _MIN_PRODUCTS


@cache
def _bfloat16_is_faster() -> bool:
    """Return whether the processor has instructions for bfloat16; a measurement would let results depend on load."""
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return supported is not None and bool(supported())
