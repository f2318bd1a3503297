"""The shapes of a call of multi-head attention: cut into heads, grouped, turned, lengthened, joined again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.errors import OptionError, ShapeError
from qkv.kernels.chunked.kernel import concat_chunks
from qkv.masks import Mask
from qkv.nn.extra_keys import AndAlways
from qkv.nn.protocols import Cache, Rotary
from qkv.readouts import Heads, Readout
from qkv.readouts.base import flatten, unflatten

__all__ = [
    "cut",
    "grouped",
    "groups_of",
    "heads_in_one",
    "index_of_head",
    "kernel_of",
    "names_heads",
    "normed",
    "rotated",
    "wide",
    "with_extra",
]

Tensor = torch.Tensor
Groups = tuple[int, int] | None


def wide(side: str, x: Tensor, width: int) -> Tensor:
    """The query, key or value, if it is as wide as the module takes it.

    Raises:
        ShapeError: it is not.
    """
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(
            f"{side} has shape {tuple(x.shape)}; it must be (*batch, length, {width}). Project it, or make "
            "the module for its width."
        )
    return x


def cut(x: Tensor, heads: int, head_width: int) -> Tensor:
    """`(*batch, length, heads · head_width)` as `(*batch, heads, length, head_width)`: a view."""
    return x.reshape(*x.shape[:-1], heads, head_width).transpose(-3, -2)


def normed(norm: torch.nn.Module | None, x: Tensor) -> Tensor:
    """`x` through the norm: in the dtype of its weight, which autocast leaves wide, and back."""
    if norm is None:
        return x
    weight: Any = norm.weight
    out: Tensor = norm(x.to(weight.dtype))
    return out.to(x.dtype)


def groups_of(heads: int, key_heads: int, expand: bool) -> Groups:
    """(key_heads, group), where heads are two axes of the call: several share a key, and not all the same."""
    return (key_heads, heads // key_heads) if 1 < key_heads < heads and not expand else None


def grouped(
    query: Tensor, key: Tensor, value: Tensor, groups: Groups, expand_to: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of the call. Keys are shared by broadcasting, or copied where they must be."""
    if groups is not None:
        return (
            query.reshape(*query.shape[:-3], *groups, *query.shape[-2:]),
            key.unsqueeze(-3),
            value.unsqueeze(-3),
        )
    if expand_to is not None and 1 < key.shape[-3] < expand_to:
        times = expand_to // key.shape[-3]
        keys, values = concat_chunks(key), concat_chunks(value)
        return query, keys.repeat_interleave(times, -3), values.repeat_interleave(times, -3)
    return query, key, value


def rotated(
    rotary: Rotary, query: Tensor, key: Tensor, cache: Cache | None, positions: Positions | None
) -> tuple[Tensor, Tensor]:
    """Query and key, turned by where they stand."""
    q, k = query.shape[-2], key.shape[-2]
    if cache is not None:
        start = key_start = cache.start
    else:
        start, key_start = Tile.whole(q, k, (), positions).offset(), 0
    return rotary.rotate(query, key, _stand(start, q, query), _stand(key_start, k, key))


def _stand(start: Any, length: int, x: Tensor) -> Tensor:
    rows = torch.arange(length, device=x.device)
    if isinstance(start, torch.Tensor) and start.ndim:
        start = start.to(x.device)[..., None, None]
    stand: Tensor = rows + start
    return stand


def with_extra(
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    pairs: Iterable[tuple[Any, Any]],
    zero: bool,
) -> tuple[Tensor, Tensor, Mask | None]:
    """Keys and values with those that the module adds after them, which every query may attend to."""
    if pairs or zero:
        key, value = concat_chunks(key), concat_chunks(value)
    extra = [(k.to(key.dtype), v.to(value.dtype)) for k, v in pairs]
    if zero:
        extra.append((key.new_zeros(1, 1, key.shape[-1]), value.new_zeros(1, 1, value.shape[-1])))
    if not extra:
        return key, value, mask
    keys = [key, *(k.expand(*key.shape[:-2], 1, key.shape[-1]) for k, _ in extra)]
    values = [value, *(v.expand(*value.shape[:-2], 1, value.shape[-1]) for _, v in extra)]
    mask = None if mask is None else AndAlways(mask, len(extra))
    return torch.cat(keys, -2), torch.cat(values, -2), mask


def names_heads(readouts: Sequence[Readout]) -> bool:
    """Whether a readout counts heads, which must then be one axis."""
    return any([isinstance(readout, Heads) for readout in readouts])  # noqa: C419 -- the compiler's


def heads_in_one(readouts: Sequence[Any], axes: int, groups: Groups) -> tuple[Any, ...]:
    """Results whose heads are two axes, with heads as one."""
    if groups is None:
        return tuple(readouts)
    return tuple(unflatten(tuple(x.flatten(axes, axes + 1) for x in flatten(r)), r) for r in readouts)


def index_of_head(index: int, heads: int) -> int:
    """The index, counted from 0.

    Raises:
        OptionError: there is no such head.
    """
    if not isinstance(index, int) or not -heads <= index < heads:
        raise OptionError(f"there is no head {index!r}; there are {heads}, from 0.")
    return index % heads


def kernel_of(kernel: str | None, talking_heads: bool) -> str | None:
    """The kernel that must run it.

    Raises:
        OptionError: talking heads under another kernel than dense.
    """
    if talking_heads and kernel not in (None, "dense"):
        raise OptionError(f"talking heads run dense alone, and kernel is {kernel!r}. Leave it out.")
    return "dense" if talking_heads else kernel
