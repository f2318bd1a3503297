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
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core.arrays import itemsize
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.tile import Tile
from qkv.core.typing import Array, Int, Tensor
from qkv.kernels.fused.call import FINITE, DoubleBackward, LiftedCall, attend_finite
from qkv.kernels.fused.layout import layout_of
from qkv.kernels.fused.sdpa import FusedAttention, operators, results_are_finite
from qkv.kernels.runtime.memory_model import lifted_elements, saved_by_lift
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.tiled.kernel import TiledKernel
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs
from qkv.scores import Dot, ScaledDot, Score
from qkv.scores.forms import ScaledProduct

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall


__all__ = ["FusedKernel"]


def prepare_call(problem: Problem) -> PreparedCall | None:
    """Return a function that runs a call on a CPU, or None if the mask or the widths are not supported.

    Supported are scaled dot products of queries, keys and values of the same width, without a mask or with a mask of
    keys, a causal mask, or both, and all scores that are lifted.
    """
    if problem.device.is_gpu:
        return None
    axes, score, tile = problem.axes, problem.score, problem.tile
    form = score.form
    if not (problem.traced or isinstance(form, ScaledProduct)):
        return _prepare_lifted(problem)
    keys, offset, known = split_mask(problem.spec.mask, tile)
    equal = axes.query_width == axes.key_width == axes.value_width
    temperature = problem.normalizer.temperature
    if problem.traced or not (isinstance(form, ScaledProduct) and equal and known) or offset or score.arrays():
        return None
    layout = layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2])
    if layout is None or not isinstance(temperature, (int, float)) or (found := operators("cpu")) is None:
        return None
    import torch

    one = torch.ones((1, axes.query_width), dtype=getattr(torch, problem.dtype))
    scale, width = form.factor(axes.query_width) / temperature, axes.value_width
    if scale < 0:
        return _prepare_lifted(problem)
    gradient, zero, excluded = problem.gradient, one.new_zeros(()), one.new_full((), -math.inf)
    identity = layout.is_identity(axes.query, axes.key, axes.value)
    if keys is not None and all(type(part).__module__.startswith("qkv.masks.") for part in keys.parts()):
        tile = TileOfCalls(*[getattr(tile, field.name) for field in dataclasses.fields(tile)])
    double_backward = DoubleBackward(problem, tile, problem.spec.mask, scale)
    fixed = FusedAttention(layout, scale, offset, None, double_backward, identity)
    operator, causal = found[0], offset is not None
    # Arrays that already have the operator's four axes, and whose results reveal that an array is not finite.
    simple = not gradient and identity and fixed.reveals_nonfinite(one)

    def run(
        query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
    ) -> Result | None:
        sides = cast("tuple[Tensor, Tensor, Tensor]", (query, key, value))
        if not sides[2].is_cpu:
            return None
        bias = None
        if keys is not None:
            own = mask if mask is None or offset is None else split_mask(mask, tile)[0]
            if own is None:
                return None
            allowed = layout.key_mask(cast("Tensor", own.allowed(tile, value)))
            bias = torch.where(allowed, zero, excluded)
        if simple and sides[0].stride(-1) == sides[1].stride(-1) == sides[2].stride(-1) == 1:
            output, log_sum_exp = operator(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
            if results_are_finite(output, log_sum_exp):
                return Result(output, (), FINITE)
        attention = fixed
        if bias is not None:
            differentiable = DoubleBackward(problem, tile, mask, scale)
            attention = FusedAttention(layout, scale, offset, bias, differentiable, identity)
        output = attend_finite(attention, sides, gradient)
        return None if output is None else Result(layout.output(output, width), (), FINITE)

    return run


class TileOfCalls(Tile):
    """Tile of a whole call on a CPU that computes the positions of its keys once; masks must not change them."""

    __slots__ = ("_key_positions",)
    _key_positions: Int[Tensor, " k"]

    def key_positions(self, reference: Array) -> Int[Array, " k"]:
        try:
            return self._key_positions
        except AttributeError:
            self._key_positions = cast("Tensor", super().key_positions(reference))
            return self._key_positions


def _prepare_lifted(problem: Problem) -> PreparedCall:
    tile = problem.tile

    def run(
        query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
    ) -> Result | None:
        call = BoundCall(query, key, value, score, normalizer, mask, tile, 0.0, value.dtype)
        output = LiftedCall.of(cast("TorchCall", call), problem).output()
        return None if output is None else Result(output, (), FINITE)

    return run


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
    runs_on_gpu: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        from qkv.kernels.fused.layout import layout_of

        axes = problem.axes
        if problem.score.form.lift is None:
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
        if not _supports_mask(problem):
            yield f"the mask {problem.spec.mask} would need an array of {axes.q} × {axes.k}"
        if 0 in (axes.q, axes.k, axes.query_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2]) is None:
            yield "the batch axes cannot be mapped to two without a copy"

    def describe(self, problem: Problem) -> str:
        from qkv.kernels.fused.layout import layout_of

        axes, score = problem.axes, problem.score
        width = score.lifted_width(axes.query_width, axes.key_width)
        notes = [f"{score} is an inner product of width {width}", score.lift_description()]
        if score.form.lift != "exact":
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
        return "; ".join(note for note in notes if note)

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies for lifting and padding."""
        axes, score = problem.axes, problem.score
        width = max(score.lifted_width(axes.query_width, axes.key_width), axes.value_width)
        casts = problem.cast_bytes > 0 and not self.keeps_dtype(problem)
        if problem.gradient:
            copies = _bytes_with_gradient(problem, width, casts)
        else:
            copies = _copied_elements(problem, width, False) * problem.itemsize
            copies += problem.cast_bytes if casts else 0
        return copies + _SCRATCH

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return the guards on the data; on a GPU there are none, because reading them back would make it wait."""
        if not problem.device.is_gpu:
            return self.guards
        if split_mask(problem.spec.mask, problem.tile)[1] is None:
            return ()
        return ("NaN and infinity of keys and values are set to 0, and give NaN to queries that may attend to them",)

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift on a GPU, whose operators accumulate in single precision."""
        unscaled = isinstance(problem.normalizer.temperature, (int, float))
        return problem.device.is_gpu and unscaled and isinstance(problem.score, (Dot, ScaledDot))

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated.

        Queries, keys and values are as wide as the widest of them. Arrays that have not the operator's four axes count
        as a second call: they take 1.5 to 2 times the fixed cost, unless the lift to inner products takes most of it.
        """
        from qkv.kernels.fused.layout import layout_of

        axes, amounts = problem.axes, amounts_of_work(problem, visible_pairs(problem, 64, _KEY_BLOCK), array_elements=0)
        width = max(problem.score.lifted_width(axes.query_width, axes.key_width), axes.value_width)
        amounts["rows"] = axes.batch_size * (axes.q + axes.k) * 2 * width
        amounts["products"] = amounts["pairs"] * 2 * width
        layout = layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2])
        same = layout is not None and layout.is_identity(axes.query, axes.key, axes.value)
        if isinstance(problem.score.form, ScaledProduct) and not same:
            amounts["call"] += 1
        return amounts

    def prepare(self, problem: Problem) -> PreparedCall | None:
        return prepare_call(problem)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run PyTorch's fused attention, or the tiled kernel if the data is not finite."""
        from qkv.kernels.fused.call import run

        tensors = typing.cast("TorchCall", call)
        result = run(tensors, problem)
        if result is not None:
            return result
        return dataclasses.replace(TiledKernel().run(tensors, problem), guards=("not all finite: tiled",))


def _copied_elements(problem: Problem, width: int, casts: bool) -> int:
    """Return the elements of the inputs that are lifted, padded or cast, of the log-sum-exp and of padded columns.

    Args:
        width: width to which queries, keys and values are padded.
        casts: whether all inputs are copied, and the output.
    """
    axes, form = problem.axes, problem.score.form
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
    returned = sum(map(math.prod, (axes.query, axes.key, axes.value))) * itemsize(problem.dtype)
    in_operator = elements * size - returned
    side = max(lifted_elements(problem, scales_query=False))
    in_lift = side * score.form.saved.peak * size
    in_lift += side * (size - itemsize(problem.dtype)) if in_lift else output * (width - axes.value_width) * size
    return max(in_operator, in_lift, 0.0)


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
