"""Keys that a module adds after those it is given, and the mask that lets every query see them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.masks.base import Mask

__all__ = ["AndAlways"]


@dataclass(frozen=True, eq=False)
class AndAlways(Mask):
    """Another mask for the first keys; the last `extra` keys may always be attended to.

    The mask within sees the call without them: its arrays are as long as the keys that were given, and
    causal alignment is to those.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> from qkv.masks import Causal
        >>> AndAlways(Causal(), 1).allowed(Tile.whole(2, 3), np.zeros(()))
        array([[ True, False,  True],
               [ True,  True,  True]])
    """

    mask: Mask
    extra: int

    def check(self, q: int, k: int) -> None:
        """The mask within fits the keys that were given."""
        self.mask.check(q, k - self.extra)

    def bind(
        self,
        reference: Array,
        batch: tuple[int, ...],
        dtype: Any = None,
        lengths: dict[str, int] | None = None,
    ) -> Self:
        """The mask within is fitted to the keys that were given."""
        lengths = dict(lengths or {})
        if "k" in lengths:
            lengths["k"] -= self.extra
        return dataclasses.replace(self, mask=self.mask.bind(reference, batch, dtype, lengths))

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """The mask within, then True."""
        k = tile.k_total - self.extra
        inner = dataclasses.replace(tile, cols=(min(tile.cols[0], k), min(tile.cols[1], k)), k_total=k)
        extra = tile.cols[1] - tile.cols[0] - (inner.cols[1] - inner.cols[0])
        xp = namespace(reference)
        allowed = self.mask.allowed(inner, reference)
        shape = (*allowed.shape[:-2], tile.rows[1] - tile.rows[0])
        allowed = xp.broadcast_to(allowed, (*shape, inner.cols[1] - inner.cols[0]))
        always = xp.ones_like(allowed[..., :1]) if allowed.shape[-1] else xp.ones((*shape, 1), dtype=xp.bool)
        return xp.concat([allowed, xp.broadcast_to(always, (*shape, extra))], axis=-1)

    def __str__(self) -> str:
        return f"({self.mask} and {self.extra} keys more)"
