"""The fused kernel: PyTorch's `scaled_dot_product_attention`, for scores that lift to an inner product.

It is used under softmax, and only where it runs in linear memory: four axes, equal widths, no dropout, a last
axis that is contiguous, no mask or a mask of keys or causal from the start. What is not so is made so (values
padded with zeros, inputs made contiguous) or refused. The backend is named, so that PyTorch cannot fall back
to the quadratic one silently.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from qkv.core.arrays import Array, cast
from qkv.core.equation import Ready
from qkv.core.guard import all_finite
from qkv.kernels.tiled import TiledKernel
from qkv.plan.cost import Cost
from qkv.plan.kernel import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["FusedKernel"]


@dataclasses.dataclass(frozen=True)
class FusedKernel(Kernel):
    """One call of `scaled_dot_product_attention` on lifted query and key."""

    name: ClassVar[str] = "fused"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if query, key and value, and what they are lifted to, are finite: fused, else tiled "
        "(0 · NaN would leak)",
    )

    def refuse(self, problem: Problem) -> str | None:
        """By facts of score, normalizer, mask and shapes."""
        axes, normalizer, mask = problem.axes, problem.normalizer, problem.spec.mask
        fact = problem.score.lift_fact
        if sentence := self.refuse_library(problem):
            return sentence
        if fact is None:
            return f"{problem.score} is no inner product"
        if not (normalizer.log_sum_exp and normalizer.passes == "one"):
            return f"it knows softmax alone, not {normalizer}"
        if not normalizer.shift_invariant:
            return f"it has no sink, {normalizer} has one"
        if problem.readouts:
            return "it keeps no weights for readouts"
        if problem.spec.dropout:
            return "with dropout PyTorch would run it in quadratic memory"
        if mask is not None and not mask.key_only and not _causal_from_start(problem):
            return f"the mask {mask} would be held as an array of {axes.q} × {axes.k}"
        if 0 in (axes.q, axes.k, axes.query_width, axes.value_width, axes.batch_size):
            return "an axis is empty"
        if len(axes.batch) > 2 and not _merges(problem):
            return "more than two batch axes, some of them shared, would have to be copied"
        return None

    def describe(self, problem: Problem) -> str:
        """What is lifted and padded."""
        exactly = (
            "exactly"
            if problem.score.lift_fact == "exact"
            else "up to a term of the query, which softmax ignores"
        )
        return f"{problem.score} lifted to an inner product, {exactly}"

    def cost(self, problem: Problem) -> Cost:
        """One pass; copies of the inputs where they are lifted or padded."""
        axes = problem.axes
        width = max(axes.query_width + 2, axes.value_width)
        times = 3.5 if problem.gradient else 1
        flop = axes.pairs * (4 * width + 6) * times
        peak = (
            2
            * axes.batch_size
            * (axes.q + 2 * axes.k)
            * width
            * problem.itemsize
            * (2 if problem.gradient else 1)
        )
        return Cost(flop, problem.input_bytes * 3, peak + problem.kept_bytes, 1e-4)

    def run(self, ready: Ready, problem: Problem) -> Result:
        """Lift, pad, call; or take the tiled kernel where the data is not finite."""
        lifted = _lifted(ready) if ready.clean_pairs and ready.clean_value else None
        if lifted is None or not all(all_finite(side) for side in lifted):
            result = TiledKernel().run(ready, problem)
            return dataclasses.replace(result, guards=("not all finite: tiled",))
        return Result(cast(_fused(ready, *lifted), ready.out_dtype), (), ("all finite: fused",))


def _causal_from_start(problem: Problem) -> bool:
    mask = problem.spec.mask
    return mask is not None and mask.causal_offset(problem.place) == 0


def _merges(problem: Problem) -> bool:
    """Whether all batch axes but the last can be made one without a copy: no input is shared along them."""
    axes, mask = problem.axes, problem.spec.mask
    lead = axes.batch[:-1]
    return mask is None and all(shape[:-3] == lead for shape in (axes.query, axes.key, axes.value))


def _lifted(ready: Ready) -> tuple[Array, Array]:
    import torch

    # One centre for all: two lifts of one key must agree.
    place = dataclasses.replace(ready.place, centre=ready.score.centre(ready.key))
    with torch.autocast(ready.value.device.type, enabled=False):
        left, right = ready.score.lift(ready.query, ready.key, place)
    return left, right


def _fused(ready: Ready, left: Array, right: Array) -> Any:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import pad, scaled_dot_product_attention

    value, keep = ready.value, None
    if ready.mask is not None and ready.mask.key_only:
        allowed = ready.mask.allowed(ready.place, value)
        # Four axes of its own: (1, 1, 1, k) where all batch elements share it.
        keep = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
    with torch.autocast(value.device.type, enabled=False):
        temperature = ready.normalizer.temperature
        if isinstance(temperature, torch.Tensor):
            left, scale = left / (temperature[..., None, None] if temperature.ndim else temperature), 1.0
        else:
            scale = 1.0 / temperature
        width = max(left.shape[-1], value.shape[-1])
        left, right, wide = (
            _four(pad(x, (0, width - x.shape[-1])), ready.batch) for x in (left, right, value)
        )
        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        with sdpa_kernel(backends):
            output = scaled_dot_product_attention(
                left,
                right,
                wide,
                attn_mask=keep,
                is_causal=ready.mask is not None and keep is None,
                scale=scale,
            )
    return output[..., : value.shape[-1]].reshape((*ready.batch, output.shape[-2], value.shape[-1]))


def _four(x: Array, batch: tuple[int, ...]) -> Array:
    """The array with two batch axes, expanded (never copied) to the call's, its last axis contiguous."""
    if len(batch) > 2:
        lead = 1
        for n in batch[:-1]:
            lead *= n
        x = x.reshape((lead, *x.shape[-3:]))
        batch = (lead, batch[-1])
    if x.stride(-1) != 1:
        x = x.contiguous()
    batch = (1,) * (2 - len(batch)) + tuple(batch)
    return x.expand((*batch, *x.shape[-2:]))
