"""The tiled kernel: PyTorch, forward and backward, any score and mask, in memory linear in queries and keys.

Forward keeps the output and a few numbers per query (for softmax, maximum and total). Backward computes the
logits of a tile again, and from them its weights:

    dL/dw_ij = do_i · v_j        dL/dl = normalizer's gradient, with Σ_j w_ij dL/dw_ij = do_i · o_i
    dL/dv_j += Σ_i w_ij do_i     dL/dq, dL/dk, the score's parameters: the tile's score, by autograd

Where the gradient itself is to be differentiated, the call is run again in strips (`strips.py`).

Source: Rabe, Staats (2021), Self-attention does not need O(n²) memory, https://arxiv.org/abs/2112.05682;
Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.core.arrays import Array, cast, requires_gradient
from qkv.core.equation import Ready, drop, side
from qkv.core.guard import finite
from qkv.kernels.fold import fold_rows, spans
from qkv.kernels.hidden import refuse_hidden_gradients
from qkv.kernels.sizes import (
    STRIP_BUDGET,
    TILE_BUDGET,
    partial_alive,
    said,
    strip_alive,
    strip_rows_of,
    tile_of,
)
from qkv.kernels.strips import Strips, twice_differentiable
from qkv.plan.cost import Cost
from qkv.plan.kernel import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["TiledKernel"]


@dataclass(frozen=True)
class TiledKernel(Kernel):
    """Tiles of queries × keys; normalizers that fold in one pass; readouts by a second pass over strips.

    Args:
        budget: numbers in the widest array of a tile.
        strip_budget: numbers in all arrays of a strip together, where readouts are wanted.
    """

    name: ClassVar[str] = "tiled"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    budget: int = TILE_BUDGET
    strip_budget: int = STRIP_BUDGET

    def refuse(self, problem: Problem) -> str | None:
        """PyTorch, and normalizers with a fold."""
        if sentence := self.refuse_library(problem):
            return sentence
        if problem.normalizer.passes != "one":
            return f"{problem.normalizer} must see whole rows, a tile shows part of them"
        return None

    def describe(self, problem: Problem) -> str:
        """Tile size."""
        rows, cols = self._sides(problem)
        return f"tiles of {said(rows, cols)}; logits are computed again in backward"

    def cost(self, problem: Problem) -> Cost:
        """Tiles stay in cache; with a gradient everything is computed once more, and then differentiated."""
        axes = problem.axes
        rows, cols = self._sides(problem)
        times = 4 if problem.gradient else 1
        peak = axes.batch_size * rows * cols * problem.itemsize * _alive(problem)
        peak += axes.batch_size * rows * problem.itemsize * partial_alive(problem)
        kept = axes.batch_size * axes.q * (axes.value_width + 4) * problem.itemsize
        flop = axes.pairs * problem.flop_per_pair * times
        tiles = -(-axes.q // rows) * -(-axes.k // cols)
        if problem.readouts:
            flop += axes.pairs * problem.flop_per_pair * times
            strip = axes.batch_size * self._strip(problem) * axes.k * problem.itemsize * strip_alive(problem)
            peak = max(peak, strip)
        return Cost(
            flop,
            problem.input_bytes * (1 + axes.q // max(1, rows)),
            peak + kept + problem.kept_bytes,
            5e-4 + tiles * 7e-4 * (2 if problem.gradient else 1),
        )

    def run(self, ready: Ready, problem: Problem) -> Result:
        """Fold, then read strips where something is to be read."""
        import torch

        tensors = (ready.query, ready.key, ready.value, *ready.score.arrays(), *ready.normalizer.arrays())
        if any(requires_gradient(x) for x in tensors) or torch.is_grad_enabled():
            refuse_hidden_gradients(ready)
        output = _attend()(ready, self._sides(problem), self._strip(problem), *tensors)
        readouts: tuple[Any, ...] = ()
        if problem.readouts:
            _, readouts = Strips(ready, problem.readouts, self._strip(problem), with_output=False).attend()
        return Result(cast(output, ready.out_dtype), readouts)

    def _sides(self, problem: Problem) -> tuple[int, int]:
        return tile_of(problem, self.budget, _alive(problem))

    def _strip(self, problem: Problem) -> int:
        return strip_rows_of(problem, self.strip_budget, strip_alive(problem))


def _alive(problem: Problem) -> int:
    elements = problem.elements_per_logit
    return (10 + 4 * elements) if problem.gradient else (5 + 2 * elements)


def _attend() -> Any:
    """The autograd function, made when torch is there."""
    global _APPLY
    if _APPLY is None:
        import torch

        class Attend(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, ready: Ready, sides: tuple[int, int], strip: int, *tensors: Any) -> Any:
                rows, cols = sides
                with torch.autocast(ready.value.device.type, enabled=False):
                    output, *summary = _forward(ready, rows, cols)
                ctx.save_for_backward(output, *summary, *tensors)
                ctx.ready, ctx.sides, ctx.strip, ctx.count = ready, sides, strip, len(summary)
                return output

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                output, *rest = ctx.saved_tensors
                summary, tensors = rest[: ctx.count], rest[ctx.count :]
                grads: Any
                if torch.is_grad_enabled():  # the gradient itself will be differentiated
                    strips = Strips(ctx.ready, (), ctx.strip, with_output=True)
                    grads = twice_differentiable(strips, tensors, [gradient])
                else:
                    with torch.autocast(output.device.type, enabled=False):
                        grads = _backward(
                            ctx.ready, ctx.sides[0], ctx.sides[1], tensors, output, summary, gradient
                        )
                wanted = ctx.needs_input_grad[3:]
                return (None, None, None, *(g if w else None for g, w in zip(grads, wanted, strict=True)))

        _APPLY = Attend.apply
    return _APPLY


_APPLY: Any = None


def _forward(ready: Ready, rows: int, cols: int) -> list[Any]:
    """Output, and what the normalizer keeps of each row."""
    whole: list[Any] = []
    for limits in spans(ready.place.q_total, rows):
        output, summary = fold_rows(ready, limits, cols)
        pieces = (output, *summary)
        whole = whole or [x.new_empty((*x.shape[:-2], ready.place.q_total, x.shape[-1])) for x in pieces]
        # Written in place: small results left between large temporaries would keep the heap from shrinking.
        for room, x in zip(whole, pieces, strict=True):
            side(room, limits).copy_(x)
    return whole


def _backward(
    ready: Ready, rows: int, cols: int, tensors: list[Any], output: Any, summary: list[Any], gradient: Any
) -> list[Any]:
    """Gradients of query, key, value, the score's arrays and the normalizer's arrays."""
    import torch

    held = len(ready.score.arrays())
    query, key, value, *arrays = tensors
    grads = [torch.zeros_like(x) for x in tensors]
    # Parts that hold the gradients: cut to a tile, their arrays are views into the whole.
    score = ready.score.replace_arrays(arrays[:held])
    score_grads = ready.score.replace_arrays(grads[3 : 3 + held])
    normalizer = ready.normalizer.replace_arrays(arrays[held:])
    clean = value if ready.clean_value else finite(value)
    row_dot = (gradient * output).sum(dim=-1, keepdim=True)
    for r in spans(ready.place.q_total, rows):
        cut_gradient, cut_dot = side(gradient, r), side(row_dot, r)
        cut_summary = tuple(side(x, r) for x in summary)
        for c in spans(ready.place.k_total, cols):
            place = ready.place.cut(r, c)
            limits = (slice(*r), slice(*c))
            cut_score = score.slice(*limits)
            originals = [side(query, r), side(key, c), *cut_score.arrays(), *normalizer.arrays()]
            leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in originals]
            with torch.enable_grad():
                logits = ready.tile(
                    r, c, leaves[0], leaves[1], cut_score.replace_arrays(leaves[2 : 2 + held])
                )
                if logits is None:
                    continue
                prepared = normalizer.replace_arrays(leaves[2 + held :]).prepare(logits)
            constant = prepared.detach()
            weights = normalizer.tile_weights(constant, cut_summary, place)
            _add(side(grads[2], c), drop(weights, place, ready.dropout).mT @ cut_gradient)
            if not normalizer.trains_logits or not prepared.requires_grad:
                continue
            weight_gradient = drop(cut_gradient @ side(clean, c).mT, place, ready.dropout)
            logit_gradient = normalizer.logit_gradient(
                constant, weights, weight_gradient, cut_dot, cut_summary, place
            )
            wanted = [x for x in leaves if x.requires_grad]
            found = iter(torch.autograd.grad(prepared, wanted, logit_gradient, allow_unused=True))
            new = [next(found) if x.requires_grad else None for x in leaves]
            targets = [
                side(grads[0], r),
                side(grads[1], c),
                *score_grads.slice(*limits).arrays(),
                *grads[3 + held :],
            ]
            for target, more in zip(targets, new, strict=True):
                if more is not None:
                    target += more
    for target, per_row in zip(
        grads[3 + held :], normalizer.array_gradients(tuple(summary), row_dot), strict=True
    ):
        if per_row is not None:
            _add(target[..., None, None] if target.ndim else target, per_row)
    return grads


def _add(target: Any, new: Array) -> None:
    """Add to a view what is summed over the axes along which the target was broadcast."""
    target += new.sum_to_size(target.shape)
