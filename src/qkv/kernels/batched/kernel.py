"""Kernel that computes all pairs of all batch elements at once in PyTorch, for short sequences.

The arrays of all pairs are in memory, as in attention written by hand: logits, weights and their gradients. Nothing
is looped over heads or tiles, so that a call costs few operations. Additive scores are expanded into matrix products
(`additive.py`).

Data that is not finite runs on the dense kernel, which keeps it from affecting other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.random import dropout_rate
from qkv.core.typing import Array, Float, Tensor
from qkv.kernels.batched.additive import STEP_BYTES
from qkv.kernels.batched.attention import BatchedAttention
from qkv.kernels.batched.forms import pair_logits_of
from qkv.kernels.batched.half_products import half_of, suits_half
from qkv.kernels.batched.mask_bias import depends_on_positions_alone, mask_bias
from qkv.kernels.batched.pair_logits import has_finite_sum
from qkv.kernels.batched.row_weights import row_weights, softmax_in_place
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.runtime.closure_gradients import (
    may_close_over_tensors,
    refuse_closure_gradients,
)
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.cost_model import PRODUCT_RATE, amounts_of_work
from qkv.kernels.runtime.isolated_autograd import projects_nothing
from qkv.kernels.runtime.memory_model import lifted_elements, score_arrays
from qkv.kernels.runtime.workspace import raise_malloc_threshold
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.cost import Cost, memory_text
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.precise_call import is_certainly_near
from qkv.plan.problem import Problem
from qkv.scores.base import Score

if TYPE_CHECKING:
    import torch

__all__ = ["BatchedKernel"]

_MAX_BYTES = 1 << 25
"""Size in bytes of an array of all pairs, with their features if the score holds them, from which it is not chosen."""


_KEPT_PAIRS = 1 << 16
"""Largest number of pairs whose mask, if it holds no arrays, is kept with the plan: 256 KiB."""
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

    checks_distances: ClassVar[bool] = True

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
        in_place = 0 if gradient or not problem.normalizer.log_sum_exp else _forward_arrays(problem.score)
        if gradient and (additive or _is_product(problem.score)):  # one autograd node, which changes arrays in place
            arrays = forward + 0.05
        elif gradient:
            arrays = max(3 + saved, 3 * features + 0.5)
        elif in_place:
            arrays = in_place + 0.1
        else:
            arrays = max(2.05, forward, 2 * features)
        if not problem.normalizer.online:  # the support, and sums over a sorted row
            arrays += 2.2 if gradient else 0.3
        copy = 1.0 if in_place and not softmax_in_place(problem.axes.k, pairs * problem.itemsize) else 0.0
        arrays += copy
        mask = problem.spec.mask
        if mask is not None:  # the mask; all logits but those of products are copied while it is added
            copied = not (gradient or problem.score.is_inner_product or problem.score.adds_offset)
            arrays = max(arrays + 0.25, (in_place + 1.35 + copy if in_place else 3.05) if copied else 0.0)
            share = 1.0 if mask.arrays() else 1 / max(1, problem.axes.batch_size)
            arrays += max(0.0, share - 0.25)
        if problem.dtype == "bfloat16" and suits_half(problem.axes):
            arrays += 1.0  # a factor of a product in half precision, and its copy in oneDNN
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
        tile, gradient, mask = problem.tile, problem.gradient, problem.spec.mask
        by_user = may_close_over_tensors(problem.score)
        checked = projects_nothing(problem.score) or not by_user
        positional = depends_on_positions_alone(mask)
        fixed_mask = positional and problem.axes.q * problem.axes.k <= _KEPT_PAIRS
        built: dict[torch.device, BatchedAttention] = {}
        unbound = {"tile": tile, "dropout": 0.0, "projected": False, "tile_dtype": None, "finite": (True, True)}
        rounded_to = problem.rounded_to
        axes, number = problem.axes, not problem.score.arrays() and problem.score.distance_factor is not None
        checks_itself = number and axes.query[:-2] == axes.key[:-2] == axes.value[:-2] == axes.batch

        def run(
            query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
        ) -> Result | None:
            import torch

            sides = cast("tuple[Tensor, Tensor, Tensor]", (query, key, value))
            if torch.is_autocast_enabled(sides[2].device.type):
                return None
            attention = built.get(sides[2].device)
            if score.cancels and not checks_itself and not is_certainly_near(score, query, key):
                return None
            tensors: Sequence[Tensor | None] = sides[:2]
            if attention is None or not (fixed_mask and attention.pairs.direct):
                bound = object.__new__(BoundCall)  # the constructor of a frozen class takes four times as long
                bound.__dict__.update(
                    unbound, query=query, key=key, value=value, score=score, normalizer=normalizer, mask=mask,
                    out_dtype=getattr(torch, rounded_to) if rounded_to else value.dtype,
                )  # fmt: skip
                call = cast("TorchCall", bound)
                if attention is None:  # it depends on facts of the parts, but on no array of score and normalizer
                    attention = built[sides[2].device] = _attention_of(call, fixed_mask)
                if not fixed_mask:
                    common = attention.pairs, attention.rows, attention.batch, attention.equal
                    attention = BatchedAttention(*common, *mask_bias(call, positional), None, attention.half)
                # Autograd differentiates a function of the user in any case.
                if gradient and checked and by_user and attention.recordable and _all_finite(*sides[:2]):
                    given = [cast("Tensor", x) for x in attention.pairs.operands(call)]
                    return _result(attention.recorded(sides[2], given), gradient)
                tensors = attention.pairs.operands(call)
            # Without a gradient, elements that are not finite either show in the output or have no effect.
            if gradient and not (checked and (attention.pairs.checks or _all_finite(*sides[:2]))):
                return None
            return _result(attention(sides[2], *tensors), gradient)

        return run

    def run(self, call: TorchCall, problem: Problem) -> Result:  # type: ignore[override]
        """Compute the output from one array of all logits."""
        with no_autocast(call.value):
            if not projects_nothing(call.score):  # otherwise the recorded logits are checked
                refuse_closure_gradients(call)
            if _all_finite(call.query, call.key, call.value):
                call = replace(call, finite=(True, True))
                attention = _attention_of(call)
                output = attention(call.value, *attention.pairs.operands(call))
                if output is not None:
                    return Result(arrays.cast(output, call.out_dtype))
            return replace(DenseKernel().run(call, problem), guards=("not finite: the dense kernel",))


def _result(output: Float[Tensor, "*_"] | None, gradient: bool) -> Result | None:
    """Return the result of a prepared call, or None if there is no output or a gradient that was not planned."""
    return None if output is None or (output.requires_grad and not gradient) else Result(output)


def _all_finite(*tensors: Float[Tensor, "*_"]) -> bool:
    return all([has_finite_sum(x.detach()) for x in tensors])  # noqa: C419 -- half the time of a generator


def _attention_of(call: TorchCall, with_mask: bool = True) -> BatchedAttention:
    """Return the function that computes the output of a call."""
    raise_malloc_threshold()
    rows = row_weights(call.normalizer, call.tile.k_total)
    assert rows is not None  # `BatchedKernel.limits` refuses other normalizers
    pairs = pair_logits_of(call, rows.scale)
    equal = all(x.shape[:-2] == call.batch for x in (call.query, call.key, call.value))
    kept: Tensor | None = None
    if call.dropout:
        shape = (*call.batch, call.tile.q_total, call.tile.k_total)
        found = call.tile.dropout_mask(call.value.new_empty(()).expand(shape), call.dropout)
        kept = cast("Tensor", found).to(call.value.dtype).mul_(1 / (1 - dropout_rate(call.dropout)))
    bias, empty = mask_bias(call) if with_mask else (None, None)
    return BatchedAttention(pairs, rows, call.batch, equal, bias, empty, kept, half_of(call))


def _forward_arrays(score: Score) -> int:
    """Return the arrays of all pairs that one autograd node holds forward, or 0 if the score computes the logits."""
    if score.gates is not None and score.gated_product:
        return 2
    return 1 if _is_product(score) or score.distance_slope is not None else 0


def _is_product(score: Score) -> bool:
    """Return whether logits are inner products, with an offset or a soft cap."""
    while not score.is_inner_product and score.inner is not None and (score.adds_offset or score.tanh_cap is not None):
        score = score.inner
    return score.is_inner_product
