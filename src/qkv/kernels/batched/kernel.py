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
from typing import ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import TorchCall, apply_dropout
from qkv.core.typing import Bool, Float, Tensor
from qkv.kernels.batched.additive import STEP_BYTES, additive_logits
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.cost_model import PRODUCT_RATE, amounts_of_work
from qkv.kernels.runtime.isolated_autograd import project_call
from qkv.plan.cost import Cost, memory_text
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["BatchedKernel"]

_MAX_BYTES = 1 << 24
"""Size in bytes of an array of all pairs from which the planner does not choose this kernel."""


@dataclass(frozen=True)
class BatchedKernel(Kernel):
    """Kernel that computes all pairs of all batch elements at once in PyTorch, for softmax."""

    name: ClassVar[str] = "batched"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if query, key, value and output are finite: products of all pairs; else: the dense kernel",
    )

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield a reason for refusal for other normalizers than softmax, for text and for readouts."""
        normalizer = problem.normalizer
        if not (normalizer.log_sum_exp and normalizer.scale is not None and normalizer.shift_invariant):
            yield f"it computes a softmax with a fixed temperature and without a sink, not {normalizer}"
        if problem.axes.text:
            yield "it compares numbers, not text"
        if problem.readouts:
            yield "it computes no readouts"
        if problem.axes.pairs == 0:
            yield "there are no pairs of a query and a key"

    def unsuited(self, problem: Problem) -> str | None:
        """Return a sentence if an array of all pairs is so large that kernels in linear memory are preferred."""
        size = problem.axes.pairs * problem.itemsize
        if size < _MAX_BYTES:
            return None
        return (
            f"its arrays of all pairs would have {memory_text(size)} each; it is chosen below {memory_text(_MAX_BYTES)}"
        )

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, whose arrays of all pairs are written to memory and read back."""
        pairs, gradient = problem.axes.pairs, problem.gradient
        elements, additive = problem.elements_per_logit, problem.score.tanh_vector is not None
        held = elements if elements > 1 and not additive else 0
        arrays = 6 + 3 * held if gradient else 4 + 2 * held
        peak = pairs * problem.itemsize * arrays + problem.untiled_bytes + 2 * STEP_BYTES
        products = (problem.axes.query_width + problem.axes.value_width) * 2 * (3 if gradient else 1) / PRODUCT_RATE
        seconds = products + (6e-9 if gradient else 1.8e-9)
        seconds += elements * ((1.15e-9 if gradient else 0.4e-9) if additive else (6e-9 if gradient else 2e-9))
        flop = pairs * problem.flop_per_pair * (3 if gradient else 1)
        return Cost(flop, problem.input_bytes, peak, 2e-4 if gradient else 8e-5, arithmetic=pairs * seconds)

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated; masked pairs are computed too."""
        elements = 1 if problem.score.tanh_vector is not None else problem.elements_per_logit
        return amounts_of_work(problem, problem.axes.pairs, elements=elements)

    def run(self, call: TorchCall, problem: Problem) -> Result:  # type: ignore[override]
        """Compute the output from one array of all logits."""
        import torch

        with torch.autocast(call.value.device.type, enabled=False):
            refuse_closure_gradients(call)
            if call.finite_sides and call.finite_value:
                output = _attend(cast("TorchCall", project_call(call)))
                # A logit of +inf, or a row of which all logits are −inf, makes the softmax NaN.
                if torch.isfinite(output.detach().sum()) or torch.isfinite(output).all():
                    return Result(arrays.cast(output, call.out_dtype))
            return replace(DenseKernel().run(call, problem), guards=("not finite: the dense kernel",))


def _attend(call: TorchCall) -> Float[Tensor, "*batch q value_width"]:
    logits = cast("Tensor", arrays.cast(_logits(call), call.value.dtype))
    scale = call.normalizer.scale
    if scale is not None and scale != 1:
        logits = logits * scale
    alive = None
    if call.mask is not None and call.mask.coverage(call.tile) != "all":
        allowed = cast("Bool[Tensor, '*_']", call.mask.allowed(call.tile, logits))
        has_keys = allowed.any(dim=-1, keepdim=True)
        if not bool(has_keys.all()):
            # A row without keys would divide 0 by 0. It gets any weights here, and the output 0 below.
            allowed, alive = allowed | ~has_keys, has_keys
        logits = logits.masked_fill(~allowed, -math.inf)
    weights = logits.softmax(dim=-1)
    shape = (*call.batch, call.tile.q_total, call.tile.k_total)
    if weights.shape != shape:
        weights = weights.expand(shape)
    weights = apply_dropout(weights, call.tile, call.dropout)
    output = weights @ call.value
    return output if alive is None else output.masked_fill(~alive, 0)


def _logits(call: TorchCall) -> Float[Tensor, "*#batch #q #k"]:
    score = call.score
    if score.tanh_vector is not None:
        batch, (q, hidden), k = call.batch, call.query.shape[-2:], call.key.shape[-2]
        left, right = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (call.query, call.key))
        vector = cast("Tensor", score.tanh_vector)
        vector = vector[None] if vector.ndim == 1 else vector.expand(*batch, hidden).reshape(-1, hidden)
        logits = additive_logits(left, right, vector)
        if logits is not None:
            return logits.view(*batch, q, k)
    return cast("Tensor", score.projected_logits(call.query, call.key, call.tile))
