"""Attention with an additive score on a GPU: preparation of its arrays, and the programs as one autograd node.

Data is never read back to the host. Queries, keys and values that are not finite are set to 0. A query or key that is
not finite gets a bias of NaN, and a masked key one of −inf. The values that are not finite are added to the output of
the queries that may attend to them.

Source: Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from qkv.core.autograd_function import autograd_function
from qkv.core.equation import TorchCall
from qkv.core.parts import expand_to_pairs
from qkv.core.typing import Bool, Float, Int, Num, Shaped, Tensor
from qkv.kernels.runtime.isolated_autograd import project_call
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import AdditiveBlocks, Block
from qkv.kernels.triton.preparation import batch_elements, pair_biases, power_of_two, refuse_second_derivative
from qkv.scores.forms import Tanh

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        launch: Launch
        saved_tensors: tuple[Tensor, ...]


__all__ = ["Launch", "additive_attention", "additive_sides", "centred_sides", "nonfinite_values"]


@dataclass(frozen=True)
class Launch:
    """Sizes of the blocks of the programs, and what they compute besides the arrays.

    Attributes:
        offset: position of query 0 under a causal mask; None without one.
        blocks: sizes of the blocks of each program.
        precision: precision of matrix products, as in `triton.language.dot`.
    """

    offset: int | None
    blocks: AdditiveBlocks
    precision: str = "tf32x3"

    def options(self, block: Block, hidden: int, value_width: int, gradient: bool) -> dict[str, Any]:
        """Return the compile-time arguments of a program.

        Args:
            block: the block of the program.
            hidden: number of hidden units, which is even.
            value_width: width of the values.
            gradient: whether the program computes gradients.
        """
        sizes = {"H": hidden, "DV": value_width, "DVP": power_of_two(value_width), "CAUSAL": self.offset is not None}
        more = {"HP": power_of_two(hidden)} if gradient else {}
        blocks = {"BQ": block.queries, "BK": block.keys, "num_warps": block.warps}
        return {**sizes, **more, **blocks, "PRECISION": self.precision}


def additive_attention(call: TorchCall, launch: Launch) -> Float[Tensor, "*batch q value_width"]:
    """Return the output of a call with an additive score under softmax, in single precision.

    Args:
        call: the call, whose arrays are in single precision.
        launch: the sizes of the blocks.
    """
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
    query, key, value = (torch.where(x.isfinite(), x, 0.0) for x in (call.query, call.key, call.value))
    sides = cast("TorchCall", project_call(replace(call, query=query, key=key, value=value, finite=(True, True))))
    odd = sides.query.shape[-1] % 2  # a unit of zeros makes their number even
    left, right = (batch_elements(torch.nn.functional.pad(x, (0, odd)), batch) for x in (sides.query, sides.key))
    vector = cast("Tensor", cast("Tanh", call.score.form).vector)
    temperature = expand_to_pairs(cast("Tensor | float", call.normalizer.temperature))
    if isinstance(temperature, torch.Tensor):
        vector = vector / (temperature[..., 0] if temperature.ndim else temperature)
    else:
        vector = vector / cast("float", temperature)
    vector = torch.nn.functional.pad(vector, (0, odd))
    vector = vector.expand((*batch, vector.shape[-1])).reshape(-1, vector.shape[-1])
    allowed, *biases = pair_biases(call, keys)
    return (left, right, vector, batch_elements(value, batch), *biases), allowed


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
    options = launch.options(block, vector.shape[-1], value.shape[-1], gradient=False)
    attend_queries[grid](*arrays, output, log_sum_exp, q, k, offset, **options)
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
    options = launch.options(own_queries, hidden, value.shape[-1], gradient=True)
    given = (*arrays, gradient, log_sum_exp, dots)
    differentiate_queries[(row_blocks, elements)](*given, left_gradient, parts, q, k, offset, **options)
    key_blocks = -(-k // own_keys.keys)
    options = launch.options(own_keys, hidden, value.shape[-1], gradient=True)
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
