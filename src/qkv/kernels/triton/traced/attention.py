"""Attention with a traced score on a GPU: its arrays, and the generated programs as one autograd node.

Data is never read back to the host. Queries and keys that are not finite are set to 0; such a query or key gets a bias
of NaN, and a masked key one of −inf. Values that are not finite are read by the program only where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from qkv.core.autograd_function import autograd_function
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, Shaped, Tensor
from qkv.kernels.runtime.isolated_autograd import isolated_autograd
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import AdditiveBlocks, Block
from qkv.kernels.triton.preparation import batch_elements, pair_biases, power_of_two, refuse_second_derivative
from qkv.kernels.triton.traced.score_trace import ScoreTrace, load_programs
from qkv.kernels.triton.traced.sides import program_inputs

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        launch: TracedLaunch
        saved_tensors: tuple[Tensor, ...]


__all__ = ["TracedLaunch", "traced_attention"]


@dataclass(frozen=True)
class TracedLaunch:
    """What the programs compute besides the arrays.

    Attributes:
        trace: the trace of the score.
        offset: position of query 0 under a causal mask; None without one.
        blocks: sizes of the blocks of each program.
        precision: precision of matrix products, as in `triton.language.dot`.
    """

    trace: ScoreTrace
    offset: int | None
    blocks: AdditiveBlocks
    precision: str = "tf32x3"

    def options(self, block: Block, value_width: int) -> dict[str, Any]:
        """Return the compile-time arguments of a program.

        Args:
            block: the block of the program.
            value_width: width of the values.
        """
        sizes = {"DV": value_width, "DVP": power_of_two(value_width), "CAUSAL": self.offset is not None}
        return {**sizes, "PRECISION": self.precision, "BQ": block.queries, "BK": block.keys, "num_warps": block.warps}


def traced_attention(call: TorchCall, launch: TracedLaunch) -> Float[Tensor, "*batch q value_width"]:
    """Return the output of a call with a traced score under softmax, in single precision.

    Args:
        call: the call, whose arrays are in single precision.
        launch: the trace of its score, and the sizes of the blocks.
    """
    import torch

    batch, tile = call.tile.batch, call.tile
    _, row_bias, key_bias = pair_biases(call, split_mask(call.mask, tile)[0])
    recording, inputs = launch.trace.recording, launch.trace.translation.inputs

    def sides(*tensors: Shaped[Tensor, "*_"]) -> list[Shaped[Tensor, "*_"]]:
        query, key = (torch.where(x.isfinite(), x, 0.0).expand(*batch, *x.shape[-2:]) for x in tensors[:2])
        lengths = tile.q_total, tile.k_total
        return program_inputs(recording, inputs, batch, lengths, [query, key, *tensors[2:]])

    arrays = cast("tuple[Tensor, ...]", (*call.score.arrays(), *call.normalizer.arrays()))
    given = isolated_autograd(sides, call.query, call.key, *arrays)
    value = batch_elements(call.value, batch)
    attend = autograd_function(_attend, _differentiate)
    output: Tensor = attend(launch, value, row_bias, key_bias, *given)
    return output.reshape((*batch, tile.q_total, value.shape[-1]))


def _attend(
    ctx: _Context,
    launch: TracedLaunch,
    value: Float[Tensor, "element k value_width"],
    row_bias: Float[Tensor, "element q"],
    key_bias: Float[Tensor, "element k"],
    *inputs: Shaped[Tensor, "*_"],
) -> Float[Tensor, "element q value_width"]:
    import torch

    programs = load_programs(launch.trace.source)
    value = value.contiguous()
    elements, k, value_width = value.shape
    q, block = row_bias.shape[-1], launch.blocks.forward
    bad = (~value.isfinite().all(-1)).to(torch.int32)
    output = torch.empty((elements, q, value_width), dtype=torch.float32, device=value.device)
    log_sum_exp = torch.empty((elements, q), dtype=torch.float32, device=value.device)
    arrays = *inputs, value, bad, bad.amax(-1), row_bias, key_bias, output, log_sum_exp
    grid = -(-q // block.queries), elements
    programs["attend"][grid](*arrays, q, k, launch.offset or 0, **launch.options(block, value_width))
    ctx.save_for_backward(value, row_bias, key_bias, output, log_sum_exp, *inputs)
    ctx.launch = launch
    return output


def _differentiate(
    ctx: _Context, gradient: Float[Tensor, "element q value_width"]
) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    import torch

    refuse_second_derivative("triton_traced")
    launch = ctx.launch
    value, row_bias, key_bias, output, log_sum_exp, *inputs = ctx.saved_tensors
    programs, differentiated = load_programs(launch.trace.source), launch.trace.source.differentiated
    # The gradient of an output that is not finite reaches nothing but the logits that are not finite.
    finite = output.isfinite()
    gradient, output = (torch.where(finite, x, 0.0).contiguous() for x in (gradient, output))
    dots = torch.empty_like(log_sum_exp)  # the program of the queries writes them, that of the keys reads them
    elements, k, value_width = value.shape
    q, (_, own_queries, own_keys) = row_bias.shape[-1], launch.blocks
    row_blocks, key_blocks = -(-q // own_queries.queries), -(-k // own_keys.keys)
    results: list[Tensor | None] = []
    for x, each, wanted in zip(launch.trace.translation.inputs, inputs, differentiated, strict=True):
        parts = (elements, row_blocks, *each.shape[1:])
        results.append(None if not wanted else torch.empty_like(each) if x.rows else each.new_empty(parts))
    value_gradient = torch.empty_like(value)
    arrays = *inputs, value, row_bias, key_bias, gradient, output, log_sum_exp, dots
    lengths = q, k, launch.offset or 0
    targets = list(zip(launch.trace.translation.inputs, results, strict=True))
    of_queries = [found for x, found in targets if found is not None and x.rows != "k"]
    of_keys = [found for x, found in targets if found is not None and x.rows == "k"]
    options = launch.options(own_queries, value_width)
    programs["differentiate_queries"][(row_blocks, elements)](*arrays, *of_queries, *lengths, **options)
    options = launch.options(own_keys, value_width)
    programs["differentiate_keys"][(key_blocks, elements)](*arrays, *of_keys, value_gradient, *lengths, **options)
    gradients = [
        found if found is None or x.rows else found.sum(1) if x.batched else found.sum((0, 1))[None]
        for x, found in targets
    ]
    value_gradient = torch.where(value.isfinite(), value_gradient, 0.0)
    return None, value_gradient, None, None, *gradients
