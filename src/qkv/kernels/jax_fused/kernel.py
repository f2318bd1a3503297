"""Kernel that calls fused attention from JAX on a GPU, for scaled dot products in half precision under softmax.

It calls `jax.nn.dot_product_attention` with cuDNN where cuDNN supports the widths, and tokamax, where installed, for
other widths. Calls in single precision stay with the compiled loops, because both round products to TF32 or less.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html, and
https://github.com/openxla/tokamax.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar, Literal

from qkv.core.arrays import cast
from qkv.core.equation import BoundCall
from qkv.core.typing import Array, Float, OutputArray
from qkv.kernels.jax_loops.kernel import JaxLoopsKernel
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.plan.bind import bind_problem
from qkv.plan.kernel_protocol import Elsewhere, Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs
from qkv.scores import Dot, ScaledDot


def fused_attention(call: BoundCall, implementation: str) -> OutputArray:
    """Return the output of a scaled dot product under softmax.

    Args:
        call: the call, without mask or with a causal one whose query 0 is at the position of key 0.
        implementation: "cudnn" or "xla" for `jax.nn.dot_product_attention`, or "tokamax".
    """
    import jax.numpy as jnp

    *lifted, scale = call.score.scaled_lift(call.query, call.key, call.tile)
    scale /= typing.cast("float", call.normalizer.temperature)
    query, key, value = (jnp.asarray(x) for x in (*lifted, call.value))
    poison: Array = (query * 0).sum(-1, keepdims=True)
    causal = call.mask is not None
    if causal:
        nonfinite = (key * 0).sum(-1) + (value * 0).sum(-1)
        poison = poison + _until(nonfinite, query.shape[-2])[..., None]
        key, value = (jnp.where(jnp.isfinite(x), x, 0) for x in (key, value))
    query = jnp.where(jnp.isfinite(query), query, 0)
    width, value_width = max(query.shape[-1], value.shape[-1]), value.shape[-1]
    if implementation != "tokamax":
        width += -width % 8
        query, key, value = (_padded(x, width) for x in (query, key, value))
    batch = call.tile.batch
    sides = _four_axes((query, key, value), batch)
    if implementation == "tokamax":
        tokamax = import_module("tokamax")
        # Without these names, tokamax may compute an array of all pairs.
        output = tokamax.dot_product_attention(
            *sides, scale=float(scale), is_causal=causal, implementation=("mosaic", "triton")
        )
    else:
        from jax.nn import dot_product_attention

        known = typing.cast("Literal['cudnn', 'xla']", implementation)
        output = dot_product_attention(*sides, scale=float(scale), is_causal=causal, implementation=known)
    output = jnp.swapaxes(output, 1, 2).reshape((*batch, query.shape[-2], output.shape[-1]))
    return typing.cast("Array", output[..., :value_width] + poison)


def _until(nonfinite: Float[Array, "*#batch k"], q: int) -> Float[Array, "*#batch q"]:
    """Return for each query the sum over the keys up to its position, of numbers that are 0 or NaN."""
    import jax.numpy as jnp

    sums = jnp.cumsum(nonfinite, axis=-1)
    sums_until: Array = jnp.take(sums, jnp.minimum(jnp.arange(q), sums.shape[-1] - 1), axis=-1)
    return sums_until


def _padded(x: Array, width: int) -> Array:
    import jax.numpy as jnp

    padded: Array = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
    return padded


def _four_axes(sides: tuple[Array, Array, Array], batch: tuple[int, ...]) -> list[Array]:
    """Return query, key and value with the axes (batch, length, heads, width).

    Query heads that share a key head, along the last batch axis, are not copied for each.
    """
    import jax.numpy as jnp

    query, key, value = sides
    shared = len(batch) > 1 and all(x.ndim == len(batch) + 2 and x.shape[-3] == 1 for x in (key, value))
    head_axes = 2 if shared else 1
    outer, heads = batch[:-head_axes], batch[-head_axes:]
    arrays = []
    for x, own in ((query, heads), *((x, (heads[0], 1) if shared else heads) for x in (key, value))):
        x = jnp.broadcast_to(x, (*outer, *own, *x.shape[-2:]))
        x = x.reshape((math.prod(outer), math.prod(own), *x.shape[-2:]))
        arrays.append(jnp.swapaxes(x, 1, 2))
    return arrays


Implementation = Literal["cudnn", "tokamax", "xla"]


@dataclass(frozen=True)
class JaxFusedKernel(Kernel):
    """Kernel that calls JAX's fused attention on GPUs.

    Args:
        implementation: "cudnn", "tokamax", or "xla", which runs everywhere, for tests; None to choose by the problem.
    """

    name: ClassVar[str] = "jax_fused"
    libraries: ClassVar[tuple[str, ...]] = ("jax",)
    runs_on_gpu: ClassVar[bool] = True
    implementation: Implementation | None = None

    def limits(self, problem: Problem) -> Iterator[str]:
        axes = problem.axes
        if not (problem.device.is_gpu or self.implementation):
            yield Elsewhere("it runs on GPUs")
        if not isinstance(problem.score, (Dot, ScaledDot)):
            yield f"{problem.score} is not a scaled dot product"
        yield from softmax_limits(problem.normalizer, number=True)
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if not _supports_mask(problem):
            yield f"the mask {problem.spec.mask} is not causal with query 0 at the position of key 0"
        if 0 in (axes.q, axes.k, axes.query_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if problem.dtype == "float64":
            yield "it computes in single precision"
        if self.implementation != "xla":
            if problem.dtype not in ("bfloat16", "float16"):
                yield f"fused attention of JAX is exact enough in half precision alone, not in {problem.dtype}"
            if self.chosen(problem) is None:
                yield f"cuDNN supports vectors up to {_cudnn_width(problem)} wide, and tokamax is not installed"

    def chosen(self, problem: Problem) -> Implementation | None:
        """Return the implementation for a problem, or None if none supports it."""
        if self.implementation is not None:
            return self.implementation
        width = max(problem.axes.query_width, problem.axes.value_width)
        if problem.device.capability >= (8, 0) and width <= _cudnn_width(problem):
            return "cudnn"
        return "tokamax" if find_spec("tokamax") is not None else None

    def describe(self, problem: Problem) -> str:
        chosen = self.chosen(problem)
        if chosen == "tokamax":
            return "tokamax.dot_product_attention"
        return f'jax.nn.dot_product_attention(implementation="{chosen}"); vectors padded to one width, a multiple of 8'

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return what is done with data that is not finite, which is never read back."""
        refused = f"if {self.chosen(problem)} refuses the call: jax_loops"
        if problem.spec.mask is None:
            return (refused,)
        nonfinite = "NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them"
        return (nonfinite, refused)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether arrays stay as they are; XLA's compiler for CPUs refuses some products of bfloat16."""
        return self.implementation != "xla"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies of the inputs to JAX's order of axes."""
        axes = problem.axes
        width = max(axes.query_width, axes.value_width)
        copies = axes.batch_size * (2 * axes.q + 2 * axes.k) * width * problem.itemsize * (2 if problem.gradient else 1)
        return copies + (axes.pairs * problem.itemsize * 4 if self.implementation == "xla" else 0)

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; blocks of pairs that the mask excludes are skipped."""
        return amounts_of_work(problem, visible_pairs(problem, 128, 128))

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run fused attention, without reading anything back, or compiled loops if the library refuses the call."""
        implementation = self.chosen(problem)
        assert implementation is not None
        try:
            return Result(cast(fused_attention(call, implementation), call.out_dtype))
        except (NotImplementedError, ExceptionGroup) as error:
            loops = JaxLoopsKernel()
            bound = bind_problem(call.query, call.key, call.value, problem, None, loops)
            note = f"{implementation} refused the call ({error}): jax_loops"
            return replace(loops.run(bound, problem), guards=(note,))


def _supports_mask(problem: Problem) -> bool:
    """Return whether a call has no mask, or a causal one that starts at the first key, as JAX's."""
    mask = problem.spec.mask
    return mask is None or (len(mask.conjuncts) == 1 and mask.causal_offset(problem.tile) == 0)


def _cudnn_width(problem: Problem) -> int:
    """Return the largest width of vectors that cuDNN supports."""
    return 256 if problem.device.capability >= (9, 0) else 128
