"""Kernel for gated products, sparsemax, 1.5-entmax and top-k on GPUs, by programs written in Triton.

Data is never read back to the host. Queries and keys that are not finite are set to 0 and get a bias of NaN; masked
keys get one of −inf. Values that are not finite are set to 0, and the programs read them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core.autograd_function import autograd_function
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Int, Num, OutputTensor, ReadoutResult, Shaped, Tensor
from qkv.kernels.runtime.isolated_autograd import project_call
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.program_kernel import (
    Block,
    ProgramKernel,
    batch_elements,
    finite_call,
    pair_biases,
    power_of_two,
    refuse_second_derivative,
)
from qkv.normalizers import Entmax15, Normalizer, Softmax, Sparsemax, TopK
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs
from qkv.scores.forms import Gated

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        launch: ProductLaunch


_STEPS = 40
"""Most Newton steps for a threshold; 4 to 8 are usual."""


@dataclass(frozen=True)
class ProductLaunch:
    """Blocks of the programs, and the options with which they are compiled.

    Attributes:
        offset: position of query 0 under a causal mask; None without one.
        block: size of the blocks.
        gated: whether products are multiplied by a gate.
        power: 1 for sparsemax, 2 for 1.5-entmax, 0 for softmax.
        top: number of keys that softmax keeps; 0 for all.
        scale: factor of the products, including that of the normalizer.
        precision: precision of matrix products, as in `triton.language.dot`.
    """

    offset: int | None
    block: Block
    gated: bool
    power: int
    top: int
    scale: float
    precision: str = "tf32x3"

    def options(self, width: int, value_width: int, forward: bool) -> dict[str, object]:
        """Return the compile-time arguments of the forward program, or of one that computes gradients."""
        sizes = {"D": width, "DP": power_of_two(width), "DV": value_width, "DVP": power_of_two(value_width)}
        kind = {"GATED": self.gated, "POWER": self.power, "TOP": self.top, "CAUSAL": self.offset is not None}
        more = {"TOPP": power_of_two(self.top), "STEPS": _STEPS} if forward else {}
        block = {"BQ": self.block.queries, "BK": self.block.keys, "num_warps": self.block.warps}
        return {**sizes, **kind, **more, **block, "PRECISION": self.precision}


def product_attention(call: TorchCall, launch: ProductLaunch) -> OutputTensor:
    """Return the output of a call whose score is an inner product or a gated inner product, in single precision.

    The scale of `launch` is that of the normalizer alone.
    """
    import torch

    batch, q = call.tile.batch, call.tile.q_total
    keys = split_mask(call.mask, call.tile)[0]
    _, row_bias, key_bias = pair_biases(call, keys)
    clean = finite_call(call)
    if launch.gated:
        sides = cast("TorchCall", project_call(clean))
        left, right = (batch_elements(x, batch) for x in (sides.query, sides.key))
        arrays = left[..., :-1], right[..., :-1], left[..., -1], right[..., -1]
    else:
        tile = replace(call.tile, centre=call.score.centre(clean.key))
        lifted = call.score.scaled_lift(clean.query, clean.key, tile)
        launch = replace(launch, scale=launch.scale * lifted[2])
        left, right = (batch_elements(cast("Tensor", x), batch) for x in lifted[:2])
        # These stand for the gates, which the programs do not use.
        arrays = left, right, row_bias, key_bias
    value = batch_elements(clean.value, batch)
    raw = batch_elements(call.value.detach(), batch).contiguous()
    bad = (~raw.isfinite().all(-1)).to(torch.int32)
    attend = autograd_function(_attend, _differentiate)
    output: Tensor = attend(launch, *arrays, value, raw, bad, row_bias, key_bias)
    return output.reshape((*batch, q, value.shape[-1]))


def _attend(
    ctx: _Context,
    launch: ProductLaunch,
    query: Float[Tensor, "element q width"],
    key: Float[Tensor, "element k width"],
    query_gate: Float[Tensor, "element q"],
    key_gate: Float[Tensor, "element k"],
    value: Float[Tensor, "element k value_width"],
    raw: Num[Tensor, "element k value_width"],
    bad: Int[Tensor, "element k"],
    row_bias: Float[Tensor, "element q"],
    key_bias: Float[Tensor, "element k"],
) -> Float[Tensor, "element q value_width"]:
    import torch

    from qkv.kernels.triton.product_programs import attend_products

    query, key, query_gate, key_gate, value = (x.contiguous() for x in (query, key, query_gate, key_gate, value))
    elements, q, width = query.shape
    k, value_width = value.shape[-2:]
    output = value.new_empty((elements, q, value_width))
    mean = torch.empty_like(output) if launch.power else output
    largest, known, threshold = (value.new_empty((elements, q)) for _ in range(3))
    last = torch.empty((elements, q), dtype=torch.int32, device=value.device)
    arrays = query, key, query_gate, key_gate, value
    results = output, mean, largest, known, threshold, last
    lengths = q, k, launch.offset or 0, launch.scale
    grid = -(-q // launch.block.queries), elements
    options = launch.options(width, value_width, forward=True)
    attend_products[grid](*arrays, raw, bad, row_bias, key_bias, *results, *lengths, **options)
    ctx.save_for_backward(*arrays, row_bias, key_bias, *results[1:])
    ctx.launch = launch
    return output


def _differentiate(
    ctx: _Context, gradient: Float[Tensor, "element q value_width"]
) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    import torch

    from qkv.kernels.triton.product_programs import differentiate_product_keys, differentiate_product_queries

    refuse_second_derivative("triton_products")
    *arrays, mean, largest, known, threshold, last = ctx.saved_tensors
    query, key, query_gate, key_gate, value = arrays[:5]
    launch, block = ctx.launch, ctx.launch.block
    gradient = gradient.contiguous()
    dots = (gradient * mean).sum(-1)
    elements, q, width = query.shape
    k, value_width = value.shape[-2:]
    query_gradient, key_gradient, value_gradient, query_gate_gradient, key_gate_gradient = (
        torch.empty_like(x) for x in (query, key, value, query_gate, key_gate)
    )
    given = (*arrays, gradient, dots, largest, known, threshold, last)
    lengths = q, k, launch.offset or 0, launch.scale
    options = launch.options(width, value_width, forward=False)
    differentiate_product_queries[(-(-q // block.queries), elements)](
        *given, query_gradient, query_gate_gradient, *lengths, **options
    )
    differentiate_product_keys[(-(-k // block.keys), elements)](
        *given, key_gradient, value_gradient, key_gate_gradient, *lengths, **options
    )
    gates = (query_gate_gradient, key_gate_gradient) if launch.gated else (None, None)
    return None, query_gradient, key_gradient, *gates, value_gradient, None, None, None, None


_MAX_WIDTH = 256
_MAX_TOP = 64
_NEWTON_STEPS = 6
"""Usual number of passes over the keys for the threshold of sparsemax or 1.5-entmax; it depends on the data."""


@dataclass(frozen=True)
class TritonProductsKernel(ProgramKernel):
    """Kernel for inner products under sparse normalizers, and for gated products, on GPUs."""

    name: ClassVar[str] = "triton_products"

    def limits(self, problem: Problem) -> Iterator[str]:
        axes, normalizer, score = problem.axes, problem.normalizer, problem.score
        yield from super().limits(problem)
        gated = isinstance(score.form, Gated)
        if not gated and (score.form.lift is None or score.form.inner is not None):
            yield f"{score} is neither an inner product nor a gated product"
        if _kind(normalizer) is None:
            yield f"it supports softmax, sparsemax, 1.5-entmax and top-k of softmax, not {normalizer}"
        if not gated and _kind(normalizer) == (0, 0):
            yield "softmax of inner products runs on PyTorch's operators"
        if isinstance(normalizer, TopK) and normalizer.k > _MAX_TOP:
            yield f"it keeps up to {_MAX_TOP} keys for each query"
        if max(score.lifted_width(axes.query_width, axes.key_width), axes.value_width) > _MAX_WIDTH:
            yield f"it supports vectors up to {_MAX_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        block = self._block(problem)
        power, top = _kind(problem.normalizer) or (0, 0)
        passes = "one pass over the keys"
        if power:
            passes = "a pass for the maximum, one for each Newton step of the threshold, and one for the output"
        elif top:
            passes = f"a pass that keeps the {top} largest logits of each query in registers, and one for the output"
        return f"tiles of {block.queries} queries × {block.keys} keys in registers; {passes}"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies of the inputs and the statistics of each query."""
        axes = problem.axes
        rows = axes.batch_size * (axes.q + axes.k)
        width = problem.score.lifted_width(axes.query_width, axes.key_width) + axes.value_width + 4
        numbers = rows * width * (6 if problem.gradient else 3)
        return numbers * problem.itemsize + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; sparse normalizers and top-k compute the logits several times."""
        return amounts_of_work(problem, visible_pairs(problem, 64, 64) * self._passes(problem))

    def attend(
        self, call: TorchCall, problem: Problem, offset: int | None, precision: str
    ) -> tuple[OutputTensor, tuple[ReadoutResult, ...]]:
        """Return the output of a call."""
        normalizer = call.normalizer
        power, top = _kind(normalizer) or (0, 0)
        inner = normalizer.inner if isinstance(normalizer, TopK) else normalizer
        scale, gated = cast("float", inner.scale), isinstance(call.score.form, Gated)
        launch = ProductLaunch(offset, self._block(problem), gated, power, top, scale, precision)
        return product_attention(call, launch), ()

    def _passes(self, problem: Problem) -> int:
        power, top = _kind(problem.normalizer) or (0, 0)
        return 2 + _NEWTON_STEPS if power else 2 if top else 1

    def _block(self, problem: Problem) -> Block:
        if self.block is not None:
            return Block(*self.block, 4)
        axes = problem.axes
        width = max(problem.score.lifted_width(axes.query_width, axes.key_width), axes.value_width)
        return product_block(width)


def product_block(width: int) -> Block:
    """Return the block of the programs for inner products, whose vectors are up to `width` wide.

    Example:
        >>> product_block(64)
        Block(queries=32, keys=32, warps=8)
    """
    return Block(16, 64, 8) if width > 128 else Block(32, 32, 8)


def _kind(normalizer: Normalizer) -> tuple[int, int] | None:
    """Return the power of the weights and the number of kept keys; None if the programs do not support a normalizer."""
    if isinstance(normalizer, Sparsemax):
        return 1, 0
    if isinstance(normalizer, Entmax15):
        return 2, 0
    top = normalizer.k if isinstance(normalizer, TopK) else 0
    softmax = normalizer.inner if isinstance(normalizer, TopK) else normalizer
    if isinstance(softmax, Softmax) and softmax.sink is None and softmax.scale is not None:
        return 0, top
    return None
