"""Kernel for scores on GPUs whose operators are traced, by programs that are generated for each score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core.autograd_function import autograd_function
from qkv.core.equation import TorchCall
from qkv.core.typing import Float, OutputTensor, ReadoutResult, Shaped, Tensor
from qkv.errors import GradientError
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.isolated_autograd import isolated_autograd
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.program_kernel import (
    AdditiveBlocks,
    Block,
    Launch,
    ProgramKernel,
    additive_blocks,
    batch_elements,
    pair_biases,
    product_precision,
    refuse_second_derivative,
)
from qkv.kernels.triton.traced.recording import KEYS, QUERIES, Operation, Recorded, Recording, TraceError
from qkv.kernels.triton.traced.score_trace import ScoreTrace, trace_score
from qkv.kernels.triton.traced.source import load_programs
from qkv.kernels.triton.traced.translation import Input
from qkv.plan.problem import Problem
from qkv.scores.forms import Form, Gated, Tanh


def program_inputs(
    recording: Recording,
    inputs: Sequence[Input],
    batch: tuple[int, ...],
    lengths: tuple[int, int],
    tensors: Sequence[Shaped[Tensor, "*_"]],
) -> list[Shaped[Tensor, "*_"]]:
    """Return the arrays that a program reads, in single precision and contiguous."""
    computed: dict[Recorded, Tensor] = dict(zip(recording.arguments, tensors, strict=True))
    device = tensors[0].device
    for x in recording.constants:
        assert x.constant is not None
        # PyTorch combines a number on the CPU with tensors on a GPU.
        computed[x] = x.constant.to(device, non_blocking=True) if x.shape else x.constant
    needed = _needed(recording, [x.array for x in inputs])
    for operation, results in recording.operations:
        if operation in needed:
            _run(operation, results, computed, lengths, device)
    return [_arranged(x, computed[x.array], batch, lengths).to(device, non_blocking=True) for x in inputs]


def _needed(recording: Recording, arrays: Sequence[Recorded]) -> set[Operation]:
    """Return the operations on which arrays depend."""
    found: set[Operation] = set()
    stack = list(arrays)
    while stack:
        source = stack.pop().source
        if source is not None and source not in found:
            found.add(source)
            stack += source.arrays()
    return found


def _run(
    operation: Operation,
    results: tuple[Recorded, ...],
    computed: dict[Recorded, Tensor],
    lengths: tuple[int, int],
    device: object,
) -> None:
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    def actual(x: object) -> object:
        if isinstance(x, Recorded):
            return computed[x]
        if isinstance(x, torch.device):
            return device
        if type(x) is int:
            return _length(x, lengths)
        return x

    # A view of the recording may be impossible for the strides of the call.
    function = torch.reshape if operation.name in ("view", "_unsafe_view") else operation.operator
    arguments, options = tree_map(actual, (operation.arguments, operation.options))
    returned = [x for x in tree_leaves(function(*arguments, **options)) if isinstance(x, torch.Tensor)]
    computed.update(zip(results, returned, strict=True))


def _length(n: int, lengths: tuple[int, int]) -> int:
    """Return the number that stands for a number of a recording."""
    for recorded, own in zip((QUERIES, KEYS), lengths, strict=True):
        if n and n % recorded == 0:
            n = n // recorded * own
    return n


def _arranged(
    x: Input, tensor: Shaped[Tensor, "*_"], batch: tuple[int, ...], lengths: tuple[int, int]
) -> Shaped[Tensor, "*_"]:
    """Return an array with its batch axes merged, and with the axis of rows last, or that of features for products."""
    import torch

    words = [word for label in x.axes for word in label]
    sizes = {"q": lengths[0], "k": lengths[1], "f": x.features, **{f"b{n}": m for n, m in enumerate(batch)}}
    tensor = tensor.reshape([sizes[word] for word in words])
    lead = [f"b{n}" for n in range(len(batch))]
    order = [word for word in (*lead, x.rows, "f") if word in words]
    tensor = tensor.permute([words.index(word) for word in order])
    if x.batched:
        tensor = tensor.reshape(
            [*(sizes[n] if n in words else 1 for n in lead), *tensor.shape[len(set(lead) & set(words)) :]]
        )
        tensor = tensor.expand(*batch, *tensor.shape[len(batch) :])
        tensor = tensor.reshape(math.prod(batch), *tensor.shape[len(batch) :])
    else:
        tensor = tensor[None]
    if x.product and "f" not in words:
        tensor = tensor[..., None]
    elif x.rows and x.features and not x.product:
        tensor = tensor.mT
    return tensor.to(torch.float32).contiguous()


if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        trace: ScoreTrace
        launch: Launch


def traced_attention(call: TorchCall, trace: ScoreTrace, launch: Launch) -> OutputTensor:
    """Return the output of a call with a traced score under softmax, in single precision."""
    import torch

    batch, tile = call.tile.batch, call.tile
    _, row_bias, key_bias = pair_biases(call, split_mask(call.mask, tile)[0])
    recording, inputs = trace.recording, trace.translation.inputs

    def sides(*tensors: Shaped[Tensor, "*_"]) -> list[Shaped[Tensor, "*_"]]:
        query, key = (torch.where(x.isfinite(), x, 0.0).expand(*batch, *x.shape[-2:]) for x in tensors[:2])
        lengths = tile.q_total, tile.k_total
        return program_inputs(recording, inputs, batch, lengths, [query, key, *tensors[2:]])

    arrays = cast("tuple[Tensor, ...]", (*call.score.arrays(), *call.normalizer.arrays()))
    given = isolated_autograd(sides, call.query, call.key, *arrays)
    value = batch_elements(call.value, batch)
    attend = autograd_function(_attend, _differentiate)
    output: Tensor = attend(trace, launch, value, row_bias, key_bias, *given)
    return output.reshape((*batch, tile.q_total, value.shape[-1]))


def _attend(
    ctx: _Context,
    trace: ScoreTrace,
    launch: Launch,
    value: Float[Tensor, "element k value_width"],
    row_bias: Float[Tensor, "element q"],
    key_bias: Float[Tensor, "element k"],
    *inputs: Shaped[Tensor, "*_"],
) -> Float[Tensor, "element q value_width"]:
    import torch

    programs = load_programs(trace.source)
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
    ctx.trace, ctx.launch = trace, launch
    return output


def _differentiate(
    ctx: _Context, gradient: Float[Tensor, "element q value_width"]
) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    import torch

    refuse_second_derivative("triton_traced")
    trace, launch = ctx.trace, ctx.launch
    value, row_bias, key_bias, output, log_sum_exp, *inputs = ctx.saved_tensors
    programs, differentiated = load_programs(trace.source), trace.source.differentiated
    # The gradient of an output that is not finite reaches nothing but the logits that are not finite.
    finite = output.isfinite()
    gradient, output = (torch.where(finite, x, 0.0).contiguous() for x in (gradient, output))
    dots = torch.empty_like(log_sum_exp)  # the program of the queries writes them, that of the keys reads them
    elements, k, value_width = value.shape
    q, (_, own_queries, own_keys) = row_bias.shape[-1], launch.blocks
    row_blocks, key_blocks = -(-q // own_queries.queries), -(-k // own_keys.keys)
    results: list[Tensor | None] = []
    for x, each, has_gradient in zip(trace.translation.inputs, inputs, differentiated, strict=True):
        parts = (elements, row_blocks, *each.shape[1:])
        results.append(None if not has_gradient else torch.empty_like(each) if x.rows else each.new_empty(parts))
    value_gradient = torch.empty_like(value)
    arrays = *inputs, value, row_bias, key_bias, gradient, output, log_sum_exp, dots
    lengths = q, k, launch.offset or 0
    targets = list(zip(trace.translation.inputs, results, strict=True))
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
    return None, None, value_gradient, None, None, *gradients


def traced_blocks(
    capability: tuple[int, int], inputs: Sequence[Input], value_width: int, rounded: bool
) -> AdditiveBlocks:
    """Return the blocks of the three programs."""
    width = max(value_width, *(x.features for x in inputs), 1)
    if width > 64:
        return additive_blocks(capability, width, rounded)
    forward = additive_blocks(capability, width, rounded=False).forward
    if capability < (9, 0):
        return AdditiveBlocks(forward, Block(32, 64, 8), Block(16, 32, 8))
    # The program for queries sums a gradient for each of these.
    many = sum(x.features > 0 and x.rows != "k" for x in inputs) > 2
    return AdditiveBlocks(forward, Block(16 if many else 32, 64, 8), Block(16, 64, 8))


_MAX_WIDTH = 256


@dataclass(frozen=True)
class TracedScoreKernel(ProgramKernel):
    """Kernel for any score under softmax on GPUs, if the operators of the score have a translation."""

    name: ClassVar[str] = "triton_traced"

    def limits(self, problem: Problem) -> Iterator[str]:
        axes, score = problem.axes, problem.score
        yield from super().limits(problem)
        if problem.traced:
            yield "it does not support function transforms and tracers"
        if axes.text or score.accepts == "text":
            yield "it compares numbers, not text"
        yield from softmax_limits(problem.normalizer)
        match score.form:
            case Tanh():
                yield f"the kernel 'triton' computes {score}"
            case Gated():
                yield f"the kernel 'triton_products' computes {score}"
            case Form(lift=lift, inner=None) if lift is not None:
                yield f"{score} is an inner product, which PyTorch's operators compute"
        if score.positional:
            yield f"{score} depends on positions"
        if any({"q", "k"} & set(names or ()) for _, names in score.array_fields()):
            yield f"{score} holds an array with a number for each query or key"
        if axes.value_width > _MAX_WIDTH:
            yield f"it supports values up to {_MAX_WIDTH} wide"
        try:
            trace = self._trace(problem)
        except TraceError as error:
            yield f"{score} cannot be traced: {error}"
            return
        features = max((x.features for x in trace.translation.inputs), default=0)
        if features > _MAX_WIDTH:
            yield f"it supports up to {_MAX_WIDTH} features"
        if max(features, axes.value_width) * max(axes.q, axes.k) >= 2**31:
            yield "it supports fewer than 2³¹ numbers for each batch element"

    def describe(self, problem: Problem) -> str:
        forward = self._blocks(problem).forward
        return (
            f"tiles of {forward.queries} queries × {forward.keys} keys in registers; traced for each pair: "
            f"{self._trace(problem).description()}; backward recomputes the logits, once for queries and once for keys"
        )

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of the inputs of the programs and the statistics of each query."""
        axes, trace, batch = problem.axes, self._trace(problem), problem.axes.batch_size
        rows = {"q": axes.q, "k": axes.k, "": 1}
        numbers = sum(batch * rows[x.rows] * max(1, x.features) for x in trace.translation.inputs)
        # The inputs, and finite copies of query and key from which they are computed.
        numbers += batch * (axes.q * (axes.query_width + 2) + axes.k * (axes.key_width + axes.value_width + 3))
        if problem.gradient:
            numbers *= 2
            numbers += batch * axes.q * axes.value_width * 2
            forward = self._blocks(problem).query_gradient.queries
            numbers += sum(
                batch * -(-axes.q // forward) * max(1, x.features) for x in trace.translation.inputs if not x.rows
            )
        return numbers * problem.itemsize + problem.cast_bytes

    def attend(
        self, call: TorchCall, problem: Problem, offset: int | None, precision: str
    ) -> tuple[OutputTensor, tuple[ReadoutResult, ...]]:
        """Return the output of a call."""
        import torch

        trace = trace_score(call.score, call.normalizer, _widths(problem), call.tile.batch)
        closed = [x.constant for x in trace.recording.constants if x.constant is not None]
        if torch.is_grad_enabled() and any(x.requires_grad for x in closed):
            refuse_closure_gradients(call)
            raise GradientError(
                f"score {call.score} must not close over a tensor that requires a gradient. Pass the "
                "tensor as a parameter of Custom, or make it a field of your score class."
            )
        return traced_attention(call, trace, Launch(offset, self._blocks(problem), precision)), ()

    def _trace(self, problem: Problem) -> ScoreTrace:
        return trace_score(problem.score, problem.normalizer, _widths(problem), problem.axes.batch)

    def _blocks(self, problem: Problem) -> AdditiveBlocks:
        """Return the sizes of the blocks of each program."""
        if self.block is not None:
            return AdditiveBlocks(*(Block(*self.block, 4),) * 3)
        trace = self._trace(problem)
        rounded = product_precision(problem.dtype) == "tf32"
        return traced_blocks(problem.device.capability, trace.translation.inputs, problem.axes.value_width, rounded)


def _widths(problem: Problem) -> tuple[int, int]:
    return problem.axes.query_width, problem.axes.key_width
