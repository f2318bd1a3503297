"""Key-value cache for step-by-step generation, which grows by chunks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from qkv.cache.kernel import ChunkedTensor
from qkv.cache.projected_keys import ProjectedKeys
from qkv.core.checks import check_integers
from qkv.core.formatting import memory_bytes, memory_text
from qkv.core.positions import Positions
from qkv.core.typing import Float, Int, Num
from qkv.errors import DamagedError, RefusedError, ShapeError
from qkv.masks import Lengths, Mask, Window
from qkv.masks.base import and_masks
from qkv.nn.cache.checks import check_index, check_lengths, check_loaded, check_new_length, check_rows
from qkv.nn.cache.chunk import Chunk, next_chunk_size
from qkv.nn.cache.safetensors_file import CacheState, read_cache, write_cache

_ONE_CHUNK_BYTES = 16 * 2**20
"""Largest size of keys and values that are reallocated when they grow.

Up to here fused attention over several chunks takes longer than over one (16 chunks of 128 rows: 1.6 times). With the
copies, decoding 2,048 tokens takes 1.2 times as long as on a preallocated buffer (EPYC, one thread,
`benchmarks/decode.py`).
"""


class ChunkList:
    """Preallocated rows of keys and values at consecutive positions, from the start of the first chunk on.

    Unused capacity is at most max(one chunk, 1/16 of the rows).
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
        """Write rows at consecutive positions if they fit into the last chunk, and return whether they do."""
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


class KeyValueCache:
    """Key-value cache: `module(x, cache=cache)` appends the keys and values of `x` and attends to all cached keys.

    The cache grows by chunks, and existing rows are never copied: a call attends to the chunks one by one
    (`cache/kernel.py`). Unused capacity is at most max(one chunk, 1/16 of the cache). One cache serves one
    attention module; a model holds a list of them. It stores no autograd graph: decode under `torch.no_grad()`. For
    scores that project keys, such as `Gaussian` and `Additive`, it also keeps the projections, so that a step projects
    its own key only; not with `int8`, `memory` or uneven lengths.

    Args:
        chunk: number of rows of the smallest chunk.
        window: number of keys that a query may attend to, including its own key; older chunks are dropped when no later
            query can reach them. None means all keys.
        int8: whether rows are quantized to int8 with one scale each, which takes a quarter of the memory of
            float32 with an error of at most 1/254 of the row's largest absolute element.
        memory: maximum size, in bytes or as "512 MiB"; None means no limit.
        lengths: as in `set_lengths`.
        rollback: number of last tokens that `crop` can remove from a cache with a window; without a window it can
            remove any number.

    Raises:
        OptionError: if an option is not allowed.

    Example:
        >>> from qkv import masks, nn
        >>> attention, cache = nn.MultiHeadAttention(16, 4, mask=masks.Causal()), nn.KeyValueCache()
        >>> x = torch.randn(2, 7, 16)
        >>> with torch.no_grad():
        ...     first = attention(x[:, :5], cache=cache)
        ...     steps = [attention(x[:, t : t + 1], cache=cache) for t in (5, 6)]
        ...     whole = attention(x)
        >>> torch.allclose(torch.cat([first, *steps], dim=1), whole, atol=1e-6), len(cache)
        (True, 7)
    """

    def __init__(
        self,
        *,
        chunk: int = 128,
        window: int | None = None,
        int8: bool = False,
        memory: int | str | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        rollback: int = 0,
    ) -> None:
        check_integers(chunk=chunk, window=window)
        check_integers(0, rollback=rollback)
        self.chunk, self.window, self.int8, self.rollback = chunk, window, int8, rollback
        self.memory = None if memory is None else memory_bytes(memory)
        self._reach = None if window is None else window + rollback
        self._rows = ChunkList(chunk, self._reach, int8, self.memory)
        self.projected: ProjectedKeys | None = None
        self._dtype: torch.dtype | None = None
        self._finite = [True, True]
        self._total: int | Int[Tensor, " batch"] = 0
        self._before: int | Int[Tensor, " batch"] = 0
        self._first = 0
        self._dropped_at = 0
        self._new_lengths: Int[Tensor, " batch"] | None = None
        if lengths is not None:
            self.set_lengths(lengths)

    # -- read by attention modules ----------------------------------------------------------------------

    @property
    def start(self) -> int | Int[Tensor, " batch"]:
        """Position of the next key, which is the number of keys so far, `(batch,)` if the lengths are uneven."""
        return self._total

    @property
    def positions(self) -> Positions:
        """Position of query 0 of the last call relative to the first key that `append` returned."""
        return Positions(query_start=self._before - self._first)

    @property
    def mask(self) -> Mask | None:
        """Mask of padding and window for the keys that `append` returned, or None if all keys are allowed."""
        real = Lengths(self._total - self._first) if isinstance(self._total, Tensor) else None
        return and_masks(real, None if self.window is None else Window(self.window - 1, 0))

    @property
    def lengths(self) -> Int[Tensor, " batch"] | None:
        """Number of keys of each sequence that `append` returned, or None if all sequences have all keys."""
        return self._total - self._first if isinstance(self._total, Tensor) else None

    def append(
        self, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> tuple[Float[Tensor, "*batch k width"] | ChunkedTensor, Float[Tensor, "*batch k value_width"] | ChunkedTensor]:
        """Append keys and values to the cache, and return all keys and values to attend to.

        The first call returns its arguments; later calls return the chunks as views. A failed call leaves the cache
        unchanged.

        Raises:
            ShapeError: if the shapes of key and value do not match each other or the cache.
            KindError: if the dtype differs from the cache's.
            GradientError: if key or value requires a gradient.
            RefusedError: if the cache would exceed `memory`.
        """
        check_rows(key, value, self.chunks[0].tensors if self.chunks else {}, self._dtype)
        total, n = self._total, key.shape[-2]
        # A decoding step: all sequences have one length, and there is room for the new rows.
        if (
            isinstance(total, int)
            and total
            and self._new_lengths is None
            and self._rows.write_in_last(total, key, value)
        ):
            self._note_finite(key, value)
            self._before, self._total, self._first = total, total + n, self._rows.chunks[0].start
            return self._chunked()
        before = {**self.__dict__, "_finite": list(self._finite)}
        chunks = list(self._rows.chunks)
        states = [dict(chunk.__dict__, tensors=dict(chunk.tensors)) for chunk in chunks]
        try:
            return self._append(key, value)
        except BaseException:  # restore the state before the call
            self.__dict__.update(before)
            self._rows.chunks = chunks
            for chunk, state in zip(chunks, states, strict=True):
                chunk.__dict__.update(state)
            raise

    def step_rows(
        self,
    ) -> tuple[Float[Tensor, "*batch size width"], Float[Tensor, "*batch size value_width"], int] | None:
        """Return the memory of keys and values and the number of its rows that hold tokens, or None.

        A decoding step may write the next row and add it to the cache with `commit_row`. None means that it needs
        `append`: the keys are in several chunks or quantized, there is no capacity, sequences differ in length, memory
        is shared with another cache, or not all elements are finite.
        """
        chunks, total = self._rows.chunks, self._total
        if len(chunks) != 1 or type(total) is not int or self.int8 or self._new_lengths is not None:
            return None
        chunk = chunks[0]
        keys, n = chunk.tensors["key"], chunk.filled
        if chunk.shared or not 0 < n == total - chunk.start < keys.shape[-2] or self._finite != [True, True]:
            return None
        return keys, chunk.tensors["value"], n

    def commit_row(self) -> None:
        """Add the row that a decoding step wrote after those of `step_rows`, whose elements must be finite."""
        chunk, total = self._rows.chunks[0], self._total
        chunk.filled += 1
        self._before, self._total, self._first = total, total + 1, chunk.start

    def _append(
        self, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> tuple[Float[Tensor, "*batch k width"] | ChunkedTensor, Float[Tensor, "*batch k value_width"] | ChunkedTensor]:
        n, before = key.shape[-2], self._total
        lengths, self._new_lengths = self._new_lengths, None
        after = before + (n if lengths is None else lengths.to(key.device))
        first_call = not len(self)
        self._before = before
        if self._reach is not None:
            shortest = before if isinstance(before, int) else int(before.min())
            self._rows.drop_before(shortest - self._reach + 1)
            self._dropped_at = max(self._dropped_at, shortest, n if first_call else 0)
        self._dtype = key.dtype
        self._note_finite(key, value)
        if isinstance(after, int):
            # Store only the rows of a long prompt that stay reachable, and at least one, which states the shape.
            skipped = max(0, min(n - 1, n - self._reach + 1)) if first_call and self._reach is not None else 0
            self._rows.write(int(before) + skipped, key[..., skipped:, :], value[..., skipped:, :])
        else:
            if after.shape != (key.shape[0],):
                raise ShapeError(
                    f"lengths must have one element for each of the {key.shape[0]} batch elements, got {len(after)} "
                    "elements. "
                    "Pass one integer per element."
                )
            first = before if isinstance(before, Tensor) else torch.full_like(after, before)
            self._rows.scatter(first, after, key, value)
        self._total = after
        self._first = 0 if first_call or not self.chunks else self.chunks[0].start
        return (key, value) if first_call else self._chunked()

    def _note_finite(
        self, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> None:
        """Record whether all keys and all values are finite, so that later calls need not read them for this."""
        # A sum is finite only if all its terms are. If it is not, it may have overflowed.
        total = (key * value).sum() if key.shape == value.shape else key.sum() + value.sum()
        if not math.isfinite(total.item()):
            new = [bool(x.isfinite().all()) for x in (key, value)]
            self._finite = [old and now for old, now in zip(self._finite, new, strict=True)]

    @property
    def first_position(self) -> int:
        """Position of the first key that `append` returned."""
        return self._first

    @property
    def keeps_projections(self) -> bool:
        """Whether the cache keeps the projections of its keys: not with uneven lengths, `int8` or `memory`."""
        return isinstance(self._total, int) and not self.int8 and self.memory is None

    # -- called by users of the cache -------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of tokens appended so far, including dropped ones; the largest one if lengths differ."""
        return self._total if isinstance(self._total, int) else max(self._total.tolist(), default=0)

    @property
    def nbytes(self) -> int:
        """Number of bytes that are allocated for keys, values and projections of keys."""
        return self._rows.nbytes + (0 if self.projected is None else self.projected.nbytes)

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks of the cache."""
        return self._rows.chunks

    def set_lengths(self, lengths: Int[Tensor, " batch"]) -> Self:
        """Declare that, in the next call, tokens of batch element b after the first `lengths[b]` are padding.

        Later tokens of a batch element continue after its last token that is not padding, without a gap in the
        positions.

        Raises:
            KindError: if `lengths` is not an integer tensor.
            ShapeError: if `lengths` is not one-dimensional.
        """
        self._new_lengths = check_lengths(lengths)
        return self

    def reorder(self, index: Int[Tensor, " new_batch"]) -> Self:
        """Replace each batch element b by a copy of batch element `index[b]`, as beam search does.

        Args:
            index: indices of elements of the first axis; the batch may grow or shrink.

        Raises:
            KindError: if `index` is not a one-dimensional tensor of integers.
            ShapeError: if the keys have no batch axis.
            OptionError: if an index is negative or too large.
        """
        key = self.chunks[0].tensors["key"] if self.chunks else None
        lengths = self._new_lengths
        counts = self._total if isinstance(self._total, Tensor) else lengths  # there are counts after padding alone
        known = None if counts is None else tuple(counts.shape)
        check_index(index, known if key is None else tuple(key.shape[:-2]))
        if lengths is not None:
            self._new_lengths = lengths[index.to(lengths.device)]
        if isinstance(self._total, Tensor):
            self._total = self._total[index.to(self._total.device)]
        if isinstance(self._before, Tensor):
            self._before = self._before[index.to(self._before.device)]
        if key is None:
            return self
        index, batch = index.long().to(key.device), key.shape[0]
        if len(index) == batch and torch.equal(index, torch.arange(batch, device=index.device)):
            return self
        self._rows.take(index)
        if self.projected is not None:
            self.projected.take(index)
        if isinstance(self._total, Tensor):
            self._rows.crop(len(self))  # the longest sequence may be gone
        return self

    def crop(self, length: int | Int[Tensor, " batch"]) -> Self:
        """Remove the last tokens until `length` tokens are left, as speculative decoding does with rejected tokens.

        Args:
            length: number of tokens to keep, for all batch elements or one number for each, `(batch,)`.

        Raises:
            KindError: if `length` is neither an integer nor a one-dimensional tensor of integers.
            ShapeError: if `length` does not have one element per batch element.
            OptionError: if `length` is negative or exceeds the number of tokens.
            RefusedError: if keys in the window of the next query were dropped; see `rollback`.
        """
        batch = self.chunks[0].tensors["key"].shape[0] if self.chunks else None
        total = check_new_length(length, self._total, batch)
        shortest, longest = (total, total) if isinstance(total, int) else (int(total.min()), int(total.max()))
        if self.window is not None and self.chunks and self.chunks[0].start > max(0, shortest - self.window + 1):
            raise RefusedError(
                f"length must be at least {self.chunks[0].start + self.window - 1}, because earlier keys in the window "
                f"of {self.window} were dropped, got {shortest}. Build the cache with "
                f"rollback={max(self._dropped_at, len(self)) - shortest}."
            )
        self._rows.crop(longest)
        if not longest:  # another batch may follow
            self.projected = None
        elif self.projected is not None:
            self.projected.crop(shortest)
        self._total = self._before = total
        if not all(self._finite):  # the rows that are not finite may be gone
            rows = [chunk.rows() for chunk in self.chunks]
            self._finite = [all(bool(x[side].isfinite().all()) for x in rows) for side in ("key", "value")]
        return self

    def copy(self) -> KeyValueCache:
        """Return a copy of the cache that shares no memory with it."""
        return self._copy(share=False)

    def fork(self) -> KeyValueCache:
        """Return a copy of the cache that shares the memory of the present tokens with it.

        Both caches continue independently: new tokens are written to memory of their own, and shared memory is copied
        before tokens in it are replaced.
        """
        return self._copy(share=True)

    def _copy(self, share: bool) -> KeyValueCache:
        other = KeyValueCache.__new__(KeyValueCache)
        other.__dict__.update(self.__dict__)
        other._rows, other._finite = self._rows.copy(share), list(self._finite)
        other.projected = None if self.projected is None else self.projected.fork()
        return other

    def __getstate__(self) -> dict[str, object]:
        """Return the state for `copy.deepcopy` and `pickle`, without the projections, which the next step computes."""
        return {**self.__dict__, "projected": None}

    def key_value(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        """Return all keys and values in the cache, as views of its chunks.

        Raises:
            ShapeError: if the cache is empty.
        """
        if not self.chunks:
            raise ShapeError("the cache must not be empty, got 0 tokens. Append keys and values first.")
        return self._chunked()

    def save(self, path: str | Path) -> None:
        """Write the cache to a safetensors file atomically, with a checksum.

        Raises:
            MissingPackageError: if safetensors is not installed.
        """
        state: CacheState = {
            "chunk": self.chunk,
            "window": self.window,
            "rollback": self.rollback,
            "int8": self.int8,
            "memory": self.memory,
            "dtype": str(self._dtype).removeprefix("torch."),
            "finite": self._finite,
            "starts": [chunk.start for chunk in self.chunks],
        }
        tensors = {f"{name}.{n}": x for n, c in enumerate(self.chunks) for name, x in c.rows().items()}
        if isinstance(self._total, Tensor):
            tensors["total"] = self._total
        else:
            state["total"] = self._total
        write_cache(Path(path), tensors, state, "chunks")

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> KeyValueCache:
        """Load a cache from a file that `save` wrote.

        Raises:
            DataError: if the file does not exist, is damaged (`DamagedError`) or is not a cache.
            MissingPackageError: if safetensors is not installed.
        """
        tensors, state = read_cache(Path(path), device, "chunks")
        try:
            cache = cls(
                chunk=state["chunk"],
                window=state["window"],
                int8=state["int8"],
                memory=state["memory"],
                rollback=state.get("rollback", 0),
            )
            cache._finite, cache._dtype = list(state["finite"]), getattr(torch, state["dtype"], None)
            cache._total = cache._before = state["total"] if "total" in state else tensors["total"]
            names = ("key", "value", "key_scale", "value_scale") if cache.int8 else ("key", "value")
            for n, start in enumerate(state["starts"]):
                rows = {name: tensors[f"{name}.{n}"] for name in names}
                cache.chunks.append(Chunk(start, rows, rows["key"].shape[-2]))
            check_loaded(cache.chunks, cache._total, cache._finite, torch.int8 if cache.int8 else cache._dtype)
        except Exception as error:  # whatever torch raises for crafted values
            problem = f"must be a complete key-value cache, but reading failed: {error!r:.200}. Save the cache again."
            raise DamagedError(f"{path} {problem}") from None
        return cache

    def __repr__(self) -> str:
        text = f"{len(self)} tokens in {len(self.chunks)} chunks, {memory_text(self.nbytes)}"
        window = f", window={self.window}" if self.window is not None else ""
        return f"KeyValueCache({text}{window}{', int8' if self.int8 else ''})"

    # -- storage ----------------------------------------------------------------------------------------

    def _chunked(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        sides = []
        for side, finite in zip(("key", "value"), self._finite, strict=True):
            chunks = tuple([x.tensors[side].narrow(-2, 0, x.filled) for x in self.chunks])
            scale = f"{side}_scale"
            scales = tuple([x.tensors[scale].narrow(-2, 0, x.filled) if self.int8 else None for x in self.chunks])
            sides.append(ChunkedTensor(chunks, scales, self._dtype, finite))
        return sides[0], sides[1]
