"""Functions that split, group, rotate and merge the heads of multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from qkv.cache.kernel import ChunkedTensor, concat_chunks
from qkv.core.map_batch import Groups
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Float, Int
from qkv.errors import OptionError
from qkv.nn.protocols import Cache, Rotation
from qkv.readouts import Heads, Readout
from qkv.readouts.base import Result, flatten, unflatten


class Head(NamedTuple):
    """Projections W_Q, W_K, W_V and W_O of one head and their biases. Each is None if the module does not have it.

    The tensors are views: writing into a tensor changes the module.

    Attributes:
        query_map: W_Q `(head_width, width)`.
        key_map: W_K `(head_width, key_width)`; equal to W_Q if the projection is shared.
        value_map: W_V `(head_value_width, value_width)`.
        output_map: W_O `(width, head_value_width)`.
        query_bias: bias of W_Q `(head_width,)`.
        key_bias: bias of W_K `(head_width,)`.
        value_bias: bias of W_V `(head_value_width,)`.

    Example:
        >>> import torch
        >>> from qkv import nn
        >>> head = nn.MultiHeadAttention(16, 4).head(0)
        >>> head.query_map.shape, head.output_map.shape
        (torch.Size([4, 16]), torch.Size([16, 4]))
    """

    query_map: Float[Tensor, "head_width width"] | None
    key_map: Float[Tensor, "head_width key_width"] | None
    value_map: Float[Tensor, "head_value_width value_width"] | None
    output_map: Float[Tensor, "width head_value_width"] | None
    query_bias: Float[Tensor, " head_width"] | None
    key_bias: Float[Tensor, " head_width"] | None
    value_bias: Float[Tensor, " head_value_width"] | None


def head_rows(
    linear: torch.nn.Linear | None, head: int, heads: int
) -> tuple[Float[Tensor, "head_width width"] | None, Float[Tensor, " head_width"] | None]:
    """Return the rows of a projection's weight and bias that belong to one head; each is None if it does not exist."""
    if linear is None:
        return None, None
    width = linear.weight.shape[0] // heads
    rows = slice(head * width, (head + 1) * width)
    return linear.weight[rows], None if linear.bias is None else linear.bias[rows]


def split_heads(
    x: Float[Tensor, "*batch length all_heads"], heads: int, head_width: int
) -> Float[Tensor, "*batch heads length head_width"]:
    """Return `x` with its last axis split into heads, a batch axis: `(*batch, heads, length, head_width)`."""
    if x.shape[-2] == 1:  # a decoding step, whose heads need not be transposed
        return x.reshape(*x.shape[:-2], heads, 1, head_width)
    return x.reshape(*x.shape[:-1], heads, head_width).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "*batch heads length head_width"]) -> Float[Tensor, "*batch length all_heads"]:
    """Return `x` with its heads side by side along the last axis, the inverse of `split_heads`."""
    if x.shape[-2] == 1:
        return x.reshape(*x.shape[:-3], 1, x.shape[-3] * x.shape[-1])
    return x.transpose(-3, -2).flatten(-2)


def apply_norm(norm: torch.nn.Module | None, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `norm(x)`, computed in the dtype of the norm's weight, if any, and cast to that of `x`.

    None means no norm.
    """
    if norm is None:
        return x
    weight = getattr(norm, "weight", None)
    normalized: Tensor = norm(x.to(weight.dtype) if isinstance(weight, Tensor) else x)
    return normalized.to(x.dtype)


def head_groups(heads: int, key_heads: int, expand: bool) -> Groups:
    """Return the sizes (key_heads, group) of two head axes for grouped heads, or None for a single head axis.

    They become two axes if several heads, but not all, share a key and `expand` does not copy keys for each head.
    """
    return (key_heads, heads // key_heads) if 1 < key_heads < heads and not expand else None


def group_heads(
    query: Float[Tensor, "*#batch heads q head_width"],
    key: Float[Tensor, "*#batch key_heads k head_width"] | ChunkedTensor,
    value: Float[Tensor, "*#batch key_heads k head_value_width"] | ChunkedTensor,
    groups: Groups,
    expand_to: int | None,
) -> tuple[
    Float[Tensor, "*#batch_heads q head_width"],
    Float[Tensor, "*#batch_heads k head_width"] | ChunkedTensor,
    Float[Tensor, "*#batch_heads k head_value_width"] | ChunkedTensor,
]:
    """Return query, key and value with heads that broadcast: as two head axes, or with keys copied for each head."""
    if groups is not None:
        return (query.reshape(*query.shape[:-3], *groups, *query.shape[-2:]), key.unsqueeze(-3), value.unsqueeze(-3))
    if expand_to is not None and 1 < key.shape[-3] < expand_to:
        times = expand_to // key.shape[-3]
        keys, values = concat_chunks(key), concat_chunks(value)
        return query, keys.repeat_interleave(times, -3), values.repeat_interleave(times, -3)
    return query, key, value


def apply_rotation(
    rotation: Rotation,
    query: Float[Tensor, "*#batch heads q head_width"],
    key: Float[Tensor, "*#batch key_heads k head_width"],
    cache: Cache | None,
    positions: Positions | None,
) -> tuple[Float[Tensor, "*#batch heads q head_width"], Float[Tensor, "*#batch key_heads k head_width"]]:
    """Return queries and keys, rotated by their positions in the sequence."""
    q, k = query.shape[-2], key.shape[-2]
    if cache is not None:
        start = key_start = cache.start
    else:
        start, key_start = cast("int | Tensor", Tile.whole(q, k, (), positions).offset()), 0
    return rotation.rotate(query, key, _position_ids(start, q, query), _position_ids(key_start, k, key))


def _position_ids(
    start: int | Int[Tensor, "*batch"], length: int, x: Float[Tensor, "*_ length head_width"]
) -> Int[Tensor, " length"] | Int[Tensor, "*batch 1 length"]:
    rows = torch.arange(length, device=x.device)
    if isinstance(start, Tensor) and start.ndim:
        start = start.to(x.device)[..., None, None]
    return rows + start


def selects_heads(readouts: Sequence[Readout]) -> bool:
    """Return True if any readout selects heads by index, which requires a single head axis."""
    return any([isinstance(readout, Heads) for readout in readouts])  # noqa: C419 -- torch.compile


def merge_group_axes(readouts: Sequence[Result], axes: int, groups: Groups) -> tuple[Result, ...]:
    """Return the readouts of a call, with their two head axes (key_heads, group), if any, flattened into one."""
    if groups is None:
        return tuple(readouts)
    return tuple(unflatten(tuple(cast(Tensor, x).flatten(axes, axes + 1) for x in flatten(r)), r) for r in readouts)


def check_head_index(index: int, heads: int) -> int:
    """Check the index of a head, which may be negative, and return it as a non-negative integer.

    Raises:
        OptionError: if the index is out of range.
    """
    if not isinstance(index, int) or not -heads <= index < heads:
        raise OptionError(
            f"index of a head must be an integer from {-heads} to {heads - 1}, got {index!r}. Correct it."
        )
    return index % heads
