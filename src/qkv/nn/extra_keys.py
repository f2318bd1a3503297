"""Append learned or zero keys to the keys of a call, and extend the mask so that all queries may attend to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.core.typing import Bool, DType, Float, Shaped
from qkv.kernels.chunked.kernel import ChunkedTensor, concat_chunks
from qkv.masks.base import Mask

__all__ = ["ExtraKeysMask", "append_extra_keys"]


@dataclass(frozen=True, eq=False)
class ExtraKeysMask(Mask):
    """Mask that applies an inner mask to all keys but the last `extra` ones, which it always allows.

    The inner mask is evaluated without the extra keys: its arrays have one element for each other key, and causal
    alignment is relative to the other keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> from qkv.masks import Causal
        >>> ExtraKeysMask(Causal(), 1).allowed(Tile.whole(2, 3), np.zeros(()))
        array([[ True, False,  True],
               [ True,  True,  True]])
    """

    mask: Mask
    extra: int

    def check(self, q: int, k: int) -> None:
        """Raise a `ShapeError` if the arrays of the inner mask do not fit `q` queries and `k` − `extra` keys."""
        self.mask.check(q, k - self.extra)

    def bind(
        self,
        reference: Shaped[Array, "*_"],
        batch: tuple[int, ...],
        dtype: DType = None,
        lengths: dict[str, int] | None = None,
    ) -> Self:
        """Return the mask with its inner mask bound to the arrays of a call, without the extra keys."""
        lengths = dict(lengths or {})
        if "k" in lengths:
            lengths["k"] -= self.extra
        return dataclasses.replace(self, mask=self.mask.bind(reference, batch, dtype, lengths))

    def allowed(self, tile: Tile, reference: Shaped[Array, "*_"]) -> Bool[Array, "*batch q k"]:
        """Return a boolean array that is True for allowed pairs of the tile, among them all pairs of an extra key."""
        k = tile.k_total - self.extra
        inner = dataclasses.replace(tile, cols=(min(tile.cols[0], k), min(tile.cols[1], k)), k_total=k)
        extra = tile.cols[1] - tile.cols[0] - (inner.cols[1] - inner.cols[0])
        xp = namespace(reference)
        allowed = self.mask.allowed(inner, reference)
        shape = (*allowed.shape[:-2], tile.rows[1] - tile.rows[0])
        allowed = xp.broadcast_to(allowed, (*shape, inner.cols[1] - inner.cols[0]))
        always = xp.ones_like(allowed[..., :1]) if allowed.shape[-1] else xp.ones((*shape, 1), dtype=xp.bool)
        joined: Array = xp.concat([allowed, xp.broadcast_to(always, (*shape, extra))], axis=-1)
        return joined

    def __str__(self) -> str:
        return f"({self.mask} and {self.extra} extra keys)"


def append_extra_keys(
    key: Float[Tensor, "*#batch key_heads k head_width"] | ChunkedTensor,
    value: Float[Tensor, "*#batch key_heads k head_value_width"] | ChunkedTensor,
    mask: Mask | None,
    learned: Sequence[tuple[Float[Tensor, "key_heads 1 head_width"], Float[Tensor, "key_heads 1 head_value_width"]]],
    zero: bool,
) -> tuple[
    Float[Tensor, "*#batch key_heads all_keys head_width"] | ChunkedTensor,
    Float[Tensor, "*#batch key_heads all_keys head_value_width"] | ChunkedTensor,
    Mask | None,
]:
    """Return keys, values and mask, extended by learned keys and values and, if `zero`, by a zero key and value."""
    if not learned and not zero:
        return key, value, mask
    all_keys, all_values = concat_chunks(key), concat_chunks(value)
    extra = [(k.to(all_keys.dtype), v.to(all_values.dtype)) for k, v in learned]
    if zero:
        zeros = all_keys.new_zeros(1, 1, all_keys.shape[-1]), all_values.new_zeros(1, 1, all_values.shape[-1])
        extra.append(zeros)
    keys = [all_keys, *[k.expand(*all_keys.shape[:-2], 1, all_keys.shape[-1]) for k, _ in extra]]
    values = [all_values, *[v.expand(*all_values.shape[:-2], 1, all_values.shape[-1]) for _, v in extra]]
    mask = None if mask is None else ExtraKeysMask(mask, len(extra))
    return torch.cat(keys, -2), torch.cat(values, -2), mask
