"""Kernel that computes attention tile by tile in PyTorch, forward and backward, for any score and mask.

It needs memory linear in the numbers of queries and keys.

Projections of queries and keys (`Score.project`) are computed once, before the tiles, and differentiated by autograd.
Forward saves the output and a few statistics per query, and backward recomputes the logits (`attention.py`).

Source: Rabe, Staats (2021), Self-attention does not need O(n²) memory, https://arxiv.org/abs/2112.05682;
Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from typing import cast as cast_type

from qkv.core.arrays import cast, requires_gradient
from qkv.core.equation import TorchCall
from qkv.core.typing import ReadoutResult, Tensor
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.memory_model import backward_copies, lifted_elements, near_pairs
from qkv.kernels.runtime.tile_readouts import readable_in_forward
from qkv.kernels.runtime.tile_sizes import (
    ROW_BLOCK_BUDGET,
    TileSizes,
    projection_bytes,
    row_block_arrays,
    row_block_size,
    size_text,
    tile_arrays,
    tile_sizes,
)
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs
from qkv.scores.forms import Distance, Gated, Offset, Tanh

BUDGET = 2**18
"""Largest number of elements in any array of a tile: 1 MiB in float32, so that it stays in the second-level cache."""


@dataclass(frozen=True)
class TiledKernel(Kernel):
    """Kernel that computes attention tile by tile in PyTorch, for normalizers that accumulate over tiles.

    Args:
        budget: largest number of elements in any array of a tile.
        row_block_budget: largest number of elements in all arrays of a row block together, for readouts with a
            gradient.
    """

    name: ClassVar[str] = "tiled"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    saves_statistics: ClassVar[bool] = True
    runs_on_gpu: ClassVar[bool] = True
    budget: int = BUDGET
    row_block_budget: int = ROW_BLOCK_BUDGET

    def limits(self, problem: Problem) -> Iterator[str]:
        if not problem.normalizer.online:
            yield f"{problem.normalizer} needs whole rows of logits, not tiles"

    def unsuited(self, problem: Problem) -> str | None:
        """Return a sentence if keys are selected, which takes longer tile by tile than from whole rows."""
        if problem.normalizer.top_k is None or problem.device.is_gpu:
            return None
        return "merging the largest logits of tiles takes longer than selecting those of whole rows"

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return the guards of softmax and of the form of the score."""
        if not problem.normalizer.log_sum_exp or problem.normalizer.scale is None:
            return ()
        form = problem.score.form
        while isinstance(form, Offset):
            form = form.inner.form
        found = ["if no logit can exceed ±30: no maximum of rows; else: a running maximum"]
        if isinstance(form, Tanh):
            found.append(
                "if hidden units have a moderate range: exponentials and a division; else: a tanh for each pair"
            )
        elif isinstance(form, Gated):
            found.append("if gates have a moderate range: exponentials and a division; else: a sigmoid for each pair")
        return tuple(found)

    def describe(self, problem: Problem) -> str:
        sizes = tile_sizes(problem, self.budget)
        return f"tiles of {size_text(sizes.rows, sizes.cols)}; backward recomputes the logits"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of a tile, of the projections and of the statistics of each query at the peak."""
        axes, normalizer = problem.axes, problem.normalizer
        sizes = tile_sizes(problem, self.budget)
        peak = min(axes.batch_size, sizes.batch) * sizes.rows * sizes.cols * problem.itemsize
        peak *= _arrays_at_peak(problem)
        # The statistics of each query, and the projections.
        projections = sum(lifted_elements(problem))
        numbers = 4 * axes.batch_size * axes.q + projections
        # The output times its gradient, before the gradients and the exponentials of an additive score are there.
        results = math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value)
        row_sums = numbers + math.prod(axes.output) - results - (axes.q + axes.k) * _hidden_units(problem)
        if problem.gradient:
            # The gradients of projections, or later a copy of the gradient of keys or values while its layout changes.
            projected = projections or axes.batch_size * (axes.q + axes.k) * _hidden_units(problem)
            numbers += max(projected, axes.batch_size * axes.k * max(axes.key_width, axes.value_width))
            # The exponentials of the queries are released before the gradient of the queries is there.
            numbers += backward_copies(problem) - axes.q * _hidden_units(problem)
            if problem.score.form.lift == "up_to_query_constant":  # columns are joined to the lifted vectors
                numbers += 3 * projections // 2
            numbers = max(numbers, row_sums)
        elif problem.score.form.lift == "up_to_query_constant":  # a side without and with the joined column
            numbers += max(lifted_elements(problem))
        peak += projection_bytes(problem)
        if problem.readouts:
            if problem.gradient or not readable_in_forward(problem.readouts, normalizer):
                row_block = axes.batch_size * self._row_block(problem) * axes.k * problem.itemsize
                peak = max(peak, row_block * row_block_arrays(problem))
            else:
                peak += sizes.rows * _table_widths(problem, sizes) * problem.itemsize
        return peak + numbers * problem.itemsize + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        axes, sizes = problem.axes, tile_sizes(problem, self.budget)
        # Readouts compute the weights again, or select the largest, which takes as long; one batch element in a tile.
        pairs = visible_pairs(problem, sizes.rows) * (2 if problem.readouts else 1)
        elements = axes.batch_size if problem.readouts else -(-axes.batch_size // sizes.batch)
        tiles = elements * -(-axes.q // sizes.rows) * -(-axes.k // sizes.cols)
        if isinstance(problem.score.form, Tanh):
            tiles = -(-tiles // 2)  # the time of a tile was measured with tiles of twice as many pairs
        return amounts_of_work(problem, pairs, tiles * pairs / max(1, axes.pairs), array_elements=0)

    def run(self, call: TorchCall, problem: Problem) -> Result:  # type: ignore[override]
        import torch

        from qkv.kernels.row_blocks.attention import RowBlocks
        from qkv.kernels.runtime.gradients import call_tensors
        from qkv.kernels.runtime.isolated_autograd import project_call
        from qkv.kernels.runtime.saved_statistics import SAVED
        from qkv.kernels.tiled.attention import forward, tiled_attention
        from qkv.kernels.tiled.softmax import supports_softmax
        from qkv.kernels.tiled.unchecked_forward import supports_unchecked, unchecked_forward

        with torch.autocast(call.value.device.type, enabled=False):
            if torch.is_grad_enabled() or any(requires_gradient(x) for x in call_tensors(call)):
                refuse_closure_gradients(call)
            notes: list[str] = []
            # Tiles of logits, which are overwritten in place, have all batch axes.
            call = cast_type("TorchCall", call.with_axes_of_values())
            if SAVED.get() is None and supports_unchecked(call, problem):
                result = _collect(call, problem, tile_sizes(problem, self.budget), unchecked_forward)
                if result is not None:
                    return result
            # NaN and infinity must not reach other rows through a mean or a product with masked elements.
            if call.finite_sides:
                call = cast_type("TorchCall", project_call(call))
            nonfinite = not (call.projected and supports_softmax(call))
            sizes = tile_sizes(problem, self.budget, nonfinite)
            in_forward = readable_in_forward(problem.readouts, call.normalizer)
            if problem.readouts and in_forward and not (nonfinite or problem.gradient):
                return cast_type("Result", _collect(call, problem, sizes, lambda *arguments: forward(*arguments)[0]))
            output = tiled_attention()(call, sizes, self._row_block(problem), notes, *call_tensors(call))
            readouts: tuple[ReadoutResult, ...] = ()
            if problem.readouts:
                _, readouts = RowBlocks(call, problem.readouts, self._row_block(problem), with_output=False).attend()
            return Result(cast(output, call.out_dtype), readouts, tuple(notes))

    def _row_block(self, problem: Problem) -> int:
        return row_block_size(problem, self.row_block_budget, row_block_arrays(problem))


def _hidden_units(problem: Problem) -> int:
    return problem.elements_per_logit if isinstance(problem.score.form, Tanh) else 0


def _collect(
    call: TorchCall, problem: Problem, sizes: TileSizes, forward: Callable[..., Tensor | None]
) -> Result | None:
    """Compute the output and all readouts of a call in the same forward pass, or return None if `forward` does."""
    from qkv.kernels.tiled.readouts import ReadoutCollector, align_to_cells

    notes: list[str] = []
    collector = None
    if problem.readouts:
        collector = ReadoutCollector(problem.readouts, call.tile, like=call.value)
        maps = [readout for readout in problem.readouts if readout.pooling]
        sizes = replace(sizes, cols=align_to_cells(sizes.cols, call.tile.k_total, maps))
    output = forward(call, sizes, notes, collector)
    if output is None:
        return None
    return Result(cast(output, call.out_dtype), () if collector is None else collector.results(), tuple(notes))


def _table_widths(problem: Problem, sizes: TileSizes) -> int:
    """Return the number of elements that the tables of all pooled maps hold for each query."""
    q, k = problem.axes.q, problem.axes.k
    maps: list[Any] = [readout.per_head for readout in problem.readouts if readout.pooling]
    # Each cell has a sum or maximum of exponentials, a running maximum, and a scale.
    return sum(3 * (readout.sides(q, k)[1] + -(-k // sizes.cols) + 1) for readout in maps)


def _arrays_at_peak(problem: Problem) -> int:
    """Return how many arrays of the size of a tile are measured at once, which are fewer than `tile_arrays` allows."""
    form, arrays = problem.score.form, tile_arrays(problem)
    if isinstance(form, Distance) and not problem.gradient:
        return arrays + 3 if near_pairs(problem) else arrays
    if problem.gradient and not isinstance(form, Gated) and (arrays <= 8 or isinstance(form, Tanh)):
        return 4
    return arrays
