"""Base class of the kernels for GPUs whose tiles are computed in registers by programs written in Triton.

Source: Tillet, Kung, Cox (2019), Triton: an intermediate language and compiler for tiled neural network computations,
https://doi.org/10.1145/3315508.3329973.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from qkv.kernels.runtime.split_mask import split_mask
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs

__all__ = ["ProgramKernel", "product_precision"]


@dataclass(frozen=True)
class ProgramKernel(Kernel):
    """Base class of kernels that run programs written in Triton.

    Args:
        interpreted: whether Triton's interpreter runs the programs on tensors of a CPU, for tests; the environment
            variable TRITON_INTERPRET must be 1 before the first call.
        block: numbers of queries and keys of a tile; None to choose them.
    """

    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    runs_on_gpu: ClassVar[bool] = True
    computes_readouts: ClassVar[bool] = False
    interpreted: bool = False
    block: tuple[int, int] | None = None

    def limits(self, problem: Problem) -> Iterator[str]:
        axes = problem.axes
        if not (problem.device.is_gpu or self.interpreted):
            yield "it runs on GPUs"
        if problem.readouts and not self.computes_readouts:
            yield "it does not support readouts"
        if problem.spec.dropout:
            yield "it does not support dropout"
        if problem.dtype == "float64":
            yield "it computes in single precision"
        if not split_mask(problem.spec.mask, problem.tile)[2]:
            yield f"the mask {problem.spec.mask} is neither causal nor a mask of keys"
        if 0 in (axes.q, axes.k, axes.query_width, axes.key_width, axes.value_width, axes.batch_size):
            yield "an axis is empty"
        if axes.batch_size >= 2**16:
            yield "it supports fewer than 65,536 batch elements"
        if not self.interpreted and (not problem.device.is_gpu or problem.device.present) and not _has_triton():
            yield "Triton is not installed"

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; tiles of pairs that the mask excludes are skipped."""
        return amounts_of_work(problem, visible_pairs(problem, 64, 64))


def product_precision(dtype: str) -> str:
    """Return the precision of the products of weights and values, which take little of the time.

    TF32 rounds weights to the digits of float16. The sum of three products of TF32 is as exact as single precision.
    """
    import torch

    rounded = dtype == "bfloat16" or (dtype == "float32" and torch.backends.cuda.matmul.allow_tf32)
    return "tf32" if rounded else "tf32x3"


def _has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None
