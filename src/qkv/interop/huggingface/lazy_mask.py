"""Mask tensor of q · k elements, which are allocated only when an operation needs them.

`LazyMask` is a wrapper tensor of shape (batch, 1, q, k) without storage. Its elements are 0 for allowed pairs
and the most negative float for masked pairs, as in the mask that transformers passes to `eager` attention, which
every model supports. Passing the mask on, cropping its last keys and reading its shape allocate nothing. Every
other operation first allocates the array, so models that add to the mask, index it or write into it compute the
same results as with an array, with quadratic memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch.utils._pytree import tree_map

from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Float, Tensor
from qkv.masks.base import Mask

__all__ = ["LazyMask"]

_KEEP_LAZY = ("aten::detach", "aten::alias")


class LazyMask(torch.Tensor):
    """Mask tensor for q queries and k keys, whose elements are allocated only when an operation needs them.

    The mask is the same for all heads.

    Args:
        mask: the mask, with batch axes (batch, 1); None allows all pairs.
        positions: positions of the queries among the keys.
        shape: (batch, 1, q, k), before cropping.
        device: device of the array.
        dtype: dtype of the array.
        crop: number of keys to leave out at the end.
    """

    mask: Mask | None
    positions: Positions
    crop: int
    uncropped_shape: tuple[int, ...]
    array: torch.Tensor | None
    step: tuple[int, tuple[int, int], torch.Tensor | None] | None
    """Number of keys, range of those that the mask allows, and what it adds to the logits, of a decoding step."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        mask: Mask | None,
        positions: Positions,
        shape: tuple[int, ...],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        crop: int = 0,
    ) -> LazyMask:
        """Create the tensor without allocating its elements."""
        cropped = (*shape[:-1], shape[-1] - crop)
        out: LazyMask = torch.Tensor._make_wrapper_subclass(cls, cropped, dtype=dtype, device=torch.device(device))
        out.mask, out.positions, out.uncropped_shape, out.crop, out.array = mask, positions, tuple(shape), crop, None
        out.step = None
        return out

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def parts(self) -> tuple[Mask | None, Positions]:
        """Return the mask, restricted to the keys that are not cropped, and the positions of the queries.

        The mask does not reflect writes into the array: if `array` is not None, use the array.
        """
        if self.mask is None or not self.crop:
            return self.mask, self.positions
        return self.mask.slice(slice(None), slice(0, self.shape[-1])), self.positions

    def dense(self) -> Float[Tensor, "batch 1 q k"]:
        """Return the mask as an array, which is allocated by the first call and keeps later writes."""
        if self.array is None:
            batch, _, q, k = self.shape
            mask, positions = self.parts()
            self.array = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            if mask is not None:
                allowed = cast(torch.Tensor, mask.allowed(Tile.whole(q, k, (batch, 1), positions), self.array))
                self.array.masked_fill_(~allowed, torch.finfo(self.dtype).min)
        return self.array

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Return a description of the mask, without allocating its elements."""
        content = "an array" if self.array is not None else str(self.mask or "all pairs")
        return f"LazyMask({content}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Return a lazy mask for operations that detach or crop it. Run all others on the array."""
        name, first = func._schema.name, args[0] if args else None
        if isinstance(first, LazyMask) and first.array is None:
            if name in _KEEP_LAZY:
                return cls(first.mask, first.positions, first.uncropped_shape, first.device, first.dtype, first.crop)
            if name == "aten::slice" and (length := _cropped_length(first, *args[1:])) is not None:  # type: ignore[arg-type]
                crop = first.uncropped_shape[-1] - length
                return cls(first.mask, first.positions, first.uncropped_shape, first.device, first.dtype, crop)

        def allocate(x: object) -> object:
            return x.dense() if isinstance(x, LazyMask) else x

        return func(*tree_map(allocate, args), **tree_map(allocate, kwargs or {}))


def _cropped_length(
    mask: LazyMask, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> int | None:
    """Return the number of keys that a slice leaves, or None if it does more than remove keys at the end."""
    length, keys = int(mask.shape[dim]), int(mask.shape[-1])
    stop = length if end is None else int(end)
    if start not in (None, 0) or step != 1 or stop < 0:
        return None
    if dim % 4 == 3:
        return min(stop, length)
    return keys if stop >= length else None
