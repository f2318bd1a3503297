"""Key-value cache for step-by-step generation, which grows by chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from qkv.core.checks import check_integers
from qkv.core.positions import Positions
from qkv.core.typing import Float, Int, Shaped
from qkv.errors import DataError, GradientError, KindError, RefusedError, ShapeError
from qkv.kernels.chunked.kernel import ChunkedTensor
from qkv.masks import Lengths, Mask, Window
from qkv.masks.base import and_masks
from qkv.nn.cache.chunk import Chunk, next_chunk_size
from qkv.nn.cache.safetensors_file import CacheState, read_cache, write_cache
from qkv.plan.cost import memory_bytes, memory_text

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """Key-value cache: `module(x, cache=cache)` appends the keys and values of `x` and attends to all cached keys.

    The cache grows by chunks, and existing rows are never copied: a call attends to the chunks one by one
    (`kernels/chunked/kernel.py`). Unused capacity is at most max(one chunk, 1/16 of the cache). One cache serves one
    attention module; a model holds a list of them. It stores no autograd graph: decode under `torch.no_grad()`.

    Args:
        chunk: number of rows of the smallest chunk.
        window: number of keys that a query may attend to, including its own key; older chunks are dropped when no later
            query can reach them. None means all keys.
        int8: whether rows are quantized to int8 with one scale each, which takes a quarter of the memory of
            float32 with an error of at most 1/254 of the row's largest absolute element.
        memory: maximum size, in bytes or as "512 MiB"; None means no limit.
        lengths: as in `set_lengths`.

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
    ) -> None:
        check_integers(chunk=chunk, window=window)
        self.chunk, self.window, self.int8 = chunk, window, int8
        self.memory = None if memory is None else memory_bytes(memory)
        self.chunks: list[Chunk] = []
        self._dtype: torch.dtype | None = None
        self._finite = [True, True]
        self._total: int | Int[Tensor, " batch"] = 0
        self._before: int | Int[Tensor, " batch"] = 0
        self._first = 0
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
        self._check(key, value)
        before = {**self.__dict__, "chunks": list(self.chunks), "_finite": list(self._finite)}
        filled = [chunk.filled for chunk in self.chunks]
        try:
            return self._append(key, value)
        except BaseException:  # restore the state before the call
            self.__dict__.update(before)
            for chunk, n in zip(self.chunks, filled, strict=True):
                chunk.filled = n
            raise

    def _append(
        self, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> tuple[Float[Tensor, "*batch k width"] | ChunkedTensor, Float[Tensor, "*batch k value_width"] | ChunkedTensor]:
        n, before = key.shape[-2], self._total
        lengths, self._new_lengths = self._new_lengths, None
        after = before + (n if lengths is None else lengths.to(key.device))
        first_call = not len(self)
        self._before = before
        if self.window is not None:
            shortest = before if isinstance(before, int) else int(before.min())
            self.chunks = [chunk for chunk in self.chunks if chunk.stop > shortest - self.window + 1]
        self._dtype = key.dtype
        for side, x in enumerate((key, value)):
            self._finite[side] &= bool(x.isfinite().all())
        if isinstance(after, int):
            # Store only the rows of a long prompt that stay reachable.
            skipped = max(0, n - self.window + 1) if first_call and self.window is not None else 0
            self._write(int(before) + skipped, key[..., skipped:, :], value[..., skipped:, :])
        else:
            self._scatter(before, after, key, value)
        self._total = after
        self._first = 0 if first_call else self.chunks[0].start
        return (key, value) if first_call else self._chunked()

    # -- called by users of the cache -------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of tokens appended so far, including dropped ones; the largest one if lengths differ."""
        return self._total if isinstance(self._total, int) else int(self._total.max())

    @property
    def nbytes(self) -> int:
        """Number of bytes that are allocated for all chunks."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def set_lengths(self, lengths: Int[Tensor, " batch"]) -> Self:
        """Declare that, in the next call, tokens of batch element b after the first `lengths[b]` are padding.

        Later tokens of a batch element continue after its last token that is not padding, without a gap in the
        positions.

        Raises:
            KindError: if `lengths` is not an integer tensor.
            ShapeError: if `lengths` is not one-dimensional.
        """
        if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise KindError(f"lengths must be a tensor of integers with shape (batch,), got {_describe(lengths)}.")
        if lengths.ndim != 1:
            raise ShapeError(
                f"lengths must have shape (batch,), one element per batch element, got {tuple(lengths.shape)}."
            )
        self._new_lengths = lengths.long()
        return self

    def reorder(self, index: Int[Tensor, " new_batch"]) -> Self:
        """Replace each batch element b by a copy of batch element `index[b]`, as beam search does.

        Args:
            index: indices of elements of the first axis; the batch may grow or shrink.

        Raises:
            KindError: if `index` is not a one-dimensional tensor of integers.
        """
        if not isinstance(index, Tensor) or index.ndim != 1 or index.is_floating_point():
            raise KindError(f"index must be a tensor of integers with shape (new_batch,), got {_describe(index)}.")
        if not self.chunks:
            return self
        key = self.chunks[0].tensors["key"]
        index, batch = index.long().to(key.device), key.shape[0]
        if len(index) == batch and torch.equal(index, torch.arange(batch, device=index.device)):
            return self
        for chunk in self.chunks:  # one by one, so that memory never holds two copies of the whole cache
            chunk.take(index)
        if isinstance(self._total, Tensor):
            self._total = self._total[index]
        return self

    def copy(self) -> KeyValueCache:
        """Return a copy of the cache that shares no memory with it."""
        other = KeyValueCache(chunk=self.chunk, window=self.window, int8=self.int8, memory=self.memory)
        other.__dict__.update(self.__dict__)
        other.chunks, other._finite = [chunk.copy() for chunk in self.chunks], list(self._finite)
        return other

    def key_value(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        """Return all keys and values in the cache, as views of its chunks.

        Raises:
            ShapeError: if the cache is empty.
        """
        if not self.chunks:
            raise ShapeError("the cache must not be empty, got 0 tokens. Append keys and values first.")
        return self._chunked()

    def save(self, path: str | Path) -> None:
        """Write the cache to a safetensors file atomically.

        Raises:
            MissingPackageError: if safetensors is not installed.
        """
        state: CacheState = {
            "chunk": self.chunk,
            "window": self.window,
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
        write_cache(Path(path), tensors, state)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> KeyValueCache:
        """Load a cache from a file that `save` wrote.

        Raises:
            DataError: if the file does not exist or is not a cache.
            MissingPackageError: if safetensors is not installed.
        """
        tensors, state = read_cache(Path(path), device)
        try:
            cache = cls(chunk=state["chunk"], window=state["window"], int8=state["int8"], memory=state["memory"])
            cache._finite, cache._dtype = list(state["finite"]), getattr(torch, state["dtype"], None)
            cache._total = cache._before = state["total"] if "total" in state else tensors["total"]
            names = ("key", "value", "key_scale", "value_scale") if cache.int8 else ("key", "value")
            for n, start in enumerate(state["starts"]):
                rows = {name: tensors[f"{name}.{n}"] for name in names}
                cache.chunks.append(Chunk(start, rows, rows["key"].shape[-2]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} must be a complete key-value cache, but reading failed: {error!r}. Save the cache again."
            ) from None
        return cache

    def __repr__(self) -> str:
        text = f"{len(self)} tokens in {len(self.chunks)} chunks, {memory_text(self.nbytes)}"
        window = f", window={self.window}" if self.window is not None else ""
        return f"KeyValueCache({text}{window}{', int8' if self.int8 else ''})"

    # -- storage ----------------------------------------------------------------------------------------

    def _chunked(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        rows = [chunk.rows() for chunk in self.chunks]
        key, value = (
            ChunkedTensor(
                tuple(x[side] for x in rows),
                tuple(x.get(f"{side}_scale") for x in rows),
                self._dtype,
                finite,
            )
            for side, finite in zip(("key", "value"), self._finite, strict=True)
        )
        return key, value

    def _find_or_add_chunk(
        self,
        position: int,
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
        rows: int,
    ) -> Chunk:
        """Return the chunk that holds `position`, or add one, for at least `rows` rows if there is no window."""
        for chunk in self.chunks:
            if chunk.start <= position < chunk.stop:
                return chunk
        if self.window is None:
            total = sum(chunk.size for chunk in self.chunks)
            size = max(next_chunk_size(total, self.chunk), -(-rows // self.chunk) * self.chunk)
        else:  # small, so that rows outside the window are dropped soon
            size = max(self.chunk, self.window // 16)
        if self.memory is not None:
            numbers = sum(x.numel() // x.shape[-2] * size for x in (key, value))
            new_bytes = numbers * (1 if self.int8 else key.element_size())
            if self.nbytes + new_bytes > self.memory:
                raise RefusedError(
                    f"memory must be at least {memory_text(self.nbytes + new_bytes)} to add a chunk of {size} tokens, "
                    f"got {memory_text(self.memory)}. Increase memory, or build the cache with window or int8=True."
                )
        self.chunks.append(Chunk.empty(position, size, key, value, self.int8))
        return self.chunks[-1]

    def _write(
        self, position: int, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> None:
        done, n = 0, key.shape[-2]
        while done < n:
            chunk = self._find_or_add_chunk(position + done, key, value, n - done)
            rows = slice(done, done + min(n - done, chunk.stop - position - done))
            chunk.write(position + done, key[..., rows, :], value[..., rows, :])
            done = rows.stop

    def _scatter(
        self,
        before: int | Int[Tensor, " n"],
        after: Int[Tensor, " n"],
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
    ) -> None:
        batch, n = key.shape[0], key.shape[-2]
        if after.shape != (batch,):
            raise ShapeError(
                f"lengths must have one element for each of the {batch} batch elements, got {len(after)} elements."
            )
        rows = torch.arange(n, device=key.device)
        first = before if isinstance(before, Tensor) else torch.full_like(after, before)
        element, row = ((first[:, None] + rows) < after[:, None]).nonzero(as_tuple=True)
        positions = first[element] + row
        if not len(positions):
            return
        stop, position = int(positions.max()) + 1, int(positions.min())
        while position < stop:
            chunk = self._find_or_add_chunk(position, key, value, stop - position)
            inside = (positions >= chunk.start) & (positions < chunk.stop)
            chunk.scatter(element[inside], positions[inside], row[inside], key, value)
            position = chunk.stop

    def _check(self, key: Shaped[Tensor, "*_"], value: Shaped[Tensor, "*_"]) -> None:
        for name, x in (("key", key), ("value", value)):
            if not isinstance(x, Tensor) or x.ndim < 2:
                raise ShapeError(f"{name} must be a tensor with shape (*batch, new, width), got {_describe(x)}.")
            if torch.is_grad_enabled() and x.requires_grad:
                raise GradientError(
                    f"{name} must not require a gradient, because a cache stores no autograd graph, got "
                    "requires_grad=True. Decode under torch.no_grad(), or train on whole sequences without a cache."
                )
        if key.shape[:-1] != value.shape[:-1]:
            raise ShapeError(
                f"value must have the shape of key {tuple(key.shape)} except for the width, got {tuple(value.shape)}."
            )
        if self.chunks:
            for name, x in (("key", key), ("value", value)):
                old = self.chunks[0].tensors[name]
                if (*x.shape[:-2], x.shape[-1]) != (*old.shape[:-2], old.shape[-1]):
                    raise ShapeError(
                        f"{name} must have batch axes {tuple(old.shape[:-2])} and width {old.shape[-1]}, like the "
                        f"cache, got shape {tuple(x.shape)}. Use reorder to change the batch."
                    )
                if x.dtype != self._dtype:
                    raise KindError(
                        f"{name} must have the dtype of the cache, {self._dtype}, got {x.dtype}. "
                        f"Convert it with {name}.to({self._dtype})."
                    )


def _describe(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
