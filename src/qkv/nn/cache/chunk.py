"""A chunk of a key-value cache, which preallocates rows of keys and values, optionally quantized to int8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.typing import Float, Int, Num


@dataclass
class Chunk:
    """Preallocated rows of keys and values for the positions from `start` to `stop` − 1.

    Attributes:
        start: position of the first row.
        tensors: "key" and "value" `(*batch, size, width)`; with int8 also the scales "key_scale" and "value_scale"
            `(*batch, size, 1)`.
        filled: number of filled rows; the maximum over the batch if the lengths differ.
        shared: whether another cache reads the same memory, so that it must not be written.
    """

    start: int
    tensors: dict[str, Num[Tensor, "*batch size _"]]
    filled: int = 0
    shared: bool = False

    @classmethod
    def empty(
        cls,
        start: int,
        size: int,
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
        int8: bool,
    ) -> Chunk:
        """Allocate a chunk of `size` rows for keys and values like `key` and `value`, quantized if `int8` is True."""
        # Filled with zeros, because in a batch of uneven lengths unwritten rows are multiplied by weights of 0.
        # Tensors that are created in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            rows = encode_rows(key[..., :0, :], value[..., :0, :], int8)
            return cls(start, {name: x.new_zeros((*x.shape[:-2], size, x.shape[-1])) for name, x in rows.items()})

    @property
    def size(self) -> int:
        """Number of rows that are allocated for each batch element."""
        return self.tensors["key"].shape[-2]

    @property
    def stop(self) -> int:
        """Position of the last allocated row plus 1."""
        return self.start + self.size

    @property
    def nbytes(self) -> int:
        """Number of bytes that are allocated for all tensors of the chunk."""
        return sum(x.nbytes for x in self.tensors.values())

    def resize(self, start: int, size: int) -> None:
        """Reallocate the chunk for `size` rows from position `start` on, and copy the rows in this range.

        The tensors are replaced one by one, so that memory never holds two copies of the whole chunk.
        """
        first = start - self.start
        copied = max(0, min(self.filled - first, size))
        for name, x in self.tensors.items():
            with torch.inference_mode(False):
                new = x.new_empty((*x.shape[:-2], size, x.shape[-1]))
                new[..., :copied, :] = x[..., first : first + copied, :]
                new[..., copied:, :] = 0
                self.tensors[name] = new
        self.start, self.filled, self.shared = start, copied, False

    def fork(self) -> Chunk:
        """Return a chunk with the filled rows of this chunk, in the same memory. Neither writes to it from now on."""
        self.tensors, self.shared = self.rows(), True
        return Chunk(self.start, dict(self.tensors), self.filled, True)

    def rows(self) -> dict[str, Num[Tensor, "*batch filled _"]]:
        """Return the filled rows of each tensor of the chunk, as views, by the name of the tensor."""
        return {name: x.narrow(-2, 0, self.filled) for name, x in self.tensors.items()}

    def write(
        self, position: int, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> None:
        """Write keys and values at consecutive positions from `position`, the same in every batch element."""
        if self.shared:
            self._own()
        first, n = position - self.start, key.shape[-2]
        int8 = "key_scale" in self.tensors
        for name, x in (encode_rows(key, value, True) if int8 else {"key": key, "value": value}).items():
            self.tensors[name].narrow(-2, first, n).copy_(x)
        self.filled = max(self.filled, first + n)

    def scatter(
        self,
        element: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        row: Int[Tensor, " n"],
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
    ) -> None:
        """Write row `row[i]` of batch element `element[i]` of key and value to position `position[i]`, for each i."""
        if self.shared:
            self._own()
        for name, x in encode_rows(key, value, "key_scale" in self.tensors).items():
            # (batch, *more, rows, width) as (batch, rows, *more, width), so that both indexed axes come first.
            self.tensors[name].movedim(-2, 1)[element, position - self.start] = x.movedim(-2, 1)[element, row]
        if len(position):
            self.filled = max(self.filled, int(position.max()) - self.start + 1)

    def take(self, index: Int[Tensor, " new_batch"]) -> None:
        """Replace the batch by its elements at the indices `index`, in the order of `index`."""
        for name, x in self.tensors.items():
            with torch.inference_mode(False):
                self.tensors[name] = x.index_select(0, index)
        self.shared = False

    def copy(self) -> Chunk:
        """Return a copy of the chunk that shares no memory with it."""
        with torch.inference_mode(False):
            return Chunk(self.start, {name: x.clone() for name, x in self.tensors.items()}, self.filled)

    def _own(self) -> None:
        """Copy the tensors, which another cache reads, before they are written."""
        self.tensors, self.shared = self.copy().tensors, False


def encode_rows(
    key: Float[Tensor, "*batch rows width"], value: Float[Tensor, "*batch rows value_width"], int8: bool
) -> dict[str, Num[Tensor, "*batch rows _"]]:
    """Return "key" and "value" as a cache stores them; if `int8` is True, quantized, and "key_scale", "value_scale"."""
    if not int8:
        return {"key": key, "value": value}
    keys, key_scale = _quantize_int8(key)
    values, value_scale = _quantize_int8(value)
    return {"key": keys, "value": values, "key_scale": key_scale, "value_scale": value_scale}


def _quantize_int8(
    x: Float[Tensor, "*batch rows width"],
) -> tuple[Int[Tensor, "*batch rows width"], Float[Tensor, "*batch rows 1"]]:
    """Return each row quantized to int8, and the scale of each row.

        scale = max |x| / 127        |x − scale · round(x / scale)| ≤ scale / 2

    A row that contains NaN or infinity becomes NaN.

    Source: Dettmers et al. (2022), LLM.int8(), section 2, https://arxiv.org/abs/2208.07339 ("vector-wise").

    Example:
        >>> numbers, scale = _quantize_int8(torch.tensor([[1.0, -2.0]]))
        >>> numbers, (numbers * scale).round(decimals=3)
        (tensor([[  64, -127]], dtype=torch.int8), tensor([[ 1.0080, -2.0000]]))
    """
    x = x if x.dtype == torch.float64 else x.float()  # float16 would round a small scale to 0
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    steps = torch.nan_to_num(x / scale).round().clamp(-127, 127)  # a row of zeros gives 0/0
    return steps.to(torch.int8), scale


def next_chunk_size(total: int, chunk: int) -> int:
    """Return the number of rows of the next chunk: `total`/16 rounded down to a multiple of 16, at least `chunk`.

    Chunks in proportion to the cache bound both the unused capacity and the number of chunks.

    Example:
        >>> next_chunk_size(0, 128), next_chunk_size(2048, 128), next_chunk_size(100_000, 128)
        (128, 128, 6240)
    """
    return max(chunk, total // 256 * 16)
