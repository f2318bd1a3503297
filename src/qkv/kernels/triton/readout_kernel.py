"""Kernel that computes the output and the readouts of a call on a GPU, by programs written in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.cost_model import visible_pairs
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.block_sizes import Block, readout_blocks
from qkv.kernels.triton.kernel import FORWARD_OPERATIONS
from qkv.kernels.triton.preparation import power_of_two
from qkv.kernels.triton.program_kernel import ProgramKernel, product_precision
from qkv.kernels.triton.readouts import READ_BY_ROWS, ReadoutLaunch, attend_with_readouts, cell_lanes
from qkv.plan.cost import Cost
from qkv.plan.devices import GpuWork
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.readouts import ColumnSum, MeanDistance, PooledMap, Readout, TopWeights
from qkv.scores.forms import ScaledProduct, Tanh

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall

__all__ = ["TritonReadoutsKernel"]

_MAX_WIDTH = 256
_MAX_TOP = 64
_SORT_OPERATIONS = 80
"""Operations for each pair to keep the largest logits of a row in order, two for each comparison."""


@dataclass(frozen=True)
class TritonReadoutsKernel(ProgramKernel):
    """Kernel for calls with readouts on GPUs, for inner products and additive scores under softmax, without gradient.

    Args:
        interpreted, block: as in `ProgramKernel`.
    """

    name: ClassVar[str] = "triton_readouts"
    computes_readouts: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why the programs cannot compute a call."""
        axes, score = problem.axes, problem.score
        if not problem.readouts:
            yield "it computes readouts, and the call has none"
        yield from super().limits(problem)
        if problem.gradient:
            yield "it computes readouts without gradient"
        form = score.form
        if not isinstance(form, Tanh) and (form.lift is None or form.inner is not None):
            yield f"{score} is neither an inner product nor an additive score"
        yield from softmax_limits(problem.normalizer)
        if max(_width(problem), axes.value_width) > _MAX_WIDTH:
            yield f"it supports vectors up to {_MAX_WIDTH} wide"
        for readout in problem.readouts:
            yield from _readout_limits(readout, problem)

    def describe(self, problem: Problem) -> str:
        """Describe what is computed in which pass."""
        block = self._blocks(problem)[0]
        maps, mapped = _maps(problem), self._mapped(problem) is not None
        maps -= mapped
        more = f"; {maps} more to add weights up from the log-sum-exps" if maps else ""
        if mapped:
            more = f", and the cells of a map, which are added up from a table{more}"
        return (
            f"tiles of {block.queries} queries × {block.keys} keys in registers; one pass for the output and the "
            f"readouts of each query{more}"
        )

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift, so that tensor cores multiply them in half precision."""
        if self.interpreted and problem.dtype == "bfloat16":
            return False  # the interpreter multiplies the bits of bfloat16 as integers
        unscaled = isinstance(problem.normalizer.temperature, (int, float))
        return unscaled and isinstance(problem.score.form, ScaledProduct)

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, which allocates copies of the inputs and the statistics of each query."""
        axes = problem.axes
        copies = axes.batch_size * ((axes.q + axes.k) * (_width(problem) + 2) * 2 + axes.k * axes.value_width)
        top = max((_top(readout) for readout in problem.readouts), default=0)
        scratch = copies * problem.itemsize + axes.batch_size * axes.q * (12 + 16 * top)
        scratch += 0 if self.keeps_dtype(problem) else problem.cast_bytes
        if (mapped := self._mapped(problem)) is not None:
            scratch += self._table_bytes(problem, mapped)
        passes = 1 + (_maps(problem) - (mapped is not None)) / 2
        flop = visible_pairs(problem, 64) * problem.flop_per_pair * passes
        return Cost(flop, problem.input_bytes + 2 * scratch, scratch, 2e-4)

    def gpu_work(self, problem: Problem) -> GpuWork:
        """Return the work of the programs, whose tiles never leave the registers."""
        axes, pairs, width = problem.axes, visible_pairs(problem, 64, 64), _width(problem)
        additive = isinstance(problem.score.form, Tanh)
        mapped = self._mapped(problem) is not None
        maps = _maps(problem) - mapped
        top = _SORT_OPERATIONS if any(_top(readout) for readout in problem.readouts) else 0
        logit = width * FORWARD_OPERATIONS if additive else 0
        half = problem.dtype in ("bfloat16", "float16") and self.keeps_dtype(problem)
        slowdown = 2 if problem.dtype in ("bfloat16", "float16") and not half else 1
        products = (0 if additive else 2 * width) * (1 + maps) + 2 * axes.value_width
        return GpuWork(
            matrix=pairs * products * slowdown,
            vector=pairs * ((logit + 10) * (1 + maps) + 2 * mapped + top),
            special=pairs * (1 + maps) * (width / 2 + 1 if additive else 1),
            traffic=self.cost(problem).traffic,
            launches=40 + maps + mapped,
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the programs, without reading anything back."""
        tensors = cast("TorchCall", call)
        block, cells = self._blocks(problem)
        with no_autocast(tensors.value), on_device(tensors.value):
            offset = split_mask(tensors.mask, tensors.tile)[1]
            mapped = self._mapped(problem)
            launch = ReadoutLaunch(offset, block, cells, product_precision(problem.dtype), mapped)
            output, readouts = attend_with_readouts(tensors, problem.readouts, launch)
        return Result(arrays.cast(output, call.out_dtype), readouts)

    def _mapped(self, problem: Problem) -> int | None:
        """Return the number of the first pooled map of all heads whose table takes little of the memory budget."""
        for n, readout in enumerate(problem.readouts):
            if isinstance(readout, PooledMap) and self._table_bytes(problem, n) <= problem.memory // 4:
                return n
        return None

    def _table_bytes(self, problem: Problem, number: int) -> int:
        """Return the bytes of the table of a pooled map."""
        axes, readout = problem.axes, cast("PooledMap", problem.readouts[number])
        ranks = max(power_of_two(_top(each)) if _top(each) else 0 for each in problem.readouts)
        across = readout.sides(axes.q, axes.k)[1]
        cells, _, parts = cell_lanes(axes.k, across, max(self._blocks(problem)[0].keys, ranks))
        return axes.batch_size * axes.q * -(-across // cells) * parts * (cells + 1) * 4

    def _blocks(self, problem: Problem) -> tuple[Block, Block]:
        """Return the tiles of both programs."""
        if self.block is not None:
            return (Block(*self.block, 4),) * 2
        half = problem.dtype in ("bfloat16", "float16") and self.keeps_dtype(problem)
        top = any(_top(readout) for readout in problem.readouts)
        return readout_blocks(max(_width(problem), problem.axes.value_width), half, top)


def _width(problem: Problem) -> int:
    """Return the number of hidden units, or the width of the vectors."""
    if isinstance(problem.score.form, Tanh):
        return problem.elements_per_logit
    return int(problem.score.lifted_width(problem.axes.query_width, problem.axes.key_width))


def _maps(problem: Problem) -> int:
    """Return how many readouts are sums or maxima over several queries."""
    return sum(not isinstance(readout.per_head, READ_BY_ROWS) for readout in problem.readouts)


def _top(readout: Readout) -> int:
    return readout.per_head.k if isinstance(readout.per_head, TopWeights) else 0


def _readout_limits(readout: Readout, problem: Problem) -> Iterator[str]:
    kind = readout.per_head
    if not isinstance(kind, (*READ_BY_ROWS, ColumnSum, PooledMap)):
        yield f"it does not compute the readout {readout}"
    if _top(readout) > _MAX_TOP:
        yield f"it keeps up to {_MAX_TOP} keys for each query"
    if isinstance(kind, MeanDistance) and not isinstance(problem.tile.offset(), int):
        yield "the positions of the batch elements differ"
