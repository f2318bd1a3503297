"""Kernel that calls PyTorch's fused attention, for softmax over scores that are inner products of lifted vectors.

It supports a call only if PyTorch can compute it in linear memory. Inputs are converted to the layout that PyTorch
expects: queries, keys and values are padded to one width, the last axis is made contiguous, batch axes are mapped to
two (`layout.py`), and a causal mask with an offset is split in two (`sdpa.py`). This file defines the supported calls
and their cost; `call.py` runs them.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

from qkv.core.arrays import itemsize
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.formatting import memory_text
from qkv.kernels.fused.layout import layout_of
from qkv.kernels.fused.pair_bias import bias_elements, block_rows, completes_lift, inner_score, needs_bias, takes_bias
from qkv.kernels.runtime.memory_model import lifted_elements, saved_by_lift
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.runtime.tile_sizes import thread_count
from qkv.kernels.tiled.kernel import TiledKernel
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import LARGE_BYTES, amounts_of_work, visible_pairs
from qkv.scores import Dot, ScaledDot
from qkv.scores.forms import ScaledProduct


@dataclasses.dataclass(frozen=True)
class FusedKernel(Kernel):
    """Kernel that calls PyTorch's fused attention on lifted queries and keys."""

    name: ClassVar[str] = "fused"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if query, key and value are finite, also after lifting: fused; else, with a mask of keys: fused with masked "
        "keys and values set to 0; else: tiled, because 0 · NaN is NaN",
    )
    traceable: ClassVar[bool] = True
    saves_statistics: ClassVar[bool] = True
    prepares_all_lengths: ClassVar[bool] = True
    runs_on_gpu: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:

        axes, biased = problem.axes, takes_bias(problem)
        if problem.score.form.lift is None and not biased:
            yield f"{problem.score} is not an inner product"
        yield from softmax_limits(problem.normalizer)
        if problem.device.is_gpu and problem.gradient and problem.score.form.inner is not None:
            yield f"a bias of {problem.score} may be −inf, which would give NaN in gradients"
        if problem.readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "with dropout PyTorch needs quadratic memory"
        if problem.traced in ("jvp", "twice"):
            yield "torch.func supports neither its forward-mode nor its second derivatives"
        if not (biased or _supports_mask(problem)):
            yield f"the mask {problem.spec.mask} would need an array of {axes.q} × {axes.k}"
        if 0 in (axes.q, axes.k, axes.query_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2]) is None:
            yield "the batch axes cannot be mapped to two without a copy"

    def describe(self, problem: Problem) -> str:

        axes, score = problem.axes, inner_score(problem.score)
        width = lifted_width(problem)
        notes = [f"{score} is an inner product of width {width}", score.lift_description()]
        if completes_lift(problem):
            notes.append("a column for the term of the query alone, which gradients need")
        elif score.form.lift != "exact":
            notes.append("the term of the query alone cancels in softmax")
        if width != axes.value_width:
            notes.append(f"{'values' if axes.value_width < width else 'vectors'} padded with 0")
        layout = layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2])
        if layout is not None and layout.grouped:
            notes.append(f"{layout.heads[1] // layout.key_heads[1]} query heads share a key head (enable_gqa)")
        offset = split_mask(problem.spec.mask, problem.tile)[1]
        if offset:
            notes.append(
                f"causal with offset {offset}"
                if problem.device.is_gpu
                else f"causal with offset {offset}: " + ("two merged calls" if offset > 0 else "only queries with keys")
            )
        if needs_bias(problem):
            rows = block_rows(problem)
            notes.append(f"an array of all pairs is added{f' for {rows} queries at a time' if rows < axes.q else ''}")
        return "; ".join(note for note in notes if note)

    def unsuited(self, problem: Problem) -> str | None:
        """Return a sentence if the array of a few queries is so large that kernels with smaller tiles are preferred."""
        size = _bias_bytes(problem)
        if size < LARGE_BYTES:
            return None
        return f"the array of pairs would have {memory_text(size)}; it is chosen below {memory_text(LARGE_BYTES)}"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies for lifting and padding."""
        width = max(lifted_width(problem), problem.axes.value_width)
        casts = problem.cast_bytes > 0 and not self.keeps_dtype(problem)
        if problem.gradient:
            copies = _bytes_with_gradient(problem, width, casts)
        else:
            copies = _copied_elements(problem, width, False) * problem.itemsize
            copies += problem.cast_bytes if casts else 0
        return copies + 2.25 * _bias_bytes(problem) + _SCRATCH  # the mask, and the sum of the offsets with it

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return the guards on the data; on a GPU there are none, because reading them back would make it wait."""
        if not problem.device.is_gpu:
            return self.guards
        if split_mask(problem.spec.mask, problem.tile)[1] is None:
            return ()
        return ("NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them",)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift and PyTorch's operator takes less time in half precision.

        It accumulates in single precision, and rounds the weights before they are multiplied with the values.
        """
        unscaled = isinstance(problem.normalizer.temperature, (int, float))
        if not (unscaled and isinstance(problem.score, (Dot, ScaledDot))):
            return False
        on_cpu = problem.dtype == "bfloat16" and not (problem.gradient or problem.traced) and _multiplies_bfloat16()
        return problem.device.is_gpu or on_cpu

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated.

        Queries, keys and values are as wide as the widest of them. Arrays that have not the operator's four axes count
        as a second call: they take 1.5 to 2 times the fixed cost, unless the lift to inner products takes most of it.
        """
        axes, amounts = problem.axes, amounts_of_work(problem, _pairs(problem), array_elements=0)
        score = inner_score(problem.score)
        width = max(lifted_width(problem), axes.value_width)
        amounts["rows"] = axes.batch_size * (axes.q + axes.k) * 2 * width
        amounts["products"] = amounts["pairs"] * 2 * width
        layout = layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2])
        same = layout is not None and layout.is_identity(axes.query, axes.key, axes.value)
        if isinstance(score.form, ScaledProduct) and not same:
            amounts["call"] += 1
        # The array of pairs takes about as long with a gradient, and forward if arrays are padded, too.
        if needs_bias(problem) and (problem.gradient or lifted_width(problem) != axes.value_width):
            amounts["call"] += 1
        return amounts

    def prepare(self, problem: Problem) -> PreparedCall | None:
        from qkv.kernels.fused.prepared import prepare_call

        return prepare_call(problem)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run PyTorch's fused attention, or the tiled kernel if the data is not finite."""
        from qkv.kernels.fused.call import run

        tensors = typing.cast("TorchCall", call)
        result = run(tensors, problem)
        if result is not None:
            return result
        tensors = typing.cast("TorchCall", tensors.with_all_cast())
        return dataclasses.replace(TiledKernel().run(tensors, problem), guards=("not all finite: tiled",))


def lifted_width(problem: Problem) -> int:
    """Return the width of the lifted queries and keys."""
    axes, score = problem.axes, inner_score(problem.score)
    return score.lifted_width(axes.query_width, axes.key_width) + completes_lift(problem)


@cache
def _multiplies_bfloat16() -> bool:
    """Return whether the processor multiplies tiles of bfloat16 (AMX).

    Other processors take up to three times as long for the products of one query as in single precision.
    """
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())


def _copied_elements(problem: Problem, width: int, casts: bool) -> int:
    """Return the elements of the inputs that are lifted, padded or cast, of the log-sum-exp and of padded columns.

    Args:
        width: width to which queries, keys and values are padded.
        casts: whether all inputs are copied, and the output.
    """
    axes, form = problem.axes, inner_score(problem.score).form
    lifted = not isinstance(form, ScaledProduct)
    elements = math.prod(axes.output[:-1]) * (width - axes.value_width + 2)
    for shape, lift in ((axes.query, lifted), (axes.key, lifted and form.copies_keys), (axes.value, False)):
        if casts or lift or shape[-1] != width:
            elements += math.prod(shape[:-1]) * width
    return elements + (math.prod(axes.output) if casts else 0)


def _bytes_with_gradient(problem: Problem, width: int, casts: bool) -> float:
    """Return the bytes in memory at the peak of the backward pass, besides inputs and results.

    There are two peaks: in PyTorch's operator, and while the lift of the longer side is differentiated.
    """
    axes, score, size = problem.axes, problem.score, problem.itemsize
    output = math.prod(axes.output[:-1])
    offset = split_mask(problem.spec.mask, problem.tile)[1] or 0
    elements = _copied_elements(problem, width, casts) + saved_by_lift(problem, casts)
    if casts or width != axes.value_width:
        elements += output * width  # the gradient of the output: cast, or padded
    if axes.batch_size > 1 and offset >= 0:
        elements += output * width  # the gradient of the output in another layout
    sides = [math.prod(shape[:-1]) for shape in (axes.query, axes.key, axes.value)]
    elements += sum(sides) * width  # the gradients of padded queries, keys and values
    if offset > 0:  # those of keys and values are joined from the gradients of two calls
        elements += (sides[1] + sides[2]) * width
    if thread_count(problem) > 1:  # those of shares are joined
        elements += sum(sides) * width
    returned = sum(map(math.prod, (axes.query, axes.key, axes.value))) * itemsize(problem.dtype)
    in_operator = elements * size - returned
    side = max(lifted_elements(problem, scales_query=False))
    in_lift = side * score.form.saved.peak * size
    in_lift += side * (size - itemsize(problem.dtype)) if in_lift else output * (width - axes.value_width) * size
    return max(in_operator, in_lift, 0.0)


def _bias_bytes(problem: Problem) -> float:
    """Return the bytes of the array of pairs of a block of queries, or 0 if the operator needs none."""
    if not needs_bias(problem):
        return 0.0
    rows = block_rows(problem)
    share = visible_pairs(problem, rows) / max(1, problem.axes.pairs) if rows < problem.axes.q else 1
    return bias_elements(problem) * problem.itemsize * share * rows / max(1, problem.axes.q)


def _pairs(problem: Problem) -> float:
    """Return the number of pairs that the operator computes. It skips pairs only by the causal mask that it applies."""
    if not needs_bias(problem):
        return visible_pairs(problem, 64, _KEY_BLOCK)
    rows = block_rows(problem)
    return visible_pairs(problem, rows) if rows < problem.axes.q else problem.axes.pairs


_KEY_BLOCK = 512
"""Number of keys of a block of PyTorch's operator, which computes whole blocks."""
_SCRATCH = 2**20
"""Bytes that the operator's own tiles and the matrix product library allocate."""


def _supports_mask(problem: Problem) -> bool:
    """Return whether fused attention can apply the mask of a call without an array of all pairs."""
    from qkv.kernels.fused.sdpa import operators

    keys, offset, known = split_mask(problem.spec.mask, problem.tile)
    if problem.device.is_gpu and known:
        # The operators of GPUs align a causal mask with the first or with the last keys, and combine it with no other.
        aligned = not offset or (0 < offset == problem.axes.k - problem.axes.q and not problem.traced)
        return offset is None or (keys is None and aligned)
    return known and (not offset or (keys is None and not problem.traced and operators("cpu") is not None))
