"""The tiled kernel: PyTorch, forward and backward, any score and mask, in memory linear in queries and keys.

Forward keeps the output and a few numbers per query (for softmax, maximum and total). Backward computes the
logits of a tile again, and from them its weights:

    dL/dw_ij = do_i · v_j        dL/dl = normalizer's gradient, with Σ_j w_ij dL/dw_ij = do_i · o_i
    dL/dv_j += Σ_i w_ij do_i     dL/dq, dL/dk, the score's parameters: the tile's score

What each query and key contributes by itself (`Score.project`) is computed once, before the tiles, and
differentiated by autograd. Softmax goes through `exponentials.py`, other normalizers through `folded.py`;
`tiling.py` spreads batch elements and rows of tiles over workers. Where the gradient itself is to be
differentiated, the call is run again in strips (`strips.py`).

Source: Rabe, Staats (2021), Self-attention does not need O(n²) memory, https://arxiv.org/abs/2112.05682;
Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from qkv.core.arrays import cast, requires_gradient
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.cost_model import tile_seconds, visible_pairs
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
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["TiledKernel"]

BUDGET = 2**18
"""Numbers in the widest array of a tile: 1 MB in float32, so that a tile stays in the cache."""


@dataclass(frozen=True)
class TiledKernel(Kernel):
    """Tiles of queries × keys; normalizers that fold in one pass; readouts by a second pass over strips.

    Args:
        budget: numbers in the widest array of a tile.
        strip_budget: numbers in all arrays of a strip together, where readouts are wanted.
    """

    name: ClassVar[str] = "tiled"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if no logit can exceed ±30: no maximum of rows, else a running one",
        "of an additive score, hidden units of moderate range: exponentials, several to a division, else one "
        "tanh for each pair",
        "of a gate, a side of moderate range: exponentials and a division, else a sigmoid for each pair",
    )
    budget: int = BUDGET
    row_block_budget: int = ROW_BLOCK_BUDGET

    def refuse(self, problem: Problem) -> str | None:
        """PyTorch, and normalizers with a fold."""
        if sentence := self.refuse_library(problem):
            return sentence
        if not problem.normalizer.online:
            return f"{problem.normalizer} must see whole rows, a tile shows part of them"
        return None

    def describe(self, problem: Problem) -> str:
        """Tile size."""
        tiling = self._tiling(problem)
        return f"tiles of {size_text(tiling.rows, tiling.cols)}; logits are computed again in backward"

    def cost(self, problem: Problem) -> Cost:
        """Tiles stay in cache; with a gradient everything is computed once more, and then differentiated."""
        axes, normalizer = problem.axes, problem.normalizer
        tiling = self._tiling(problem)
        exponential = normalizer.log_sum_exp and normalizer.scale is not None
        peak = min(axes.batch_size, tiling.most) * tiling.rows * tiling.cols * problem.itemsize
        peak *= tile_arrays(problem)
        numbers = axes.batch_size * axes.q * (axes.value_width + 4)
        if problem.gradient:
            # All gradients, and one of them twice while it changes its layout; one product with the output.
            numbers += 3 * axes.batch_size * (axes.q + axes.k) * (axes.query_width + axes.value_width) // 2
        peak += projection_bytes(problem)
        pairs = visible_pairs(problem, tiling.rows)
        blocks = -(-axes.batch_size // max(1, tiling.most))
        tiles = blocks * -(-axes.q // tiling.rows) * -(-axes.k // tiling.cols) * pairs / max(1, axes.pairs)
        flop = pairs * problem.flop_per_pair * (3.5 if problem.gradient else 1)
        seconds = pairs * tile_seconds(problem, exponential)
        if problem.readouts:
            flop, seconds = 2 * flop, 2 * seconds
            if problem.gradient or not readable_in_forward(problem.readouts, normalizer):
                strip = axes.batch_size * self._strip(problem) * axes.k * problem.itemsize
                peak = max(peak, strip * row_block_arrays(problem))
            else:
                peak += tiling.rows * _table_widths(problem, tiling) * problem.itemsize
        overhead = (1.5e-3 if problem.gradient else 6e-4) + tiles * (1.5e-4 if problem.gradient else 5e-5)
        return Cost(
            flop,
            (problem.input_bytes + numbers * problem.itemsize) * (2 if problem.gradient else 1),
            peak + numbers * problem.itemsize + problem.untiled_bytes,
            overhead + blocks * 1e-4,
            arithmetic=seconds,
        )

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Fold, then read strips where something is to be read."""
        import torch

        with torch.autocast(call.value.device.type, enabled=False):
            return self._run(call, problem)

    def _run(self, call: BoundCall, problem: Problem) -> Result:
        import torch

        from qkv.kernels.compiled.saved import current_saved
        from qkv.kernels.row_blocks.autograd import RowBlocks
        from qkv.kernels.runtime.isolated_autograd import project_call
        from qkv.kernels.tiled.autograd import attend
        from qkv.kernels.tiled.softmax import is_exponential
        from qkv.kernels.tiled.unchecked_forward import believed, may_be_believed

        tensors = (call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays())
        if any(requires_gradient(x) for x in tensors) or torch.is_grad_enabled():
            refuse_closure_gradients(call)
        notes: list[str] = []
        if current_saved() is None and may_be_believed(call, problem):
            output = believed(call, self._tiling(problem), notes)
            if output is not None:
                return Result(cast(output, call.out_dtype), (), tuple(notes))
        # What is not finite must not meet other rows, as it would in a mean or under a mask.
        if call.finite_sides:
            call = project_call(call)
        tensors = (call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays())
        careful = not (call.projected and is_exponential(call))
        tiling = tile_sizes(problem, self.budget, careful)
        if (
            problem.readouts
            and not (careful or problem.gradient)
            and readable_in_forward(problem.readouts, call.normalizer)
        ):
            from qkv.kernels.tiled.pooled_map import cells_aligned
            from qkv.kernels.tiled.readouts import Seen
            from qkv.kernels.tiled.schedule import forward

            seen = Seen(problem.readouts, call)
            maps = [readout for readout in problem.readouts if readout.pooling]
            cols = cells_aligned(tiling.cols, call.tile.k_total, maps)
            tiling = replace(tiling, cols=cols, most=1)
            output = forward(call, tiling, notes, seen)[0]
            return Result(cast(output, call.out_dtype), seen.results(), tuple(notes))
        output = attend(call, tiling, self._strip(problem), notes, *tensors)
        readouts: tuple[Any, ...] = ()
        if problem.readouts:
            _, readouts = RowBlocks(call, problem.readouts, self._strip(problem), with_output=False).attend()
        return Result(cast(output, call.out_dtype), readouts, tuple(notes))

    def _tiling(self, problem: Problem) -> TileSizes:
        return tile_sizes(problem, self.budget)

    def _strip(self, problem: Problem) -> int:
        return row_block_size(problem, self.row_block_budget, row_block_arrays(problem))


def _table_widths(problem: Problem, tiling: TileSizes) -> int:
    """Numbers for each query in the tables of maps that are made on the way (`tiled/pooled_map.py`)."""
    q, k = problem.axes.q, problem.axes.k
    maps: list[Any] = [readout.per_head for readout in problem.readouts if readout.pooling]
    # A sum or maximum for each cell, its maximum, and the scale of both.
    return sum(3 * (readout.sides(q, k)[1] + -(-k // tiling.cols) + 1) for readout in maps)
