"""The streamed kernel: NumPy, forward, tile by tile, in memory linear in the keys. What `ask` uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.core.arrays import cast, namespace, quiet
from qkv.core.equation import Ready
from qkv.kernels.fold import fold_rows, row_logits, spans, weigh_rows
from qkv.kernels.sizes import STRIP_BUDGET, TILE_BUDGET, partial_alive, said, strip_rows_of, tile_of
from qkv.plan.cost import Cost
from qkv.plan.kernel import Kernel, Result
from qkv.plan.problem import Problem
from qkv.readouts.base import join

__all__ = ["StreamedKernel"]


@dataclass(frozen=True)
class StreamedKernel(Kernel):
    """Folds tiles; takes strips of whole rows where the normalizer has no fold or readouts are wanted.

    Args:
        budget: numbers in the widest array of a tile.
        strip_budget: numbers in all arrays of a strip together.
    """

    name: ClassVar[str] = "streamed"
    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    budget: int = TILE_BUDGET
    strip_budget: int = STRIP_BUDGET

    def refuse(self, problem: Problem) -> str | None:
        """NumPy only; there is no gradient to refuse."""
        return self.refuse_library(problem)

    def describe(self, problem: Problem) -> str:
        """Tile or strip sizes."""
        rows, cols = self._sides(problem)
        if self._strips(problem):
            return f"strips of whole rows, {said(rows, problem.axes.k)} at a time"
        return f"tiles of {said(rows, cols)}"

    def cost(self, problem: Problem) -> Cost:
        """One tile or strip at a time, and what the readouts keep."""
        axes = problem.axes
        rows, cols = self._sides(problem)
        tile = axes.batch_size * rows * cols * problem.itemsize * (5 + problem.elements_per_logit)
        tile += axes.batch_size * rows * problem.itemsize * partial_alive(problem)
        if self._strips(problem):
            tile += axes.batch_size * rows * axes.k * problem.itemsize * 5
        tiles = -(-axes.q // rows) * -(-axes.k // cols)
        traffic = problem.input_bytes + (-(-axes.q // rows) - 1) * axes.k * axes.key_width * problem.itemsize
        if self._strips(problem):
            traffic += axes.pairs * problem.itemsize * 6
        tile += problem.kept_bytes
        return Cost(axes.pairs * problem.flop_per_pair, traffic, tile, 2e-4 + tiles * 1e-4)

    def run(self, ready: Ready, problem: Problem) -> Result:
        """Some queries at a time."""
        rows, cols = self._sides(problem)
        outputs, seen = [], []
        with quiet():
            for limits in spans(ready.place.q_total, rows):
                output: Any
                if self._strips(problem):
                    logits = row_logits(ready, limits, cols)
                    output, readouts = weigh_rows(ready, limits, logits, problem.readouts)
                    seen.append(readouts)
                else:
                    output, _ = fold_rows(ready, limits, cols)
                outputs.append(cast(output, ready.out_dtype))
            joined = outputs[0] if len(outputs) == 1 else namespace(ready.value).concat(outputs, axis=-2)
            readouts = tuple(
                readout.finish(join(readout, [pieces[n] for pieces in seen]), ready.place)
                for n, readout in enumerate(problem.readouts)
            )
        return Result(joined, readouts)

    def _strips(self, problem: Problem) -> bool:
        return bool(problem.readouts) or problem.normalizer.passes != "one"

    def _sides(self, problem: Problem) -> tuple[int, int]:
        alive = 5 + problem.elements_per_logit
        if not self._strips(problem):
            return tile_of(problem, self.budget, alive)
        rows = strip_rows_of(problem, self.strip_budget, 5)
        pairs = self.budget // max(1, problem.axes.batch_size * rows * problem.elements_per_logit)
        return rows, max(1, min(problem.axes.k, pairs))
