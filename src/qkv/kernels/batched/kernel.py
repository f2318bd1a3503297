"""Kernel that computes all pairs of all batch elements at once in PyTorch, for short sequences.

The arrays of all pairs are in memory, as in attention written by hand: logits, weights and their gradients. Nothing
is looped over heads or tiles, so that a call costs few operations. Additive scores are expanded into matrix products
(`additive.py`).

Data that is not finite runs on the dense kernel, which keeps it from affecting other rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall, TorchCall, apply_dropout
from qkv.core.typing import Array, Bool, Float, Tensor
from qkv.kernels.batched.additive import STEP_BYTES, additive_logits
from qkv.kernels.batched.attention import Form, attention_of_logits, attention_of_products
from qkv.kernels.batched.row_weights import row_weights
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.runtime.closure_gradients import (
    may_close_over_tensors,
    refuse_closure_gradients,
    refuse_recorded_closures,
)
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.cost_model import PRODUCT_RATE, amounts_of_work
from qkv.kernels.runtime.isolated_autograd import project_call, projects_nothing
from qkv.kernels.runtime.memory_model import lifted_elements, score_arrays
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.cost import Cost, memory_text
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.scores.base import PointwiseScore, Score
from qkv.scores.lifted_vectors import product_bound

if TYPE_CHECKING:
    import torch

__all__ = ["BatchedKernel"]

_MAX_BYTES = 1 << 24
"""Size in bytes of an array of all pairs, with their features if the score holds them, from which it is not chosen."""


_MAX_LOGIT = 1e30
"""Bound of the inner products above which a soft cap is computed such that logits of −inf stay −inf."""


_FEW_ELEMENTS = 1 << 15
"""Number of hidden units of all pairs up to which `tanh` takes less time than the operators of its expansion."""
_SORT_SECONDS = 4e-8
"""Time to sort a row, in seconds per element."""


@dataclass(frozen=True)
class BatchedKernel(Kernel):
    """Kernel that computes all pairs of all batch elements at once in PyTorch, for short sequences."""

    name: ClassVar[str] = "batched"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if query, key, value and output are finite: products of all pairs; else: the dense kernel",
    )

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield a reason for refusal for some normalizers, for text and for readouts."""
        if row_weights(problem.normalizer, problem.axes.k) is None:
            yield f"it computes softmax without a sink, top-k, sparsemax, entmax and sigmoid, not {problem.normalizer}"
        if problem.axes.text:
            yield "it compares numbers, not text"
        if problem.readouts:
            yield "it computes no readouts"
        if problem.axes.pairs == 0:
            yield "there are no pairs of a query and a key"

    def unsuited(self, problem: Problem) -> str | None:
        """Return a sentence if an array of all pairs is so large that kernels in linear memory are preferred."""
        elements = 1 if problem.score.tanh_vector is not None else problem.elements_per_logit
        size = problem.axes.pairs * elements * problem.itemsize
        if size < _MAX_BYTES:
            return None
        return (
            f"its arrays of all pairs would have {memory_text(size)} each; it is chosen below {memory_text(_MAX_BYTES)}"
        )

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, whose arrays of all pairs are written to memory and read back."""
        pairs, gradient = problem.axes.pairs, problem.gradient
        elements, additive = problem.elements_per_logit, problem.score.tanh_vector is not None
        forward, saved, features = (2.0, 0.0, 0) if additive else score_arrays(problem)
        if gradient and _is_product(problem.score):  # computed by one autograd node, which changes arrays in place
            arrays = forward + 0.05
        elif gradient:
            arrays = max(3 + saved, 3 * features + 0.5)
        else:
            arrays = max(2.05, forward, 2 * features)
        if not problem.normalizer.online:  # the support, and sums over a sorted row
            arrays += 2.2 if gradient else 0.3
        elif problem.normalizer.selects_keys:  # the order of a row
            arrays = max(5.0, arrays + 1.9 * gradient)
        arrays += 0.25 if problem.spec.mask is not None else 0.0
        scratch = pairs * problem.itemsize * arrays + problem.cast_bytes + (2 * STEP_BYTES if additive else 0)
        scratch += sum(lifted_elements(problem)) * problem.itemsize * (2 if gradient else 1)
        products = (problem.axes.query_width + problem.axes.value_width) * 2 * (3 if gradient else 1) / PRODUCT_RATE
        seconds = products + (6e-9 if gradient else 1.8e-9)
        seconds += elements * ((1.15e-9 if gradient else 0.4e-9) if additive else (6e-9 if gradient else 2e-9))
        if not problem.normalizer.log_sum_exp:
            seconds += _SORT_SECONDS
        flop = pairs * problem.flop_per_pair * (3 if gradient else 1)
        return Cost(flop, problem.input_bytes, scratch, 1.2e-4 if gradient else 6e-5, arithmetic=pairs * seconds)

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated; masked pairs are computed too."""
        elements = 1 if problem.score.tanh_vector is not None else problem.elements_per_logit
        return amounts_of_work(problem, problem.axes.pairs, elements=elements)

    def prepare(self, problem: Problem) -> PreparedCall | None:
        """Return a function that checks only what may differ between calls."""
        if problem.traced:
            return None
        tile, gradient = problem.tile, problem.gradient
        checked = projects_nothing(problem.score) or not may_close_over_tensors(problem.score)

        def run(
            query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
        ) -> Result | None:
            import torch

            sides = cast("tuple[Tensor, Tensor, Tensor]", (query, key, value))
            if torch.is_autocast_enabled(sides[2].device.type):
                return None
            bound = BoundCall(*sides, score, normalizer, mask, tile, 0.0, value.dtype, finite=(True, True))
            # Without a gradient, elements that are not finite either show in the output or have no effect.
            if gradient and not (checked and _all_finite(*sides)):
                return None
            output = _attend(cast("TorchCall", bound))
            if not _all_finite(output) or (output.requires_grad and not gradient):
                return None
            return Result(output)

        return run

    def run(self, call: TorchCall, problem: Problem) -> Result:  # type: ignore[override]
        """Compute the output from one array of all logits."""
        with no_autocast(call.value):
            if not projects_nothing(call.score):  # otherwise the recorded logits are checked
                refuse_closure_gradients(call)
            if _all_finite(call.query, call.key, call.value):
                output = _attend(replace(call, finite=(True, True)))
                # A logit of +inf, or a row of which all logits are −inf, makes the softmax NaN.
                if _all_finite(output.detach()):
                    return Result(arrays.cast(output, call.out_dtype))
            return replace(DenseKernel().run(call, problem), guards=("not finite: the dense kernel",))


def _all_finite(*tensors: Float[Tensor, "*_"]) -> bool:
    # If the sum is finite, all terms are. If not, the sum may have overflowed, and all elements are checked.
    total = sum([x.detach().sum().item() for x in tensors])
    return math.isfinite(total) or all(bool(x.isfinite().all()) for x in tensors)


def _attend(call: TorchCall) -> Float[Tensor, "*batch q value_width"]:
    excluded, empty = _excluded(call)
    rows = row_weights(call.normalizer, call.tile.k_total)
    assert rows is not None  # `BatchedKernel.limits` refuses other normalizers
    products = None if call.dropout else _product_form(call, Form(rows, excluded, empty))
    if products is None or products[0].scale == 1:
        call = cast("TorchCall", project_call(call))
    if products is not None and products[0].cap is not None:
        # A logit of −inf excludes its pair, but its tanh would be −1.
        bound = product_bound(call.query, call.key) * abs(products[0].scale)
        products = products if bool(bound < _MAX_LOGIT) else None
        call = call if products is not None or call.projected else cast("TorchCall", project_call(call))
    if products is not None:
        form, offset = products
        return attention_of_products(call.query, call.key, call.value, offset, form).expand(_output_shape(call))
    logits = cast("Tensor", arrays.cast(_logits(call), call.value.dtype))
    shape = (*call.batch, call.tile.q_total, call.tile.k_total)
    if not call.dropout:
        if logits.shape[-2:] != shape[-2:]:
            logits = logits.expand(*logits.shape[:-2], *shape[-2:])
        return attention_of_logits(logits, call.value, Form(rows, excluded, empty)).expand(_output_shape(call))
    logits = logits if excluded is None else logits.masked_fill(excluded, -math.inf)
    weights = rows.differentiable(logits if empty is None else logits.masked_fill(empty, 0))
    output = apply_dropout(weights.expand(shape), call.tile, call.dropout) @ call.value
    return output if empty is None else output.masked_fill(empty, 0)


def _is_product(score: Score) -> bool:
    """Return whether logits are inner products, with an offset or a soft cap."""
    while not score.is_inner_product and score.inner is not None and (score.adds_offset or score.tanh_cap is not None):
        score = score.inner
    return score.is_inner_product


def _output_shape(call: TorchCall) -> tuple[int, ...]:
    return (*call.batch, call.tile.q_total, call.value.shape[-1])


def _excluded(call: TorchCall) -> tuple[Bool[Tensor, "*_ #q #k"] | None, Bool[Tensor, "*_ #q 1"] | None]:
    """Return the pairs that the mask excludes, without those of queries that have no key, and these queries."""
    mask, tile = call.mask, call.tile
    if mask is None or mask.coverage(tile) == "all":
        return None, None
    offset = mask.causal_offset(tile)
    if offset is not None and offset >= 0:
        return _future(tile.q_total, tile.k_total, offset, call.value.device), None
    excluded = ~cast("Bool[Tensor, '*_']", mask.allowed(tile, call.value))
    empty = excluded.all(dim=-1, keepdim=True)
    if not bool(empty.any()):
        return excluded, None
    # A query without keys would divide 0 by 0. It gets any weights here, and the output 0 later.
    return excluded & ~empty, empty


@lru_cache(maxsize=16)
def _future(q: int, k: int, offset: int, device: torch.device) -> Bool[Tensor, "q k"]:
    """Return the pairs of a key after the query, of at most `_MAX_BYTES` / 4 bytes."""
    import torch

    return torch.ones(q, k, dtype=torch.bool, device=device).triu_(offset + 1)


def _product_form(call: TorchCall, form: Form) -> tuple[Form, Float[Tensor, "*#batch #q #k"] | None] | None:
    """Return how the logits follow from inner products, and the offset, or None if they do not."""
    score, cap, offset = call.score, None, None
    if score.gated_product:
        return replace(form, gated=True), None
    if score.tanh_cap is not None and not score.is_inner_product:
        assert score.inner is not None
        score, cap = score.inner, score.tanh_cap
    while score.adds_offset and not score.is_inner_product:
        assert isinstance(score, PointwiseScore)
        term = cast("Tensor", score.offset(call.tile, call.value))
        offset = term if offset is None else offset + term
        score = score.score
    if not score.is_inner_product or (cap is not None and offset is not None):  # −inf in an offset excludes a pair
        return None
    factor = 1.0
    if score.is_scaled_dot:  # the projections are the queries and keys themselves
        factor = score.scaled_lift(call.query, call.key, call.tile)[2]
    return replace(form, cap=cap, scale=factor), offset


def _elements(call: TorchCall) -> int:
    """Return the number of hidden units of all pairs of a call whose query and key are projections."""
    return math.prod(call.batch) * call.tile.q_total * call.tile.k_total * int(call.query.shape[-1])


def _logits(call: TorchCall) -> Float[Tensor, "*#batch #q #k"]:
    score = call.score
    if score.tanh_vector is not None and _elements(call) > _FEW_ELEMENTS:
        batch, (q, hidden), k = call.batch, call.query.shape[-2:], call.key.shape[-2]
        left, right = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (call.query, call.key))
        vector = cast("Tensor", score.tanh_vector)
        vector = vector[None] if vector.ndim == 1 else vector.expand(*batch, hidden).reshape(-1, hidden)
        logits = additive_logits(left, right, vector)
        if logits is not None:
            return logits.view(*batch, q, k)
    logits = cast("Tensor", score.projected_logits(call.query, call.key, call.tile))
    if projects_nothing(score):
        refuse_recorded_closures(logits, call)
    return logits
