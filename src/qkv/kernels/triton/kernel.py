"""Kernel for additive scores on GPUs, by programs written in Triton.

Data is never read back to the host. Queries, keys and values that are not finite are set to 0. A query or key that is
not finite gets a bias of NaN, and a masked key one of −inf. The values that are not finite are added to the output of
the queries that may attend to them.

Source: Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core.autograd_function import autograd_function
from qkv.core.equation import TorchCall
from qkv.core.parts import expand_to_pairs
from qkv.core.typing import Bool, Float, Int, Num, OutputTensor, ReadoutResult, Shaped, Tensor
from qkv.kernels.runtime.isolated_autograd import project_call
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.program_kernel import (
    AdditiveBlocks,
    Block,
    Launch,
    ProgramKernel,
    additive_blocks,
    batch_elements,
    finite_call,
    pair_biases,
    power_of_two,
    product_precision,
    refuse_second_derivative,
)
from qkv.plan.problem import Problem
from qkv.scores.forms import Tanh

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        launch: Launch


def additive_attention(call: TorchCall, launch: Launch) -> OutputTensor:
    """Return the output of a call with an additive score under softmax, in single precision."""
    batch, q = call.tile.batch, call.tile.q_total
    arrays, allowed = additive_sides(call)
    attend = autograd_function(_attend, _differentiate)
    output: Tensor = attend(launch, *arrays)
    output = output.reshape((*batch, q, call.value.shape[-1]))
    return output + nonfinite_values(call, allowed, launch.offset)


def additive_sides(call: TorchCall) -> tuple[tuple[Tensor, ...], Bool[Tensor, "*#batch k"]]:
    """Return the arrays of the programs of an additive score, and which keys are allowed.

    The arrays are the projections of queries and keys, the vector, the values, and the biases of queries and keys.
    """
    import torch

    batch, keys = call.tile.batch, split_mask(call.mask, call.tile)[0]
    clean = finite_call(call)
    sides = cast("TorchCall", project_call(clean))
    padding = sides.query.shape[-1] % 2  # a unit of zeros makes their number even
    left, right = (batch_elements(torch.nn.functional.pad(x, (0, padding)), batch) for x in (sides.query, sides.key))
    vector = cast("Tensor", cast("Tanh", call.score.form).vector)
    temperature = expand_to_pairs(cast("Tensor | float", call.normalizer.temperature))
    if isinstance(temperature, torch.Tensor):
        vector = vector / (temperature[..., 0] if temperature.ndim else temperature)
    else:
        vector = vector / cast("float", temperature)
    vector = torch.nn.functional.pad(vector, (0, padding))
    vector = vector.expand((*batch, vector.shape[-1])).reshape(-1, vector.shape[-1])
    allowed, *biases = pair_biases(call, keys)
    return (left, right, vector, batch_elements(clean.value, batch), *biases), allowed


def nonfinite_values(
    call: TorchCall, allowed: Bool[Tensor, "*#batch k"], offset: int | None
) -> Num[Tensor, "*#batch #q value_width"]:
    """Return the sum of the values that are not finite, over the keys to which a query may attend; 0 for most."""
    import torch

    value, q = call.value.detach(), call.tile.q_total
    found = torch.where(value.isfinite() | ~allowed[..., None], 0.0, value)
    if offset is None:
        return found.sum(-2, keepdim=True)
    sums = torch.cumsum(found, dim=-2)
    none = sums.new_zeros(()).expand((*sums.shape[:-2], max(0, min(q, -offset)), sums.shape[-1]))
    last = sums[..., -1:, :].expand((*sums.shape[:-2], max(0, q + offset - sums.shape[-2]), sums.shape[-1]))
    return torch.cat([none, sums[..., max(0, offset) : max(0, q + offset), :], last], dim=-2)[..., :q, :]


def _attend(
    ctx: _Context,
    launch: Launch,
    left: Float[Tensor, "element q hidden"],
    right: Float[Tensor, "element k hidden"],
    vector: Float[Tensor, "element hidden"],
    value: Float[Tensor, "element k value_width"],
    row_bias: Float[Tensor, "element q"],
    key_bias: Float[Tensor, "element k"],
) -> Float[Tensor, "element q value_width"]:
    import torch

    from qkv.kernels.triton.additive_programs import attend_queries

    elements, q = left.shape[:2]
    left, right, flags = centred_sides(left, right, vector)
    vector, value = vector.contiguous(), value.contiguous()
    output = torch.empty((elements, q, value.shape[-1]), dtype=torch.float32, device=value.device)
    log_sum_exp = torch.empty((elements, q), dtype=torch.float32, device=value.device)
    arrays = left, right, vector, flags, value, row_bias, key_bias
    k, offset = value.shape[-2], launch.offset or 0
    block = launch.blocks.forward
    grid = -(-q // block.queries), elements
    options = launch.options(block, value.shape[-1])
    attend_queries[grid](*arrays, output, log_sum_exp, q, k, offset, H=vector.shape[-1], **options)
    ctx.save_for_backward(*arrays, output, log_sum_exp)
    ctx.launch = launch
    return output


def _differentiate(
    ctx: _Context, gradient: Float[Tensor, "element q value_width"]
) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    import torch

    from qkv.kernels.triton.additive_programs import differentiate_keys, differentiate_queries

    refuse_second_derivative("triton")
    *arrays, output, log_sum_exp = ctx.saved_tensors
    left, right, value, launch = arrays[0], arrays[1], arrays[4], ctx.launch
    gradient = gradient.contiguous()
    dots = (gradient * output).sum(-1)
    elements, hidden, q = left.shape
    _, own_queries, own_keys = launch.blocks
    k, offset, row_blocks = value.shape[-2], launch.offset or 0, -(-q // own_queries.queries)
    left_gradient, right_gradient = torch.empty_like(left), torch.empty_like(right)
    parts = left.new_empty((elements, row_blocks, hidden))
    value_gradient = torch.empty_like(value)
    units = {"H": hidden, "HP": power_of_two(hidden)}
    options = launch.options(own_queries, value.shape[-1]) | units
    given = (*arrays, gradient, log_sum_exp, dots)
    differentiate_queries[(row_blocks, elements)](*given, left_gradient, parts, q, k, offset, **options)
    key_blocks = -(-k // own_keys.keys)
    options = launch.options(own_keys, value.shape[-1]) | units
    differentiate_keys[(key_blocks, elements)](*given, right_gradient, value_gradient, q, k, offset, **options)
    return None, left_gradient.mT, right_gradient.mT, parts.sum(1), value_gradient, None, None


def centred_sides(
    left: Float[Tensor, "element q hidden"],
    right: Float[Tensor, "element k hidden"],
    vector: Float[Tensor, "element hidden"],
) -> tuple[Float[Tensor, "element hidden q"], Float[Tensor, "element hidden k"], Int[Tensor, " element"]]:
    """Return the projections a and b with the unit as second axis, shifted so that both have the same middle.

    The third array is 1 for batch elements of moderate range, whose projections are replaced by e^(2a) and e^(2b).
    """
    import torch

    left, right = left.mT, right.mT
    (low, high), (least, most) = left.aminmax(dim=-1, keepdim=True), right.aminmax(dim=-1, keepdim=True)
    shift = ((least + most) - (low + high)) / 4
    left, right = left + shift, right - shift
    reach, other = left.abs().amax(-1), right.abs().amax(-1)
    near = ((reach <= _FAR) & (other <= _FAR)) | (reach <= _FAR - 9) | (other <= _FAR - 9)
    flags = near.all(-1) & (vector.abs().amax(-1) < 2.0**30)
    powers = ((x.clamp(-_FAR, _FAR) * 2).exp() for x in (left, right))
    left, right = (
        torch.where(flags[:, None, None], power, x).contiguous() for power, x in zip(powers, (left, right), strict=True)
    )
    return left, right, flags.to(torch.int32)


_FAR = 43.0
"""Largest projection whose exponential is used; tanh of more than 9 is 1 in single precision."""


_MAX_UNITS = 256
_MAX_VALUE_WIDTH = 256


@dataclass(frozen=True)
class TritonKernel(ProgramKernel):
    """Kernel for additive scores under softmax on GPUs."""

    name: ClassVar[str] = "triton"
    guards: ClassVar[tuple[str, ...]] = (
        "if the hidden units of a batch element have a moderate range: two of them share a division; else: one "
        "exponential and one division for each",
    )

    def limits(self, problem: Problem) -> Iterator[str]:
        axes, score = problem.axes, problem.score
        yield from super().limits(problem)
        if not isinstance(score.form, Tanh):
            yield f"{score} is not an additive score"
        yield from softmax_limits(problem.normalizer)
        if isinstance(score.form, Tanh) and not 0 < score.form.vector.shape[-1] <= _MAX_UNITS:
            yield f"it supports 1 to {_MAX_UNITS} hidden units"
        if axes.value_width > _MAX_VALUE_WIDTH:
            yield f"it supports values up to {_MAX_VALUE_WIDTH} wide"

    def describe(self, problem: Problem) -> str:
        forward = self._blocks(problem).forward
        return (
            f"tiles of {forward.queries} queries × {forward.keys} keys in registers, two hidden units to a division; "
            "backward recomputes the logits, once for queries and once for keys"
        )

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of the projections and the statistics of each query."""
        axes = problem.axes
        units = problem.elements_per_logit
        sides = axes.batch_size * (axes.q + axes.k)
        numbers = 3 * sides * units + sides * (axes.query_width + axes.key_width + axes.value_width)
        if problem.gradient:
            numbers += 3 * sides * units + sides * axes.value_width
        return numbers * problem.itemsize + problem.cast_bytes

    def attend(
        self, call: TorchCall, problem: Problem, offset: int | None, precision: str
    ) -> tuple[OutputTensor, tuple[ReadoutResult, ...]]:
        """Return the output of a call."""
        return additive_attention(call, Launch(offset, self._blocks(problem), precision)), ()

    def _blocks(self, problem: Problem) -> AdditiveBlocks:
        """Return the sizes of the blocks of each program."""
        if self.block is not None:
            return AdditiveBlocks(*(Block(*self.block, 4),) * 3)
        width = max(problem.axes.value_width, problem.elements_per_logit)
        return additive_blocks(problem.device.capability, width, product_precision(problem.dtype) == "tf32")
