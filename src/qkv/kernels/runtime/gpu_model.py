"""Estimate of the work of kernels that are written in operations of PyTorch, on a GPU."""

from __future__ import annotations

from qkv.plan.devices import GpuWork
from qkv.plan.problem import Problem
from qkv.scores.forms import Product, Wrapped

__all__ = ["ROW_BLOCK_FACTOR", "TILE_FACTOR", "pairwise_gpu_work"]

TILE_FACTOR = 64
"""Ratio of the elements of a tile on a GPU and on a core: 64 MiB in float32, so that launches take little time."""
ROW_BLOCK_FACTOR = 16
"""Ratio of the elements of all arrays of a row block on a GPU and on a CPU: 512 MiB in float32."""


def pairwise_gpu_work(problem: Problem, pairs: float, operations: float, passes: float) -> GpuWork:
    """Return the work of a kernel whose arrays of pairs are written to memory and read back.

    Args:
        problem: the problem.
        pairs: number of pairs that the kernel computes.
        operations: number of operations of PyTorch that are launched for the forward pass.
        passes: number of arrays of pairs that are written and read back, besides the arrays of the score.
    """
    axes, score = problem.axes, problem.score
    times = 3.5 if problem.gradient else 1.0
    elements = problem.elements_per_logit if problem.elements_per_logit > 1 else 0
    flop = float(score.flop_per_logit(axes.query_width, axes.key_width))
    products, rest = (flop, 0.0) if isinstance(score.form, (Product, Wrapped)) else (0.0, flop)
    return GpuWork(
        matrix=pairs * (products + 2 * axes.value_width) * times,
        vector=pairs * (rest + 10) * times,
        special=pairs * (1 + elements) * times,
        traffic=problem.input_bytes + 2 * pairs * problem.itemsize * (passes + 2 * elements) * times,
        launches=operations * times,
    )
