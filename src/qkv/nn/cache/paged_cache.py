"""Key-value cache whose tokens are stored in blocks of a pool that many caches share."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from qkv.cache.kernel import ChunkedTensor
from qkv.core.checks import check_integers
from qkv.core.formatting import memory_text
from qkv.core.positions import Positions
from qkv.core.typing import Float, Int, Num
from qkv.errors import DamagedError, OptionError, RefusedError, ShapeError
from qkv.masks import Lengths, Mask, Window
from qkv.masks.base import and_masks
from qkv.nn.cache.checks import check_index, check_lengths, check_new_length, check_rows
from qkv.nn.cache.chunk import encode_rows
from qkv.nn.cache.safetensors_file import CacheState, read_cache, write_cache


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


class PagedCache:
    """Key-value cache in blocks of a `BlockPool`: memory is shared among caches, forks and beams.

    `module(x, cache=cache)` works as with `KeyValueCache`. Each sequence has a table of blocks, and at most one block
    per sequence is partly empty. `fork` and `reorder` share blocks, which are copied when one of their owners writes to
    them. Each call gathers the keys of its sequences in one array, which takes longer than the chunks of
    `KeyValueCache`; choose it for many sequences of different lengths, or with common beginnings.

    Args:
        pool: pool of blocks. Its heads and widths are those of the projected keys and values.
        window: number of keys that a query may attend to, including its own key; blocks that no later query can reach
            are given back. None means all keys.

    Raises:
        OptionError: if `window` is not a positive integer.

    Example:
        >>> from qkv import masks, nn
        >>> attention = nn.MultiHeadAttention(16, 4, mask=masks.Causal())
        >>> pool = nn.BlockPool(8, heads=4, width=4, size=4)
        >>> x, cache = torch.randn(1, 7, 16), nn.PagedCache(pool)
        >>> with torch.no_grad():
        ...     first = attention(x[:, :6], cache=cache)
        ...     other = cache.fork()
        ...     last = attention(x[:, 6:], cache=cache)
        ...     whole = attention(x)
        >>> torch.allclose(torch.cat([first, last], 1), whole, atol=1e-6), len(other), pool.free
        (True, 6, 5)
    """

    def __init__(self, pool: BlockPool, *, window: int | None = None) -> None:
        check_integers(window=window)
        self.pool, self.window = pool, window
        self._tables: list[list[int]] = []
        self._lengths: list[int] = []
        self._before: list[int] = []
        self._dropped = 0
        self._new_lengths: list[int] | None = None
        self._finite = [True, True]

    # -- read by attention modules ----------------------------------------------------------------------

    @property
    def start(self) -> int | Int[Tensor, " batch"]:
        """Position of the next key, which is the number of keys so far, `(batch,)` if the lengths are uneven."""
        return self._as_lengths(self._lengths, 0)

    @property
    def positions(self) -> Positions:
        """Position of query 0 of the last call relative to the first key that `append` returned."""
        return Positions(query_start=self._as_lengths(self._before, self._first))

    @property
    def mask(self) -> Mask | None:
        """Mask of padding and window for the keys that `append` returned, or None if all keys are allowed."""
        lengths = self.lengths
        real = None if lengths is None else Lengths(lengths)
        return and_masks(real, None if self.window is None else Window(self.window - 1, 0))

    @property
    def lengths(self) -> Int[Tensor, " batch"] | None:
        """Number of keys of each sequence that `append` returned, or None if all sequences have all keys."""
        lengths = self._as_lengths(self._lengths, self._first)
        return lengths if isinstance(lengths, Tensor) else None

    def append(
        self, key: Float[Tensor, "batch heads new width"], value: Float[Tensor, "batch heads new value_width"]
    ) -> tuple[ChunkedTensor, ChunkedTensor]:
        """Append keys and values to the cache, and return all keys and values to attend to.

        A failed call leaves the cache unchanged.

        Raises:
            ShapeError: if the shapes of key and value do not match each other, the pool or the cache.
            KindError: if the dtype differs from the pool's.
            GradientError: if key or value requires a gradient.
            RefusedError: if the pool has too few free blocks.
        """
        pool, n = self.pool, key.shape[-2]
        batch = len(self._lengths) or (key.shape[0] if key.ndim == 4 else 1)
        like = {name: pool.tensors[name][None, :, :0].expand(batch, -1, -1, -1) for name in ("key", "value")}
        check_rows(key, value, like, pool.dtype)
        counts = [n] * batch if self._new_lengths is None else self._new_lengths
        if len(counts) != batch or not all(0 <= count <= n for count in counts):
            raise ShapeError(
                f"lengths must have one element from 0 to {n} for each of the {batch} batch elements, got {counts}. "
                "Pass the number of new tokens of each element."
            )
        before = self._lengths or [0] * batch
        tables = self._tables or [[] for _ in range(batch)]
        unreachable = 0 if self.window is None else max(0, min(before) - self.window + 1) // pool.size
        dropped = max(self._dropped, unreachable)
        freed = [table[: dropped - self._dropped] for table in tables]
        tables = [table[dropped - self._dropped :] for table in tables]
        after = [old + count for old, count in zip(before, counts, strict=True)]
        self._check_room(tables, before, after, dropped, freed)
        for blocks in freed:
            pool.give_back(blocks)
        rows: list[int] = []
        for table, old, new in zip(tables, before, after, strict=True):
            last = old // pool.size - dropped
            if new > old and last < len(table) and pool.shared(table[last]):
                table[last] = pool.copy_block(table[last])
            while len(table) < -(-new // pool.size) - dropped:
                table.append(pool.take())
            rows += self._rows(table, old, new, dropped)
        self._tables, self._lengths, self._before = tables, after, before
        self._dropped, self._new_lengths = dropped, None
        index = torch.tensor(rows, dtype=torch.int64, device=pool.device)
        pool.write(index, self._flat(key, counts), self._flat(value, counts))
        for side, x in enumerate((key, value)):
            self._finite[side] = self._finite[side] and bool(x.isfinite().all())
        return self.key_value()

    def key_value(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        """Return copies of all keys and values in the cache, from the first block that was not given back on.

        Raises:
            ShapeError: if the cache is empty.
        """
        if not self._lengths:
            raise ShapeError("the cache must not be empty, got 0 tokens. Append keys and values first.")
        index = self._stored_rows()
        read = self.pool.read(index)
        key, value = (
            ChunkedTensor((read[side],), (read.get(f"{side}_scale"),), self.pool.dtype, finite and self.lengths is None)
            for side, finite in zip(("key", "value"), self._finite, strict=True)
        )
        return key, value

    # -- called by users of the cache -------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of tokens appended so far, including dropped ones; the largest one if lengths differ."""
        return max(self._lengths, default=0)

    @property
    def blocks(self) -> int:
        """Number of different blocks of the pool that hold tokens of this cache."""
        return len({block for table in self._tables for block in table})

    def set_lengths(self, lengths: Int[Tensor, " batch"]) -> Self:
        """Declare that, in the next call, tokens of batch element b after the first `lengths[b]` are padding.

        Raises:
            KindError: if `lengths` is not an integer tensor.
            ShapeError: if `lengths` is not one-dimensional.
        """
        self._new_lengths = check_lengths(lengths).tolist()
        return self

    def reorder(self, index: Int[Tensor, " new_batch"]) -> Self:
        """Replace each batch element b by batch element `index[b]`, as beam search does, without copying tokens.

        Raises:
            KindError: if `index` is not a one-dimensional tensor of integers.
            OptionError: if an index is negative or too large.
        """
        lengths = self._new_lengths
        check_index(index, (len(self._tables or lengths or ()),) if self._tables or lengths else None)
        chosen = index.tolist()
        if lengths is not None:
            self._new_lengths = [lengths[i] for i in chosen]
        if self._tables:
            tables = [list(self._tables[i]) for i in chosen]
            self._replace(tables)
            self._lengths = [self._lengths[i] for i in chosen]
            self._before = [self._before[i] for i in chosen]
        return self

    def crop(self, length: int | Int[Tensor, " batch"]) -> Self:
        """Remove the last tokens until `length` tokens are left, and give back the blocks that are empty.

        Args:
            length: number of tokens to keep, for all batch elements or one number for each, `(batch,)`.

        Raises:
            KindError: if `length` is neither an integer nor a one-dimensional tensor of integers.
            ShapeError: if `length` does not have one element per batch element.
            OptionError: if `length` is negative or exceeds the number of tokens.
            RefusedError: if keys in the window of the next query were given back.
        """
        batch = len(self._lengths)
        total = check_new_length(length, self.start, batch or None)
        lengths = [total] * batch if isinstance(total, int) else total.tolist()
        if self.window is not None and lengths and self._first > max(0, min(lengths) - self.window + 1):
            raise RefusedError(
                f"length must be at least {self._first + self.window - 1}, because earlier keys in the window of "
                f"{self.window} were given back, got {min(lengths)}. Fork the cache before tokens that may be removed."
            )
        used = [max(0, -(-n // self.pool.size) - self._dropped) for n in lengths]
        self._replace([table[:n] for table, n in zip(self._tables, used, strict=True)])
        self._lengths = self._before = lengths
        return self

    def fork(self) -> PagedCache:
        """Return a cache with the same tokens, which shares their blocks. Both caches continue independently."""
        other = PagedCache(self.pool, window=self.window)
        other.__dict__.update(self.__dict__, _finite=list(self._finite))
        other._tables = [list(table) for table in self._tables]
        for table in other._tables:
            self.pool.share(table)
        return other

    def release(self) -> None:
        """Give all blocks back to the pool, which empties the cache."""
        self._replace([])
        self._lengths, self._before, self._dropped, self._finite = [], [], 0, [True, True]

    def save(self, path: str | Path) -> None:
        """Write the tokens of the cache to a safetensors file atomically; a block of several sequences is written once.

        Raises:
            MissingPackageError: if safetensors is not installed.
        """
        pool, size = self.pool, self.pool.size
        blocks = sorted({block for table in self._tables for block in table})
        index = {block: n for n, block in enumerate(blocks)}
        state: CacheState = {
            "window": self.window,
            "int8": pool.int8,
            "dtype": str(pool.dtype).removeprefix("torch."),
            "finite": self._finite,
            "size": size,
            "tables": [[index[block] for block in table] for table in self._tables],
            "lengths": self._lengths,
            "dropped": self._dropped,
        }
        rows = torch.tensor([block * size + row for block in blocks for row in range(size)], dtype=torch.int64)
        # Rows of no token may hold tokens of other caches.
        real = torch.zeros(len(rows), 1, dtype=torch.bool)
        for table, length in zip(state["tables"], self._lengths, strict=True):
            real[self._rows(table, self._first, length, self._dropped)] = True
        tensors = {
            name: x.index_select(1, rows.to(x.device)).masked_fill_(~real.to(x.device), 0)
            for name, x in pool.tensors.items()
        }
        write_cache(Path(path), tensors, state, "paged")

    @classmethod
    def load(cls, path: str | Path, pool: BlockPool) -> PagedCache:
        """Load a cache from a file that `save` wrote, into free blocks of a pool.

        Args:
            path: the file.
            pool: a pool with the heads, widths, size of blocks, dtype and quantization of the one that was saved.

        Raises:
            DataError: if the file does not exist or is not a paged cache.
            OptionError: if the pool differs from the one that was saved.
            RefusedError: if the pool has too few free blocks.
            MissingPackageError: if safetensors is not installed.
        """
        tensors, state = read_cache(Path(path), str(pool.device), "paged")
        try:
            cache, size = cls(pool, window=state["window"]), state["size"]
            tables, lengths, dropped = state["tables"], state["lengths"], state["dropped"]
            saved = (size, state["dtype"], *((name, x.shape[0], x.shape[2]) for name, x in sorted(tensors.items())))
            cache._finite = list(state["finite"])
            stored = tensors["key"].shape[1] // size
            if not all(0 <= n < stored for table in tables for n in table) or any(
                len(table) != max(0, -(-length // size) - dropped)
                for table, length in zip(tables, lengths, strict=True)
            ):
                raise ValueError("the tables of blocks do not match the lengths")
        except Exception as error:  # whatever torch raises for crafted values
            raise DamagedError(
                f"{path} must be a complete paged cache, but reading failed: {error!r:.200}. Save the cache again."
            ) from None
        tensors_of_pool = sorted(pool.tensors.items())
        own = (
            pool.size,
            str(pool.dtype).removeprefix("torch."),
            *((n, x.shape[0], x.shape[2]) for n, x in tensors_of_pool),
        )
        if saved != own:
            raise OptionError(
                f"pool must have the size of blocks, dtype, heads and widths of the saved one, {saved}, got {own}. "
                "Build such a pool."
            )
        pool.check_free(stored)
        blocks = [pool.take() for _ in range(stored)]
        for name, x in tensors.items():
            for n, block in enumerate(blocks):
                pool.tensors[name].narrow(1, block * size, size).copy_(x.narrow(1, n * size, size))
        cache._tables = [[blocks[n] for n in table] for table in tables]
        for table in cache._tables:
            pool.share(table)
        pool.give_back(blocks)  # which belong to the tables from now on
        cache._lengths = cache._before = lengths
        cache._dropped = dropped
        return cache

    def __repr__(self) -> str:
        window = f", window={self.window}" if self.window is not None else ""
        return f"PagedCache({len(self._lengths)} sequences, {len(self)} tokens in {self.blocks} blocks{window})"

    # -- storage ----------------------------------------------------------------------------------------

    @property
    def _first(self) -> int:
        """Position of the first token that is stored."""
        return self._dropped * self.pool.size

    def _as_lengths(self, lengths: list[int], first: int) -> int | Int[Tensor, " batch"]:
        if len(set(lengths)) > 1:
            return torch.tensor([n - first for n in lengths], device=self.pool.device)
        return lengths[0] - first if lengths else 0

    def _rows(self, table: list[int], start: int, stop: int, dropped: int) -> list[int]:
        """Return the rows of the pool that hold the positions from `start` to `stop` − 1."""
        size = self.pool.size
        return [table[n // size - dropped] * size + n % size for n in range(start, stop)]

    def _stored_rows(self) -> Int[Tensor, "batch k"]:
        """Return the rows of the pool that hold the tokens of each sequence.

        Rows beyond the end of a sequence are masked and never read.
        """
        size, length = self.pool.size, len(self) - self._first
        count = -(-length // size)
        tables = [table + [0] * (count - len(table)) for table in self._tables]
        blocks = torch.tensor(tables, dtype=torch.int64, device=self.pool.device).view(len(tables), count, 1)
        return (blocks * size + torch.arange(size, device=self.pool.device)).flatten(1)[:, :length]

    def _flat(self, x: Float[Tensor, "batch heads new width"], counts: list[int]) -> Float[Tensor, "heads n width"]:
        """Return the first `counts[b]` rows of each batch element b, one after another."""
        return torch.cat([x[b, :, :count] for b, count in enumerate(counts)], 1)

    def _check_room(
        self, tables: list[list[int]], before: list[int], after: list[int], dropped: int, freed: list[list[int]]
    ) -> None:
        """Check that the pool has the blocks that new tokens need, including copies of shared blocks.

        Raises:
            RefusedError: if it has too few.
        """
        size, needed = self.pool.size, 0
        for table, old, new in zip(tables, before, after, strict=True):
            last = old // size - dropped
            needed += max(0, -(-new // size) - dropped - len(table))
            needed += new > old and last < len(table) and self.pool.shared(table[last])
        returned = {block for blocks in freed for block in blocks if not self.pool.shared(block)}
        self.pool.check_free(needed - len(returned))

    def _replace(self, tables: list[list[int]]) -> None:
        """Replace the tables of blocks."""
        for table in tables:
            self.pool.share(table)
        for table in self._tables:
            self.pool.give_back(table)
        self._tables = tables
