"""Base class of the kernels for GPUs whose tiles are computed in registers by programs written in Triton.

Source: Tillet, Kung, Cox (2019), Triton: an intermediate language and compiler for tiled neural network computations,
https://doi.org/10.1145/3315508.3329973.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import ClassVar, NamedTuple, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.typing import Bool, Float, OutputTensor, ReadoutResult, Tensor
from qkv.errors import GradientError
from qkv.kernels.runtime.context import no_autocast, on_device
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks import Mask
from qkv.plan.kernel_protocol import Elsewhere, Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs


class Block(NamedTuple):
    """Number of queries and of keys of a tile, and number of warps that compute it.

    The blocks below are the largest of those tried for which the compiler (Triton 3.7.1) stores no registers to local
    memory with 64 hidden units and values 64 wide; `tests/kernels/test_compiled_triton.py` compiles them. None is tuned
    by time.
    """

    queries: int
    keys: int
    warps: int


class AdditiveBlocks(NamedTuple):
    """Blocks of the forward program, and of the backward programs for queries and for keys."""

    forward: Block
    query_gradient: Block
    key_gradient: Block


@dataclass(frozen=True)
class Launch:
    """Sizes of the blocks of three programs, and the options with which they are compiled.

    Attributes:
        offset: position of query 0 under a causal mask; None without one.
        blocks: sizes of the blocks of each program.
        precision: precision of matrix products, as in `triton.language.dot`.
    """

    offset: int | None
    blocks: AdditiveBlocks
    precision: str = "tf32x3"

    def options(self, block: Block, value_width: int) -> dict[str, object]:
        """Return the compile-time arguments of a program that has a block and values of some width."""
        sizes = {"DV": value_width, "DVP": power_of_two(value_width), "CAUSAL": self.offset is not None}
        return {**sizes, "PRECISION": self.precision, "BQ": block.queries, "BK": block.keys, "num_warps": block.warps}


def additive_blocks(capability: tuple[int, int], width: int, rounded: bool) -> AdditiveBlocks:
    """Return the blocks of the three programs for an additive score.

    Args:
        capability: compute capability of the GPU; (0, 0) for the interpreter.
        width: the larger of the number of hidden units and the width of the values.
        rounded: whether matrix products round their inputs to TF32, which takes a third of the registers.

    Example:
        >>> additive_blocks((8, 0), 64, False).key_gradient
        Block(queries=16, keys=32, warps=4)
        >>> additive_blocks((10, 0), 64, False).key_gradient
        Block(queries=64, keys=64, warps=8)
    """
    if width > 128:
        return AdditiveBlocks(Block(16, 32, 8), Block(16, 32, 8), Block(16, 16, 8))
    if width > 64:
        return AdditiveBlocks(Block(16, 64, 4), Block(32, 64, 8), Block(16, 32, 8))
    if rounded or capability >= (10, 0):
        return AdditiveBlocks(*(Block(64, 64, 8),) * 3)
    if capability >= (9, 0):
        return AdditiveBlocks(Block(64, 32, 4), Block(64, 32, 4), Block(16, 64, 8))
    return AdditiveBlocks(Block(32, 64, 8), Block(32, 64, 8), Block(16, 32, 4))


def readout_blocks(width: int, half: bool, top: bool) -> tuple[Block, Block]:
    """Return the blocks of the programs for readouts: of the pass over rows, and of the pass over cells.

    Args:
        width: the largest width of vectors or values, or number of hidden units.
        half: whether products take inputs of half precision as they are.
        top: whether the pass over rows keeps the largest logits, which takes registers.

    Example:
        >>> readout_blocks(64, True, False)
        (Block(queries=64, keys=64, warps=8), Block(queries=64, keys=64, warps=8))
    """
    if width > 128:
        return Block(16, 32, 8), Block(32, 32, 8)
    if half:
        return Block(32 if top else 64, 64, 8), Block(64, 64, 8)
    return Block(16, 32, 8) if top else Block(32, 32, 8), Block(32, 64, 8)


def batch_elements(x: Float[Tensor, "*_ n width"], batch: tuple[int, ...]) -> Float[Tensor, "element n width"]:
    """Return the vectors of all batch elements, with one batch axis."""
    return x.expand((*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:])


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n` and 16, the smallest side of a matrix product."""
    return max(16, 1 << (n - 1).bit_length())


def pair_biases(
    call: TorchCall, keys: Mask | None
) -> tuple[Bool[Tensor, "*#batch k"], Float[Tensor, "element q"], Float[Tensor, "element k"]]:
    """Return which keys are allowed, a bias for each query and a bias for each key.

    The biases are NaN for queries and keys that are not finite, −inf for masked keys, and 0 for others.
    """
    import torch

    batch, q, k = call.tile.batch, call.tile.q_total, call.tile.k_total
    allowed = torch.ones(k, dtype=torch.bool, device=call.value.device)
    if keys is not None:
        allowed = cast("Tensor", keys.allowed(call.tile, call.value))[..., 0, :]
    bad = ~call.key.isfinite().all(-1)
    key_bias = torch.where(allowed, torch.where(bad, math.nan, 0.0), -math.inf).expand((*batch, k)).reshape(-1, k)
    row_bias = (call.query.detach() * 0).sum(-1).expand((*batch, q)).reshape(-1, q)
    return allowed, row_bias.float().contiguous(), key_bias.float().contiguous()


def finite_call(call: TorchCall) -> TorchCall:
    """Return a call with 0 in place of the elements of query, key and value that are not finite."""
    import torch

    query, key, value = (torch.where(x.isfinite(), x, 0.0) for x in (call.query, call.key, call.value))
    return replace(call, query=query, key=key, value=value, finite=(True, True))


def refuse_second_derivative(kernel: str) -> None:
    """Raise a `GradientError` in a backward pass that is itself recorded, because the programs have no derivatives."""
    import torch

    if torch.is_grad_enabled():
        raise GradientError(
            f"the kernel {kernel} must be differentiated once, got a second derivative. Pass kernel='row_blocks'."
        )


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
            yield Elsewhere("it runs on GPUs")
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

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run the programs, without reading anything back."""
        tensors = cast("TorchCall", call)
        with no_autocast(tensors.value), on_device(tensors.value):
            offset = split_mask(tensors.mask, tensors.tile)[1]
            output, readouts = self.attend(tensors, problem, offset, product_precision(problem.dtype))
        return Result(arrays.cast(output, call.out_dtype), readouts)

    @abstractmethod
    def attend(
        self, call: TorchCall, problem: Problem, offset: int | None, precision: str
    ) -> tuple[OutputTensor, tuple[ReadoutResult, ...]]:
        """Return the output and the readouts of a call, given the position of query 0 under a causal mask."""


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
