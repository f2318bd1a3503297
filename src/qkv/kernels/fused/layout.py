"""Mapping of batch axes and masks to those of PyTorch's fused attention, without copies of broadcast axes.

    (*batch, q, width)   ->   (b, heads, q, width)
    (*batch, k, width)   ->   (b, key_heads, k, width)          heads = key_heads · group

If only the query has the last batch axis, and key and value are broadcast along it, it becomes a group of heads
(`enable_gqa`), whose gradients are summed inside the operator. All other broadcast axes are expanded with stride 0.
More than two axes are reduced by merging neighbors along which the same inputs are broadcast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from qkv.core.typing import Float, OutputTensor, RowTensor, Shaped, Tensor

_Batch = tuple[int, ...]
Side = Literal[0, 1, 2]
"""Index of an input: query (0), key (1) or value (2)."""
Sides = tuple[
    Float[Tensor, "*own_query q width"], Float[Tensor, "*own_key k width"], Float[Tensor, "*own_value k width"]
]
"""Query, key and value of one width, with their own batch axes."""
FourAxes = tuple[
    Float[Tensor, "b heads q width"], Float[Tensor, "b key_heads k width"], Float[Tensor, "b key_heads k width"]
]
"""Query, key and value with the axes of PyTorch's fused attention."""


@dataclass(frozen=True)
class Layout:
    """Mapping of the batch axes of query, key and value to the two batch axes of PyTorch's fused attention.

    Attributes:
        batch: batch shape of the call.
        own: the two batch axes of query, key and value, with length 1 where an input is broadcast.
        heads: (b, heads), the batch axes of the query.
        key_heads: (b, key_heads), the batch axes of key and value.
    """

    batch: _Batch
    own: tuple[_Batch, _Batch, _Batch]
    heads: _Batch
    key_heads: _Batch

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return self.heads != self.key_heads

    def is_identity(self, *shapes: tuple[int, ...]) -> bool:
        """Return whether query, key and value of these shapes, and the output, have the four axes already."""
        targets = (self.heads, self.key_heads, self.key_heads)
        return self.heads == self.batch and all(x[:-2] == own for x, own in zip(shapes, targets, strict=True))

    def to_four_axes(self, x: Float[Tensor, "*own n width"], side: Side) -> Float[Tensor, "b heads n width"]:
        """Return query, key or value reshaped to `(b, heads, n, width)`, with a contiguous last axis."""
        core, own, target = x.shape[-2:], self.own[side], self.heads if side == 0 else self.key_heads
        if x.shape[:-2] != own:
            x = x.reshape((*own, *core))
        if x.stride(-1) != 1 and core[1] != 1:
            x = x.contiguous()
        return x if own == target else x.expand((*target, *core))

    def sides(self, sides: Sides) -> FourAxes:
        """Return query, key and value, each reshaped to `(b, heads, n, width)`."""
        return self.to_four_axes(sides[0], 0), self.to_four_axes(sides[1], 1), self.to_four_axes(sides[2], 2)

    def from_four_axes(
        self, gradient: Float[Tensor, "b heads n width"], side: Side, like: Float[Tensor, "*own n width"]
    ) -> Float[Tensor, "*own n width"]:
        """Return the gradient of the input of `to_four_axes`, given the gradient of its result.

        The gradient is summed over expanded axes.
        """
        own = (*self.own[side], *gradient.shape[-2:])
        if tuple(gradient.shape) != own:
            gradient = gradient.sum_to_size(own)
        return gradient if gradient.shape == like.shape else gradient.reshape(like.shape)

    def output(self, x: Float[Tensor, "b heads q width"], width: int) -> OutputTensor:
        """Return the output of fused attention with the batch axes of the call and without padded columns."""
        if x.shape[-1] != width:
            x = x[..., :width]
        return x if x.shape[:-2] == self.batch else x.reshape((*self.batch, *x.shape[-2:]))

    def restore(
        self, output: OutputTensor, log_sum_exp: RowTensor, width: int
    ) -> tuple[Float[Tensor, "b heads q width"], Float[Tensor, "b heads q"]]:
        """Return output and log-sum-exp with the batch axes of fused attention. The output is padded to `width`."""
        import torch

        rows = (*self.heads, output.shape[-2])
        output = torch.nn.functional.pad(output, (0, width - output.shape[-1]))
        return output.reshape((*rows, width)), log_sum_exp.reshape(rows)

    def pair_array(self, x: Shaped[Tensor, "*some #q #k"], keys: int) -> Shaped[Tensor, "b heads #q k"]:
        """Return an array of pairs, such as a mask, reshaped to `(b, heads, q, k)`, where all but k may be 1."""
        if x.shape[-1] != keys:
            x = x.expand((*x.shape[:-1], keys))
        if x.stride(-1) != 1:  # the operator reads the keys of a query one after the other
            x = x.contiguous()
        if math.prod(x.shape[:-2]) == 1:
            return x if x.ndim == 4 else x.reshape((1, 1, *x.shape[-2:]))
        if self.heads == self.batch and x.ndim == 4:
            return x
        return x.expand((*self.batch, *x.shape[-2:])).reshape((*self.heads, *x.shape[-2:]))


@lru_cache(maxsize=256)
def layout_of(batch: _Batch, query: _Batch, key: _Batch, value: _Batch) -> Layout | None:
    """Return the layout for the batch axes of a call, or None if a broadcast axis would have to be copied.

    Example:
        >>> layout = layout_of((2, 4, 3), (2, 4, 3), (2, 4, 1), (2, 4, 1))
        >>> layout.heads, layout.key_heads
        ((2, 12), (2, 4))
        >>> layout_of((2, 3, 4, 5), (2, 1, 4, 1), (1, 3, 1, 5), (1, 1, 4, 5)) is None
        True
    """
    sides = [(1,) * (len(batch) - len(own)) + own for own in (query, key, value)]
    axes = [(n, tuple(own[at] != 1 for own in sides)) for at, n in enumerate(batch) if n != 1]
    group = 1
    while axes and axes[-1][1] == (True, False, False):
        group, axes = group * axes[-1][0], axes[:-1]
    axes = _merge_alike(axes)
    if len(axes) > 2:
        return None
    if len(axes) == 2:
        (b, own_b), (heads, own_heads) = axes
    else:
        # A single axis becomes the heads, unless the heads of a group follow it.
        single: tuple[int, tuple[bool, ...]] = axes[0] if axes else (1, (True, True, True))
        empty = (1, (True, True, True))
        (b, own_b), (heads, own_heads) = (single, empty) if group > 1 else (empty, single)
    if group > 1 and not own_heads[0]:
        return None
    own = [(b if has_b else 1, heads if has_heads else 1) for has_b, has_heads in zip(own_b, own_heads, strict=True)]
    own[0] = (own[0][0], own[0][1] * group)
    return Layout(batch, (own[0], own[1], own[2]), (b, heads * group), (b, heads))


def _merge_alike(axes: list[tuple[int, tuple[bool, ...]]]) -> list[tuple[int, tuple[bool, ...]]]:
    """Merge neighboring axes along which the same inputs are broadcast, until at most two axes are left.

    Axes are merged from the first to the last. More than two axes are left if no neighbors can be merged.
    """
    axes = list(axes)
    at = 0
    while len(axes) > 2 and at + 1 < len(axes):
        if axes[at][1] == axes[at + 1][1]:
            axes[at : at + 2] = [(axes[at][0] * axes[at + 1][0], axes[at][1])]
        else:
            at += 1
    return axes
