"""Rows of keys and values in chunks: one chunk that grows while it is small, and further chunks from then on."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.core.typing import Float, Int, Num
from qkv.errors import RefusedError
from qkv.nn.cache.chunk import Chunk, next_chunk_size
from qkv.plan.cost import memory_text

__all__ = ["ChunkList"]

_ONE_CHUNK_BYTES = 16 * 2**20
"""Largest size of keys and values that are reallocated when they grow.

Up to here fused attention over several chunks takes longer than over one (16 chunks of 128 rows: 1.6 times). With the
copies, decoding 2,048 tokens takes 1.2 times as long as on a preallocated buffer (EPYC, one thread,
`benchmarks/decode.py`).
"""


class ChunkList:
    """Preallocated rows of keys and values at consecutive positions, from the start of the first chunk on.

    Unused capacity is at most max(one chunk, 1/16 of the rows).

    Args:
        chunk: number of rows of the smallest chunk.
        window: number of last rows that are needed; None means all rows.
        int8: whether rows are quantized to int8.
        memory: maximum size in bytes; None means no limit.
    """

    def __init__(self, chunk: int, window: int | None, int8: bool, memory: int | None) -> None:
        self.chunk, self.window, self.int8, self.memory = chunk, window, int8, memory
        self.chunks: list[Chunk] = []

    @property
    def nbytes(self) -> int:
        """Number of bytes that are allocated for all chunks."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def copy(self, share: bool) -> ChunkList:
        """Return a copy. With `share`, memory is shared until one of both is written, except for a small last chunk."""
        other = ChunkList(self.chunk, self.window, self.int8, self.memory)
        # The rows of a small chunk are copied, so that forks of forks have no more chunks than other caches.
        other.chunks = [x.fork() if share and x.filled >= self.chunk else x.copy() for x in self.chunks]
        return other

    def write_in_last(
        self, position: int, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> bool:
        """Write rows at consecutive positions if the last chunk has room for them, and return whether it has."""
        if not self.chunks:
            return False
        last, n = self.chunks[-1], key.shape[-2]
        room = last.start <= position and position + n <= last.stop
        if room:
            last.write(position, key, value)
        return room

    def write(
        self, position: int, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> None:
        """Write keys and values at consecutive positions from `position`, the same in every batch element.

        Raises:
            RefusedError: if the list would exceed `memory`.
        """
        done, n, oldest = 0, key.shape[-2], self._oldest(position)
        while done < n:
            chunk = self._find_or_add(position + done, key, value, n - done, oldest)
            rows = slice(done, done + min(n - done, chunk.stop - position - done))
            chunk.write(position + done, key[..., rows, :], value[..., rows, :])
            done = rows.stop

    def scatter(
        self,
        first: Int[Tensor, " batch"],
        after: Int[Tensor, " batch"],
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
    ) -> None:
        """Write the first `after − first` rows of each batch element at positions from `first` on.

        Raises:
            RefusedError: if the list would exceed `memory`.
        """
        rows = torch.arange(key.shape[-2], device=key.device)
        element, row = ((first[:, None] + rows) < after[:, None]).nonzero(as_tuple=True)
        positions = first[element] + row
        if not len(positions):
            return
        stop, position, oldest = int(positions.max()) + 1, int(positions.min()), self._oldest(int(first.min()))
        while position < stop:
            chunk = self._find_or_add(position, key, value, stop - position, oldest)
            inside = (positions >= chunk.start) & (positions < chunk.stop)
            chunk.scatter(element[inside], positions[inside], row[inside], key, value)
            position = chunk.stop

    def drop_before(self, position: int) -> None:
        """Drop the chunks all of whose rows precede `position`, except the last chunk."""
        if len(self.chunks) > 1 and self.chunks[0].stop <= position:
            self.chunks = [x for x in self.chunks[:-1] if x.stop > position] + self.chunks[-1:]

    def crop(self, stop: int) -> None:
        """Drop the rows at positions from `stop` on, and all chunks if `stop` is 0."""
        first = self.chunks[:1] if stop else []
        self.chunks = [chunk for chunk in self.chunks if chunk.start < stop] or first
        if self.chunks:
            self.chunks[-1].filled = min(self.chunks[-1].filled, stop - self.chunks[-1].start)

    def take(self, index: Int[Tensor, " new_batch"]) -> None:
        """Replace the batch by its elements at the indices `index`, chunk by chunk."""
        for chunk in self.chunks:  # one by one, so that memory never holds two copies of the whole cache
            chunk.take(index)

    def rows(self) -> list[dict[str, Num[Tensor, "*batch filled _"]]]:
        """Return the filled rows of each chunk, as views, by the name of the tensor."""
        return [chunk.rows() for chunk in self.chunks]

    def _find_or_add(
        self,
        position: int,
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
        rows: int,
        oldest: int,
    ) -> Chunk:
        """Return the chunk that holds `position`, after adding capacity, for at least `rows` rows without a window.

        Rows at positions before `oldest` may be dropped.
        """
        for chunk in self.chunks:
            if chunk.start <= position < chunk.stop:
                return chunk
        row_bytes = self._row_bytes(key, value)
        size = self._added_rows(rows)
        last = self.chunks[-1] if self.chunks else None
        grow = last is not None and len(self.chunks) == 1 and not (self.int8 or last.shared)
        start = position
        if last is not None and grow:
            start = max(last.start, oldest)
            grow = (last.stop - start + size) * row_bytes <= _ONE_CHUNK_BYTES
        new_bytes = (last.stop - start + size) * row_bytes if last is not None and grow else row_bytes * size
        new_bytes += 0 if grow else self.nbytes
        if self.memory is not None and new_bytes > self.memory:
            raise RefusedError(
                f"memory must be at least {memory_text(new_bytes)} to add a chunk of {size} tokens, got "
                f"{memory_text(self.memory)}. Increase memory, or build the cache with window or int8=True."
            )
        if last is not None and grow:
            last.resize(start, last.stop - start + size)
            return last
        self.chunks.append(Chunk.empty(position, size, key, value, self.int8))
        return self.chunks[-1]

    def _oldest(self, position: int) -> int:
        """Return the first position that a query at `position` may attend to."""
        return 0 if self.window is None else position - self.window + 1

    def _added_rows(self, rows: int) -> int:
        """Return the number of rows of the next chunk."""
        if self.window is not None:  # small, so that rows outside the window are dropped soon
            return max(self.chunk, self.window // 16)
        total = sum(chunk.size for chunk in self.chunks)
        return max(next_chunk_size(total, self.chunk), -(-rows // self.chunk) * self.chunk)

    def _row_bytes(self, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]) -> int:
        """Return the number of bytes of one row of keys and values, over all batch elements, without scales."""
        numbers = sum(x.numel() // max(1, x.shape[-2]) for x in (key, value))
        return numbers * (1 if self.int8 else key.element_size())
