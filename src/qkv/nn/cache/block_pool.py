"""Pool of fixed-size blocks of keys and values, which many paged caches share."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.core.checks import check_integers
from qkv.core.typing import Float, Int, Num
from qkv.errors import RefusedError
from qkv.nn.cache.chunk import encode_rows
from qkv.plan.cost import memory_text

__all__ = ["BlockPool"]


class BlockPool:
    """Preallocated memory for keys and values, in blocks of `size` tokens that caches take and give back.

    A block may belong to several caches, which then share its tokens, such as a common prompt. It is free again when
    the last of them gives it back. As in Kwon et al. (2023), PagedAttention, https://arxiv.org/abs/2309.06180.

    Args:
        blocks: number of blocks.
        heads: number of key heads.
        width: width of a key.
        value_width: width of a value; None means `width`.
        size: number of tokens of a block.
        int8: whether rows are quantized to int8 with one scale each, as in `KeyValueCache`.
        device: device of the memory.
        dtype: dtype of keys and values; None means the default of PyTorch.

    Attributes:
        tensors: "key" and "value" `(heads, blocks · size, width)`; with int8 also the scales "key_scale" and
            "value_scale" `(heads, blocks · size, 1)`. Row r of block b is row b · size + r.

    Raises:
        OptionError: if a number is not a positive integer.

    Example:
        >>> from qkv import nn
        >>> pool = nn.BlockPool(100, heads=4, width=8)
        >>> cache = nn.PagedCache(pool)
        >>> keys, values = cache.append(torch.randn(2, 4, 20, 8), torch.randn(2, 4, 20, 8))
        >>> pool.free, cache.release(), pool.free
        (96, None, 100)
    """

    def __init__(
        self,
        blocks: int,
        heads: int,
        width: int,
        value_width: int | None = None,
        *,
        size: int = 16,
        int8: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_integers(blocks=blocks, heads=heads, width=width, value_width=value_width, size=size)
        self.blocks, self.heads, self.size, self.int8 = blocks, heads, size, int8
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.width, self.value_width = width, width if value_width is None else value_width
        # Tensors that are created in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            rows = [torch.empty(heads, 0, w, device=device, dtype=self.dtype) for w in (self.width, self.value_width)]
            self.tensors = {
                name: x.new_zeros(heads, blocks * size, x.shape[-1])
                for name, x in encode_rows(rows[0], rows[1], int8).items()
            }
        self._free = list(range(blocks - 1, -1, -1))
        self._owners = [0] * blocks

    @property
    def device(self) -> torch.device:
        """Device of the memory."""
        return self.tensors["key"].device

    @property
    def free(self) -> int:
        """Number of blocks that belong to no cache."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """Number of bytes that are allocated for all blocks."""
        return sum(x.nbytes for x in self.tensors.values())

    def shared(self, block: int) -> bool:
        """Return whether a block belongs to several tables, so that it must not be written."""
        return self._owners[block] > 1

    def check_free(self, blocks: int) -> None:
        """Check that `blocks` blocks are free.

        Raises:
            RefusedError: if fewer blocks are free.
        """
        if blocks > self.free:
            raise RefusedError(
                f"the pool must have {blocks} free blocks of {self.size} tokens, got {self.free} of {self.blocks}. "
                "Release caches that are finished, or build a larger pool."
            )

    def take(self) -> int:
        """Return a free block, which belongs to the caller from now on."""
        self.check_free(1)
        block = self._free.pop()
        self._owners[block] = 1
        return block

    def share(self, blocks: list[int]) -> None:
        """Add an owner to each of the blocks."""
        for block in blocks:
            self._owners[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """Remove an owner from each of the blocks. Blocks without an owner are free."""
        for block in blocks:
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free.append(block)

    def copy_block(self, block: int) -> int:
        """Return a new block with the tokens of a shared one, whose owner it replaces."""
        new = self.take()
        for x in self.tensors.values():
            x.narrow(1, new * self.size, self.size).copy_(x.narrow(1, block * self.size, self.size))
        self.give_back([block])
        return new

    def write(
        self, rows: Int[Tensor, " n"], key: Float[Tensor, "heads n width"], value: Float[Tensor, "heads n value_width"]
    ) -> None:
        """Write keys and values to rows of the memory."""
        for name, x in encode_rows(key, value, self.int8).items():
            self.tensors[name].index_copy_(1, rows, x)

    def read(self, rows: Int[Tensor, "batch k"]) -> dict[str, Num[Tensor, "batch heads k _"]]:
        """Return each of `tensors` at rows of the memory, as copies."""
        flat = rows.flatten()
        return {
            name: x.index_select(1, flat).view(self.heads, *rows.shape, x.shape[-1]).transpose(0, 1)
            for name, x in self.tensors.items()
        }

    def __repr__(self) -> str:
        return (
            f"BlockPool({self.free} of {self.blocks} blocks free, {self.size} tokens each, {memory_text(self.nbytes)})"
        )
