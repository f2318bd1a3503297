"""Kernel for scores on GPUs whose operators are traced, by programs that are generated for each score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.errors import GradientError
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import AdditiveBlocks, Block
from qkv.kernels.triton.program_kernel import ProgramKernel, product_precision
from qkv.kernels.triton.traced.block_sizes import traced_blocks
from qkv.kernels.triton.traced.recording import TraceError
from qkv.kernels.triton.traced.score_trace import ScoreTrace, trace_score
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["TracedScoreKernel"]

_MAX_WIDTH = 256


@dataclass(frozen=True)
class TracedScoreKernel(ProgramKernel):
    """Kernel for any score under softmax on GPUs, if the operators of the score have a translation.

    Args:
        interpreted, block: as in `ProgramKernel`.
    """

    name: ClassVar[str] = "triton_traced"

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why no program can be generated for a call."""
        axes, score = problem.axes, problem.score
        yield from super().limits(problem)
        if problem.traced:
            yield "it does not support function transforms and tracers"
        if axes.text or score.accepts == "text":
            yield "it compares numbers, not text"
        yield from softmax_limits(problem.normalizer)
        if score.lift_kind is not None and score.inner is None:
            yield f"{score} is an inner product, which PyTorch's operators compute"
        if score.tanh_vector is not None:
            yield f"the kernel 'triton' computes {score}"
        if score.gated_product:
            yield f"the kernel 'triton_products' computes {score}"
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
        """Describe the tiles, and the operators that were traced."""
        forward = self._blocks(problem).forward
        return (
            f"tiles of {forward.queries} queries × {forward.keys} keys in registers; traced for each pair: "
            f"{self._trace(problem).description()}; backward recomputes the logits, once for queries and once for keys"
        )

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, which allocates the inputs of the programs and the statistics of each query."""
        axes, trace = problem.axes, self._trace(problem)
        pairs, batch = visible_pairs(problem, 64), axes.batch_size
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
        scratch = numbers * problem.itemsize + problem.cast_bytes
        traffic = (problem.input_bytes + numbers * problem.itemsize) * (2 if problem.gradient else 1)
        work = trace.source.forward
        flop = pairs * (work.vector + work.special + 2 * work.matrix + 10 + 2 * axes.value_width)
        if problem.gradient:
            more = trace.source.backward
            flop += pairs * (more.vector + more.special + 2 * more.matrix + 20 + 8 * axes.value_width)
        return Cost(flop, traffic, scratch, 2e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the programs, whose tiles never leave the registers."""
        pairs, source = visible_pairs(problem, 64, 64), self._trace(problem).source
        width, gradient = problem.axes.value_width, problem.gradient
        matrix, vector = source.forward.matrix + width, source.forward.vector + 10
        special = source.forward.special + 1
        if gradient:
            matrix, vector = matrix + source.backward.matrix + 4 * width, vector + source.backward.vector + 20
            special += source.backward.special + 2
        # Three products of TF32, each at half of the throughput of bfloat16, for one in single precision. An operation
        # is half of a multiply-add, of which the device states the number.
        slowdown = 2 if problem.dtype in ("bfloat16", "float16") else 1
        return GpuWork(
            matrix=pairs * 2 * matrix * slowdown,
            vector=pairs * 2 * vector,
            special=pairs * special,
            traffic=self.cost(problem).traffic,
            launches=40 * (2 if gradient else 1),
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the programs, without reading anything back."""
        import torch

        from qkv.kernels.triton.traced.attention import TracedLaunch, traced_attention

        tensors = cast("TorchCall", call)
        trace = trace_score(call.score, call.normalizer, _widths(problem), tensors.tile.batch)
        closed = [x.constant for x in trace.recording.constants if x.constant is not None]
        if torch.is_grad_enabled() and any(x.requires_grad for x in closed):
            refuse_closure_gradients(call)
            raise GradientError(f"score {call.score} must not close over a tensor that requires a gradient.")
        with no_autocast(tensors.value), on_device(tensors.value):
            offset = split_mask(tensors.mask, tensors.tile)[1]
            launch = TracedLaunch(trace, offset, self._blocks(problem), product_precision(problem.dtype))
            output = traced_attention(tensors, launch)
        return Result(arrays.cast(output, call.out_dtype))

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
