"""Sizes of the blocks of the Triton programs for additive scores, by compute capability.

The sizes are the largest of those tried for which the compiler (Triton 3.7.1) stores no registers to local memory with
64 hidden units and values 64 wide; `tests/kernels/test_compiled_triton.py` compiles them. None is tuned by time.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AdditiveBlocks", "Block", "additive_blocks", "product_block", "readout_blocks"]


class Block(NamedTuple):
    """Number of queries and of keys of a tile, and number of warps that compute it."""

    queries: int
    keys: int
    warps: int


class AdditiveBlocks(NamedTuple):
    """Blocks of the forward program, and of the backward programs for queries and for keys."""

    forward: Block
    query_gradient: Block
    key_gradient: Block


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


def product_block(width: int) -> Block:
    """Return the block of the programs for inner products, whose vectors are up to `width` wide.

    Example:
        >>> product_block(64)
        Block(queries=32, keys=32, warps=8)
    """
    if width > 128:
        return Block(16, 64, 8)
    return Block(32, 32, 8)


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
