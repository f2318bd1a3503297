"""How any batch axes become the two that PyTorch's fused attention takes, without copying a shared axis; and
which masks it takes.

    (*batch, q, width)   ->   (b, heads, q, width)
    (*batch, k, width)   ->   (b, key_heads, k, width)          heads = key_heads · group

A last axis that query has and key and value share is a group (`enable_gqa`): its gradients are added inside
the kernel. Every other shared axis is expanded, with stride 0. Axes that all treat alike are merged where
there are more than two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qkv.core.tile import Tile
from qkv.core.typing import Tensor
from qkv.masks.base import And, Mask

__all__ = ["Layout", "layout_of", "split"]

Batch = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Two batch axes for query, key and value.

    Attributes:
        batch: of the call, as it was.
        own: batch axes of query, key and value in four-axis form, before anything is expanded.
        heads: (b, heads) of the query.
        key_heads: (b, key_heads) of key and value.
    """

    batch: Batch
    own: tuple[Batch, Batch, Batch]
    heads: Batch
    key_heads: Batch

    @property
    def grouped(self) -> bool:
        """Whether several heads of the query share one of the key."""
        return self.heads != self.key_heads

    def four(self, x: Tensor, side: int) -> Any:
        """Query (0), key (1) or value (2) with four axes, its last axis contiguous."""
        core, own, wanted = x.shape[-2:], self.own[side], self.heads if side == 0 else self.key_heads
        if x.shape[:-2] != own:
            x = x.reshape((*own, *core))
        if x.stride(-1) != 1 and core[1] != 1:
            x = x.contiguous()
        return x if own == wanted else x.expand((*wanted, *core))

    def back(self, gradient: Tensor, side: int, like: Tensor) -> Any:
        """The gradient of what `four` gave, as one of what it was given: summed where it was expanded."""
        own = (*self.own[side], *gradient.shape[-2:])
        if tuple(gradient.shape) != own:
            gradient = gradient.sum_to_size(own)
        return gradient if gradient.shape == like.shape else gradient.reshape(like.shape)

    def output(self, x: Tensor, width: int) -> Any:
        """The output with the batch axes of the call, and as wide as the values."""
        if x.shape[-1] != width:
            x = x[..., :width]
        return x if x.shape[:-2] == self.batch else x.reshape((*self.batch, *x.shape[-2:]))

    def known(self, output: Tensor, total: Tensor, width: int) -> tuple[Any, Any]:
        """Output and log-totals `(*batch, q, ·)` of the call in four and three axes, padded to the width."""
        import torch

        rows = (*self.heads, output.shape[-2])
        output = torch.nn.functional.pad(output, (0, width - output.shape[-1]))
        return output.reshape((*rows, width)), total.reshape(rows)

    def mask(self, allowed: Tensor) -> Any:
        """Booleans `(*batch or fewer, 1, k)` with four axes."""
        if math.prod(allowed.shape[:-2]) == 1:
            return allowed.reshape((1, 1, *allowed.shape[-2:]))
        return allowed.expand((*self.batch, *allowed.shape[-2:])).reshape((*self.heads, *allowed.shape[-2:]))


@lru_cache(maxsize=256)
def layout_of(batch: Batch, query: Batch, key: Batch, value: Batch) -> Layout | None:
    """The layout for these batch axes; None where a shared axis would have to be copied.

    Example:
        >>> found = layout_of((2, 4, 3), (2, 4, 3), (2, 4, 1), (2, 4, 1))
        >>> found.heads, found.key_heads
        ((2, 12), (2, 4))
        >>> layout_of((2, 3, 4, 5), (2, 1, 4, 1), (1, 3, 1, 5), (1, 1, 4, 5)) is None
        True
    """
    sides = [(1,) * (len(batch) - len(own)) + own for own in (query, key, value)]
    axes = [(n, tuple(own[at] != 1 for own in sides)) for at, n in enumerate(batch) if n != 1]
    group = 1
    if axes and axes[-1][1] == (True, False, False):
        group, axes = axes[-1][0], axes[:-1]
        while axes and axes[-1][1] == (True, False, False):
            group, axes = group * axes[-1][0], axes[:-1]
    axes = _merged(axes)
    if len(axes) > 2:
        return None
    if len(axes) == 2:
        (b, full), (heads, own_heads) = axes
    else:
        # One axis alone: the heads, unless the heads of a group follow it.
        one: tuple[int, tuple[bool, ...]] = axes[0] if axes else (1, (True, True, True))
        empty = (1, (True, True, True))
        (b, full), (heads, own_heads) = (one, empty) if group > 1 else (empty, one)
    if group > 1 and not own_heads[0]:
        return None
    own = [(b if f else 1, heads if h else 1) for f, h in zip(full, own_heads, strict=True)]
    own[0] = (own[0][0], own[0][1] * group)
    return Layout(batch, (own[0], own[1], own[2]), (b, heads * group), (b, heads))


def _merged(axes: list[tuple[int, tuple[bool, ...]]]) -> list[tuple[int, tuple[bool, ...]]]:
    """The same axes, the first that are shared alike made one, until there are two."""
    axes = list(axes)
    at = 0
    while len(axes) > 2 and at + 1 < len(axes):
        if axes[at][1] == axes[at + 1][1]:
            axes[at : at + 2] = [(axes[at][0] * axes[at + 1][0], axes[at][1])]
        else:
            at += 1
    return axes


def split(mask: Mask | None, tile: Tile) -> tuple[Mask | None, int | None, bool]:
    """The mask as one of keys and a causal one of this offset; False where it is not that."""
    if mask is None:
        return None, None, True
    if mask.key_only:
        return mask, None, True
    offset = mask.causal_offset(tile)
    if offset is not None:
        return None, offset, True
    if isinstance(mask, And):
        sides = [split(side, tile) for side in (mask.left, mask.right)]
        keys = [found[0] for found in sides if found[0] is not None]
        causal = {found[1] for found in sides if found[1] is not None}
        if all(found[2] for found in sides) and len(causal) == 1:
            return keys[0] if len(keys) == 1 else And(*keys) if keys else None, causal.pop(), True
    return None, None, False
