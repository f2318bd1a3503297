"""A chunk of a cache: room for so many keys and values, as they are or in int8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Chunk", "packed", "size_of_next"]


@dataclass
class Chunk:
    """Workspace for keys and values that stand at `start` and after.

    Attributes:
        start: position of the first row.
        key, value: `(*batch, size, width)`; int8 where scales are given.
        key_scale, value_scale: `(*batch, size, 1)`, or None.
        filled: how many rows hold something, in the batch element that has most.
    """

    start: int
    key: Tensor
    value: Tensor
    key_scale: Tensor | None
    value_scale: Tensor | None
    filled: int = 0

    @classmethod
    def empty(cls, start: int, size: int, key: Tensor, value: Tensor, int8: bool) -> Chunk:
        """Workspace for `size` rows like those of these keys and values."""

        def room(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
            # Zeros: in a batch of uneven lengths, rows that are never written are multiplied by weights of 0.
            return torch.zeros((*x.shape[:-2], size, width), dtype=dtype, device=x.device)

        if not int8:
            rooms = [room(x, x.shape[-1], x.dtype) for x in (key, value)]
            return cls(start, rooms[0], rooms[1], None, None)
        rooms = [room(x, x.shape[-1], torch.int8) for x in (key, value)]
        scales = [room(x, 1, x.dtype) for x in (key, value)]
        return cls(start, rooms[0], rooms[1], scales[0], scales[1])

    @property
    def size(self) -> int:
        """How many rows there is room for."""
        return self.key.shape[-2]

    @property
    def stop(self) -> int:
        """One past the last position there is room for."""
        return self.start + self.size

    @property
    def nbytes(self) -> int:
        """Of everything, filled or not."""
        return sum(x.nbytes for x in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """What it is made of, by name."""
        named = {
            "key": self.key,
            "value": self.value,
            "key_scale": self.key_scale,
            "value_scale": self.value_scale,
        }
        return {name: x for name, x in named.items() if x is not None}

    def rows(self) -> dict[str, Tensor]:
        """The filled part, as views."""
        return {name: x[..., : self.filled, :] for name, x in self.tensors().items()}

    def write(self, at: int, key: Tensor, value: Tensor) -> None:
        """Put rows at a position, the same in the whole batch."""
        for name, x in self._packed(key, value).items():
            first = at - self.start
            getattr(self, name)[..., first : first + x.shape[-2], :] = x
        self.filled = max(self.filled, at - self.start + key.shape[-2])

    def scatter(self, element: Tensor, at: Tensor, row: Tensor, key: Tensor, value: Tensor) -> None:
        """Put row `row[i]` of batch element `element[i]` at position `at[i]`, for each i."""
        for name, x in self._packed(key, value).items():
            room = getattr(self, name)
            # (batch, *more, rows, width) as (batch, rows, *more, width): indices side by side, in front.
            room.movedim(-2, 1)[element, at - self.start] = x.movedim(-2, 1)[element, row]
        if len(at):
            self.filled = max(self.filled, int(at.max()) - self.start + 1)

    def take(self, index: Tensor) -> None:
        """Other elements of the first batch axis in place of those that are here."""
        for name, x in self.tensors().items():
            setattr(self, name, x.index_select(0, index))

    def copy(self) -> Chunk:
        """One that shares nothing with this."""
        copies = {name: x.clone() for name, x in self.tensors().items()}
        return Chunk(
            self.start,
            copies["key"],
            copies["value"],
            copies.get("key_scale"),
            copies.get("value_scale"),
            self.filled,
        )

    def _packed(self, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        if self.key_scale is None:
            return {"key": key, "value": value}
        keys, key_scale = packed(key)
        values, value_scale = packed(value)
        return {"key": keys, "value": values, "key_scale": key_scale, "value_scale": value_scale}


def packed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8 and the number by which each is multiplied to have it again.

        scale = max |x| / 127        |x − scale · round(x / scale)| ≤ scale / 2

    A row that is not finite becomes NaN.

    Source: Dettmers et al. (2022), LLM.int8(), section 2, https://arxiv.org/abs/2208.07339 ("vector-wise").

    Example:
        >>> numbers, scale = packed(torch.tensor([[1.0, -2.0]]))
        >>> numbers, (numbers * scale).round(decimals=3)
        (tensor([[  64, -127]], dtype=torch.int8), tensor([[ 1.0080, -2.0000]]))
    """
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    steps = torch.nan_to_num(x / scale).round().clamp(-127, 127)  # 0/0 in a row of zeros
    return steps.to(torch.int8), scale


def size_of_next(total: int, chunk: int) -> int:
    """Rows of the next chunk: a sixteenth of what is there, so that little stands empty and chunks stay few.

    Example:
        >>> size_of_next(0, 128), size_of_next(2048, 128), size_of_next(100_000, 128)
        (128, 128, 6240)
    """
    return max(chunk, total // 256 * 16)
