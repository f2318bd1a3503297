"""One chunk of a key-value cache: preallocated rows of keys and values, optionally quantized to int8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.typing import Float, Int

__all__ = ["Chunk", "next_chunk_size", "quantize_int8"]


@dataclass
class Chunk:
    """Keys and values of the positions from `start` to `stop`.

    Attributes:
        start: position of the first row.
        key: keys `(*batch, size, width)`, int8 if there are scales.
        value: values `(*batch, size, width)`, int8 if there are scales.
        key_scale: scales of the keys `(*batch, size, 1)`, or None.
        value_scale: scales of the values `(*batch, size, 1)`, or None.
        filled: number of filled rows, in the batch element that has most.
    """

    start: int
    key: Tensor
    value: Tensor
    key_scale: Tensor | None
    value_scale: Tensor | None
    filled: int = 0

    @classmethod
    def empty(cls, start: int, size: int, key: Tensor, value: Tensor, int8: bool) -> Chunk:
        """Allocate `size` rows for keys and values like the given ones."""

        def allocate(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
            # Zeros: in a batch of uneven lengths, rows that are never written are multiplied by weights of 0.
            return torch.zeros((*x.shape[:-2], size, width), dtype=dtype, device=x.device)

        keys, values = (allocate(x, x.shape[-1], torch.int8 if int8 else x.dtype) for x in (key, value))
        if not int8:
            return cls(start, keys, values, None, None)
        return cls(start, keys, values, allocate(key, 1, key.dtype), allocate(value, 1, value.dtype))

    @property
    def size(self) -> int:
        """Number of allocated rows."""
        return self.key.shape[-2]

    @property
    def stop(self) -> int:
        """One past the last allocated position."""
        return self.start + self.size

    @property
    def nbytes(self) -> int:
        """Number of allocated bytes."""
        return sum(x.nbytes for x in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by attribute name."""
        named = {
            "key": self.key,
            "value": self.value,
            "key_scale": self.key_scale,
            "value_scale": self.value_scale,
        }
        return {name: x for name, x in named.items() if x is not None}

    def rows(self) -> dict[str, Tensor]:
        """Return the filled rows of each tensor, as views."""
        return {name: x[..., : self.filled, :] for name, x in self.tensors().items()}

    def write(
        self, position: int, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> None:
        """Write rows from a position that is the same in the whole batch."""
        for name, x in self._encode(key, value).items():
            first = position - self.start
            getattr(self, name)[..., first : first + x.shape[-2], :] = x
        self.filled = max(self.filled, position - self.start + key.shape[-2])

    def scatter(
        self,
        element: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        row: Int[Tensor, " n"],
        key: Float[Tensor, "*batch new width"],
        value: Float[Tensor, "*batch new value_width"],
    ) -> None:
        """Write row `row[i]` of batch element `element[i]` to `position[i]`, for each i."""
        for name, x in self._encode(key, value).items():
            target = getattr(self, name)
            # (batch, *more, rows, width) as (batch, rows, *more, width), so that both indexed axes come first.
            target.movedim(-2, 1)[element, position - self.start] = x.movedim(-2, 1)[element, row]
        if len(position):
            self.filled = max(self.filled, int(position.max()) - self.start + 1)

    def take(self, index: Int[Tensor, " new_batch"]) -> None:
        """Replace the batch by the elements at `index`."""
        for name, x in self.tensors().items():
            setattr(self, name, x.index_select(0, index))

    def copy(self) -> Chunk:
        """Return a copy that shares no memory."""
        copies = {name: x.clone() for name, x in self.tensors().items()}
        return Chunk(
            self.start,
            copies["key"],
            copies["value"],
            copies.get("key_scale"),
            copies.get("value_scale"),
            self.filled,
        )

    def _encode(self, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        if self.key_scale is None:
            return {"key": key, "value": value}
        keys, key_scale = quantize_int8(key)
        values, value_scale = quantize_int8(value)
        return {"key": keys, "value": values, "key_scale": key_scale, "value_scale": value_scale}


def quantize_int8(
    x: Float[Tensor, "*batch rows width"],
) -> tuple[Int[Tensor, "*batch rows width"], Float[Tensor, "*batch rows 1"]]:
    """Quantize each row to int8 with one scale.

        scale = max |x| / 127        |x − scale · round(x / scale)| ≤ scale / 2

    A row that is not finite becomes NaN.

    Source: Dettmers et al. (2022), LLM.int8(), section 2, https://arxiv.org/abs/2208.07339 ("vector-wise").

    Example:
        >>> numbers, scale = quantize_int8(torch.tensor([[1.0, -2.0]]))
        >>> numbers, (numbers * scale).round(decimals=3)
        (tensor([[  64, -127]], dtype=torch.int8), tensor([[ 1.0080, -2.0000]]))
    """
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    steps = torch.nan_to_num(x / scale).round().clamp(-127, 127)  # 0/0 in a row of zeros
    return steps.to(torch.int8), scale


def next_chunk_size(total: int, chunk: int) -> int:
    """Return the rows of the next chunk: 1/16 of the cache, which bounds both unused capacity and chunk count.

    Example:
        >>> next_chunk_size(0, 128), next_chunk_size(2048, 128), next_chunk_size(100_000, 128)
        (128, 128, 6240)
    """
    return max(chunk, total // 256 * 16)
