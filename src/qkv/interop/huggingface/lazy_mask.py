"""A mask that models hand through as if it were an array of all pairs, and that is none until one looks.

It is a tensor of shape (batch, 1, q, k) without its storage: 0 where a query may attend, and the most
negative number where it may not. That is transformers' mask for `eager`, the one that every model knows.
Layers that only pass it on, crop its keys or ask for its shape never make it. Whatever else is done to it
makes the array, so that models which add to it, index it or write into it are right too; they pay for it in
memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.masks.base import Mask

__all__ = ["LazyMask"]

_PASSED_ON = ("aten::detach", "aten::alias")


class LazyMask(torch.Tensor):
    """Which of q queries may attend to which of k keys, the same for all heads.

    Args:
        mask: what it says, with batch axes (batch, 1); None: all pairs meet.
        positions: of the queries among the keys.
        shape: (batch, 1, q, k).
        device: where the array would be.
        dtype: of its numbers.
    """

    mask: Mask | None
    positions: Positions
    crop: int
    of: tuple[int, ...]
    array: torch.Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        mask: Mask | None,
        positions: Positions,
        shape: tuple[int, ...],
        device: Any = "cpu",
        dtype: torch.dtype = torch.float32,
        crop: int = 0,
    ) -> LazyMask:
        """`shape` is before the last `crop` keys are left out."""
        shown = (*shape[:-1], shape[-1] - crop)
        out: LazyMask = torch.Tensor._make_wrapper_subclass(cls, shown, dtype=dtype, device=device)
        out.mask, out.positions, out.of, out.crop, out.array = mask, positions, tuple(shape), crop, None
        return out

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def parts(self) -> tuple[Mask | None, Positions]:
        """The mask and the positions that say what this says, for as many keys as it shows.

        They do not know what was written into the array: where there is one, it counts.
        """
        if self.mask is None or not self.crop:
            return self.mask, self.positions
        return self.mask.slice(slice(None), slice(0, self.shape[-1])), self.positions

    def dense(self) -> torch.Tensor:
        """The array of all pairs. It is kept: what is written into it counts from then on."""
        if self.array is None:
            batch, _, q, k = self.shape
            mask, positions = self.parts()
            self.array = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            if mask is not None:
                allowed = mask.allowed(Tile.whole(q, k, (batch, 1), positions), self.array)
                self.array.masked_fill_(~allowed, torch.finfo(self.dtype).min)
        return self.array

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """What it says, without making it."""
        said = "an array" if self.array is not None else str(self.mask or "all pairs")
        return f"LazyMask({said}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Pass on and crop without looking; for all else make the array."""
        name, first = func._schema.name, args[0] if args else None
        if isinstance(first, LazyMask) and first.array is None:
            if name in _PASSED_ON:
                return cls(first.mask, first.positions, first.of, first.device, first.dtype, first.crop)
            if name == "aten::slice" and (kept := _kept(first, *args[1:])) is not None:
                crop = first.of[-1] - kept
                return cls(first.mask, first.positions, first.of, first.device, first.dtype, crop)

        def made(x: Any) -> Any:
            return x.dense() if isinstance(x, LazyMask) else x

        return func(*tree_map(made, args), **tree_map(made, kwargs or {}))


def _kept(mask: LazyMask, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> int | None:
    """How many keys remain, where nothing but the last keys is cut away; None where something else is."""
    length, shown = int(mask.shape[dim]), int(mask.shape[-1])
    stop: int = length if end is None else int(end)
    if start not in (None, 0) or step != 1 or stop < 0:
        return None
    if dim % 4 == 3:
        return min(stop, length)
    return shown if stop >= length else None
