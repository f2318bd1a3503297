"""Sizes of the blocks of the generated programs, by compute capability and by what a program holds in registers.

The sizes are those for which the compiler (Triton 3.7.1) stores no registers to local memory for typical scores with 64
features and values 64 wide; `tests/kernels/test_compiled_traced.py` compiles them. None is tuned by time.
"""

from __future__ import annotations

from collections.abc import Sequence

from qkv.kernels.triton.block_sizes import AdditiveBlocks, Block, additive_blocks
from qkv.kernels.triton.traced.translation import Input

__all__ = ["traced_blocks"]


def traced_blocks(
    capability: tuple[int, int], inputs: Sequence[Input], value_width: int, rounded: bool
) -> AdditiveBlocks:
    """Return the blocks of the three programs.

    Args:
        capability: compute capability of the GPU; (0, 0) for the interpreter.
        inputs: the inputs of the programs.
        value_width: width of the values.
        rounded: whether matrix products round their inputs to TF32, which takes a third of the registers.
    """
    width = max(value_width, *(x.features for x in inputs), 1)
    if width > 64:
        return additive_blocks(capability, width, rounded)
    forward = additive_blocks(capability, width, rounded=False).forward
    if capability < (9, 0):
        return AdditiveBlocks(forward, Block(32, 64, 8), Block(16, 32, 8))
    # The program for queries sums a gradient for each of these.
    many = sum(x.features > 0 and x.rows != "k" for x in inputs) > 2
    return AdditiveBlocks(forward, Block(16 if many else 32, 64, 8), Block(16, 64, 8))
