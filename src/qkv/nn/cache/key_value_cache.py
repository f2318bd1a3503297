"""KeyValueCache: keys and values of a sequence that is still being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from qkv.core.positions import Positions
from qkv.errors import DataError, GradientError, KindError, OptionError, RefusedError, ShapeError
from qkv.kernels.chunked.kernel import ChunkedTensor
from qkv.masks import Lengths, Mask, Window
from qkv.nn.cache.chunk import Chunk, size_of_next
from qkv.nn.cache.safetensors_file import read, write
from qkv.plan.cost import memory_bytes, memory_text

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """What a module has seen: `module(x, cache=cache)` attends to it and adds its own keys and values.

    It grows by chunks. Nothing that was kept is copied again: a call attends to the chunks one by one
    (`kernels/chunked/kernel.py`). Unused capacity is at most max(one chunk, 1/16 of the
    cache). One cache serves one attention; a model holds a list of them. It keeps no graph: decode under
    `torch.no_grad()`.

    Args:
        chunk: rows of the smallest chunk.
        window: a query sees so many keys, its own among them; what no later query can see is dropped, a whole
            chunk at a time. None: all.
        int8: keep each row as int8 with one scale: a quarter of float32, wrong by at most 1/254 of the
            row's largest number.
        memory: most bytes it may take, in bytes or as "512 MiB"; None: no limit.
        lengths: as in `expect`.

    Raises:
        OptionError: an option outside what is allowed.

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
        lengths: Tensor | None = None,
    ) -> None:
        for name, n in (("chunk", chunk), ("window", window)):
            if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
                raise OptionError(f"KeyValueCache was given {name}={n!r}. It must be a whole number from 1.")
        self.chunk, self.window, self.int8 = chunk, window, int8
        self.memory = None if memory is None else memory_bytes(memory)
        self.chunks: list[Chunk] = []
        self._dtype: Any = None
        self._clean = [True, True]
        self._total: int | Tensor = 0
        self._before: int | Tensor = 0
        self._first = 0
        self._expected: Tensor | None = None
        if lengths is not None:
            self.set_lengths(lengths)

    # -- what a module asks for -------------------------------------------------------------------------

    @property
    def start(self) -> int | Tensor:
        """Where the next key stands: how many came before; integers `(batch,)` where lengths are uneven."""
        return self._total

    @property
    def positions(self) -> Positions:
        """Where query 0 of the last `append` stands, counted from the first key that it gave."""
        return Positions(query_start=self._before - self._first)

    @property
    def mask(self) -> Mask | None:
        """Which of the keys that the last `append` gave are there and within the window; None: all."""
        there = Lengths(self._total - self._first) if isinstance(self._total, Tensor) else None
        if self.window is None:
            return there
        near = Window(self.window - 1, 0)
        return near if there is None else there & near

    def append(self, key: Tensor, value: Tensor) -> tuple[Any, Any]:
        """Keep keys `(*batch, new, width)` and their values; give all that are to be read.

        Those given are the arguments themselves where nothing came before, else `ChunkedTensor`: the chunks, as
        views.

        Raises:
            ShapeError, KindError: they do not fit each other, or what is kept.
            GradientError: a gradient would have to flow into what is kept.
            RefusedError: more than `memory`.
        """
        self._check(key, value)
        before = {**self.__dict__, "chunks": list(self.chunks), "_clean": list(self._clean)}
        filled = [chunk.filled for chunk in self.chunks]
        try:
            return self._append(key, value)
        except BaseException:  # as if nothing had come
            self.__dict__.update(before)
            for chunk, n in zip(self.chunks, filled, strict=True):
                chunk.filled = n
            raise

    def _append(self, key: Tensor, value: Tensor) -> tuple[Any, Any]:
        n, before = key.shape[-2], self._total
        lengths, self._expected = self._expected, None
        after = before + (n if lengths is None else lengths.to(key.device))
        alone = not len(self)
        self._before = before
        oldest = 0 if self.window is None else self._shortest(before) - self.window + 1
        self.chunks = [chunk for chunk in self.chunks if chunk.stop > oldest]
        self._dtype = key.dtype
        for side, x in enumerate((key, value)):
            self._clean[side] &= bool(x.isfinite().all())
        if isinstance(after, int):
            skipped = 0
            if alone and self.window is not None:  # of a long beginning, what a later query can see
                skipped = max(0, n - self.window + 1)
            self._write(int(before) + skipped, key[..., skipped:, :], value[..., skipped:, :])
        else:
            self._scatter(before, after, key, value)
        self._total = after
        self._first = 0 if alone else self.chunks[0].start
        return (key, value) if alone else self._pieces()

    # -- what an owner asks for -------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many tokens came, dropped ones included; of uneven lengths the longest."""
        return self._total if isinstance(self._total, int) else int(self._total.max())

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def set_lengths(self, lengths: Tensor) -> Self:
        """Of the next tokens, only the first `lengths[b]` of batch element b are real; the rest is padding.

        From then on every element goes on where its own tokens end: its positions have no gap.

        Raises:
            KindError, ShapeError: no integers `(batch,)`.
        """
        if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise KindError("lengths must be a tensor of integers (batch,).")
        if lengths.ndim != 1:
            raise ShapeError(f"lengths have shape {tuple(lengths.shape)}; they must be (batch,).")
        self._expected = lengths.long()
        return self

    def reorder(self, index: Tensor) -> Self:
        """Element b of the batch goes on as a copy of what was element `index[b]`: beams that survive.

        Args:
            index: integers `(new_batch,)` into the first axis; more or fewer than there are.

        Raises:
            KindError: no integers.
        """
        if not isinstance(index, Tensor) or index.ndim != 1 or index.is_floating_point():
            raise KindError("reorder wants a tensor of integers (new_batch,): index of the old element.")
        if not self.chunks:
            return self
        index = index.long().to(self.chunks[0].key.device)
        batch = self.chunks[0].key.shape[0]
        if len(index) == batch and torch.equal(index, torch.arange(batch, device=index.device)):
            return self
        for chunk in self.chunks:  # one after another: never two of the whole
            chunk.take(index)
        if isinstance(self._total, Tensor):
            self._total = self._total[index]
        return self

    def copy(self) -> KeyValueCache:
        """One that holds the same and shares nothing: what is appended to one does not change the other."""
        other = KeyValueCache(chunk=self.chunk, window=self.window, int8=self.int8, memory=self.memory)
        other.__dict__.update(self.__dict__)
        other.chunks, other._clean = [chunk.copy() for chunk in self.chunks], list(self._clean)
        return other

    def key_value(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        """All that is kept, as views.

        Raises:
            ShapeError: nothing came yet.
        """
        if not self.chunks:
            raise ShapeError("the cache is empty. Append keys and values first.")
        return self._pieces()

    def save(self, path: str | Path) -> None:
        """Write it to a safetensors file, whole or not at all.

        Raises:
            MissingPackageError: safetensors is not installed.
        """
        facts: dict[str, Any] = {
            "chunk": self.chunk,
            "window": self.window,
            "int8": self.int8,
            "memory": self.memory,
            "dtype": str(self._dtype).removeprefix("torch."),
            "clean": self._clean,
            "starts": [chunk.start for chunk in self.chunks],
        }
        tensors = {f"{name}.{n}": x for n, c in enumerate(self.chunks) for name, x in c.rows().items()}
        if isinstance(self._total, Tensor):
            tensors["total"] = self._total
        else:
            facts["total"] = self._total
        write(Path(path), tensors, facts)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> KeyValueCache:
        """Read what `save` wrote.

        Raises:
            DataError: there is no such file, or it is no cache.
            MissingPackageError: safetensors is not installed.
        """
        tensors, facts = read(Path(path), device)
        try:
            cache = cls(**{name: facts[name] for name in ("chunk", "window", "int8", "memory")})
            cache._clean, cache._dtype = list(facts["clean"]), getattr(torch, facts["dtype"], None)
            cache._total = cache._before = facts["total"] if "total" in facts else tensors["total"]
            for n, start in enumerate(facts["starts"]):
                key, value = tensors[f"key.{n}"], tensors[f"value.{n}"]
                scales = [tensors[f"{name}_scale.{n}"] if cache.int8 else None for name in ("key", "value")]
                cache.chunks.append(Chunk(start, key, value, scales[0], scales[1], key.shape[-2]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not a whole cache: {error} is missing or wrong.") from None
        return cache

    def __repr__(self) -> str:
        said = f"{len(self)} tokens in {len(self.chunks)} chunks, {memory_text(self.nbytes)}"
        more = f", window={self.window}" if self.window is not None else ""
        return f"KeyValueCache({said}{more}{', int8' if self.int8 else ''})"

    # -- how --------------------------------------------------------------------------------------------

    def _pieces(self) -> tuple[ChunkedTensor, ChunkedTensor]:
        rows = [chunk.rows() for chunk in self.chunks]
        key, value = (
            ChunkedTensor(
                tuple(x[side] for x in rows),
                tuple(x.get(f"{side}_scale") for x in rows),
                self._dtype,
                clean,
            )
            for side, clean in zip(("key", "value"), self._clean, strict=True)
        )
        return key, value

    def _room(self, at: int, key: Tensor, value: Tensor, wanted: int) -> Chunk:
        """The chunk in which position `at` stands; a new one where there is none yet."""
        for chunk in self.chunks:
            if chunk.start <= at < chunk.stop:
                return chunk
        kept = sum(chunk.size for chunk in self.chunks)
        if self.window is None:
            size = max(size_of_next(kept, self.chunk), -(-wanted // self.chunk) * self.chunk)
        else:  # so small that what leaves the window is soon dropped
            size = max(self.chunk, self.window // 16)
        numbers = [x.numel() // x.shape[-2] * size for x in (key, value)]
        if self.memory is not None:
            each = 1 if self.int8 else key.element_size()
            bytes_ = sum(numbers) * each
            if self.nbytes + bytes_ > self.memory:
                raise RefusedError(
                    f"the cache holds {memory_text(self.nbytes)}, the next {size} tokens take "
                    f"{memory_text(bytes_)}, and {memory_text(self.memory)} are allowed. Give more memory=…, "
                    "window=…, or int8=True."
                )
        self.chunks.append(Chunk.empty(at, size, key, value, self.int8))
        return self.chunks[-1]

    def _write(self, at: int, key: Tensor, value: Tensor) -> None:
        done, n = 0, key.shape[-2]
        while done < n:
            chunk = self._room(at + done, key, value, n - done)
            some = slice(done, done + min(n - done, chunk.stop - at - done))
            chunk.write(at + done, key[..., some, :], value[..., some, :])
            done = some.stop

    def _scatter(self, before: int | Tensor, after: Tensor, key: Tensor, value: Tensor) -> None:
        batch, n = key.shape[0], key.shape[-2]
        if after.shape != (batch,):
            raise ShapeError(f"there are lengths of {len(after)} batch elements, and keys of {batch}.")
        rows = torch.arange(n, device=key.device)
        first = before if isinstance(before, Tensor) else torch.full_like(after, before)
        element, row = ((first[:, None] + rows) < after[:, None]).nonzero(as_tuple=True)
        at = first[element] + row
        if not len(at):
            return
        stop, here = int(at.max()) + 1, int(at.min())
        while here < stop:
            chunk = self._room(here, key, value, stop - here)
            mine = (at >= chunk.start) & (at < chunk.stop)
            chunk.scatter(element[mine], at[mine], row[mine], key, value)
            here = chunk.stop

    def _shortest(self, total: int | Tensor) -> int:
        return total if isinstance(total, int) else int(total.min())

    def _check(self, key: Tensor, value: Tensor) -> None:
        for name, x in (("key", key), ("value", value)):
            if not isinstance(x, Tensor) or x.ndim < 2:
                raise ShapeError(f"the {name} must be a tensor (*batch, new, width).")
            if torch.is_grad_enabled() and x.requires_grad:
                raise GradientError(
                    f"the {name} requires a gradient, and a cache keeps numbers without a graph: it would be "
                    "missing. Decode under torch.no_grad(), or train on whole sequences without a cache."
                )
        if key.shape[:-1] != value.shape[:-1]:
            raise ShapeError(f"keys have shape {tuple(key.shape)}, values {tuple(value.shape)}.")
        if self.chunks:
            kept, dtype = self.chunks[0], self._dtype
            for name, x, old in (("keys", key, kept.key), ("values", value, kept.value)):
                if (*x.shape[:-2], x.shape[-1]) != (*old.shape[:-2], old.shape[-1]):
                    raise ShapeError(
                        f"{name} have shape {tuple(x.shape)}, those in the cache {tuple(old.shape)}. Only "
                        "the length may differ; reorder changes the batch."
                    )
                if x.dtype != dtype:
                    raise KindError(f"{name} are {x.dtype}, those in the cache {dtype}. Convert them.")
